"""How tests start lockstep-train, alone or as ranks, and read what it wrote."""

import csv
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
TRAIN = str(BUILD / "bin" / "lockstep-train")
LOCKSTEP = str(BUILD / "bin" / "lockstep")

# What a launcher around the tests may have set.
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "GROUP_", "NODE_RANK")
FOREIGN += ("LOCKSTEP_", "TORCHELASTIC_", "OMPI_", "PMIX_", "SLURM_")

# Small enough that a step takes milliseconds.
VIT = [
    "vit",
    "data=synthetic",
    "data.length=48",
    "data.image_size=16",
    "data.batch_size=4",
    "model.name=vit_tiny_patch16_224",
    "model.patch=8",
    "model.dim=24",
    "model.depth=2",
    "model.heads=3",
    "trainer.device=cpu",
    "trainer.max_epochs=2",
    "trainer.log_every=1",
]
DCGAN = [
    "dcgan",
    "data=synthetic",
    "data.length=48",
    "data.image_size=16",
    "data.batch_size=4",
    "model.nz=8",
    "model.ngf=4",
    "model.ndf=4",
    "trainer.device=cpu",
    "trainer.max_epochs=2",
    "trainer.log_every=1",
    "validation_samples=16",
]


def clean_environment(**extra):
    """The tests' environment without any launcher's, one thread a rank."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    env["OMP_NUM_THREADS"] = "1"
    env.update({k: str(v) for k, v in extra.items()})
    return env


def train(*words, env=None, cwd=None, timeout=120):
    """Runs the trainer alone to its end."""
    return subprocess.run(
        [TRAIN, *map(str, words)],
        env=env or clean_environment(),
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
    )


def refused(done, *parts, code=2):
    """Ended with a clear error that has all parts; what it said."""
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    for part in parts:
        assert part in text, text
    assert "terminate called" not in text and "Backtrace" not in text
    return text


def trained(*words, **options):
    """Like train, but it must succeed."""
    done = train(*words, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Ranks:
    """Ranks started by hand, as any launcher would: RANK, WORLD_SIZE and the
    address of rank 0. Output goes to files, so that nobody blocks. `env` is more
    environment, or what gives it by rank; `cwd` gives a rank's folder."""

    def __init__(self, folder, words, world=2, env=None, port=None, cwd=None):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / f"output-{rank}.txt" for rank in range(world)]
        self.processes = []
        port = port or free_port()
        for rank in range(world):
            with open(self.files[rank], "w") as output:
                self.processes.append(
                    subprocess.Popen(
                        [TRAIN, *map(str, words)],
                        env=clean_environment(
                            RANK=rank,
                            WORLD_SIZE=world,
                            LOCAL_RANK=rank,
                            LOCAL_WORLD_SIZE=world,
                            MASTER_ADDR="127.0.0.1",
                            MASTER_PORT=port,
                            **(env(rank) if callable(env) else env or {}),
                        ),
                        cwd=cwd(rank) if cwd else None,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def output(self, rank=None):
        files = self.files if rank is None else [self.files[rank]]
        return "".join(file.read_text(errors="replace") for file in files)

    def wait(self, timeout=120):
        """Exit codes by rank, once all have ended."""
        deadline = time.monotonic() + timeout
        for process in self.processes:
            process.wait(max(0.1, deadline - time.monotonic()))
        return [process.returncode for process in self.processes]

    def done(self, timeout=120):
        codes = self.wait(timeout)
        assert codes == [0] * len(codes), f"{codes}\n{self.output()}"
        return self

    def send(self, number, rank=None):
        chosen = self.processes if rank is None else [self.processes[rank]]
        for process in chosen:
            if process.poll() is None:
                process.send_signal(number)

    def kill(self, rank=None):
        self.send(signal.SIGKILL, rank)
        for process in self.processes if rank is None else [self.processes[rank]]:
            process.wait()


def run_ranks(folder, words, world=2, env=None, timeout=120, cwd=None):
    with Ranks(folder, words, world, env, cwd=cwd) as ranks:
        return ranks.done(timeout)


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def metrics(run):
    """metrics.csv without the one column that a clock decides."""
    table = rows(pathlib.Path(run) / "metrics.csv")
    for row in table:
        row.pop("samples_per_second", None)
    return table


def events(run, kind=None, rank=None):
    found = []
    for path in sorted((pathlib.Path(run) / "ranks").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if kind in (None, event["kind"]) and rank in (None, event["rank"]):
                found.append(event)
    return found


def tensors(path):
    """A checkpoint as {name: (type, shape, bytes)}, read without any library,
    so that equal means equal bit for bit. Of a folder of shards, each shard's
    tensors behind the name of its file."""
    path = pathlib.Path(path)
    if path.is_dir():
        return {
            f"{file.name}/{name}": tensor
            for file in sorted(path.iterdir())
            for name, tensor in tensors(file).items()
        }
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        content = data[8 + size + begin : 8 + size + end]
        found[name] = (entry["dtype"], entry["shape"], content)
    return found


def metadata(path):
    path = pathlib.Path(path)
    if path.is_dir():
        path = min(path.iterdir())
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size])["__metadata__"]


def assert_same_checkpoint(left, right):
    a, b = tensors(left), tensors(right)
    assert sorted(a) == sorted(b)
    different = [name for name in a if a[name] != b[name]]
    assert not different, f"{left} and {right} differ in {different[:5]}"
    ours, theirs = metadata(left), metadata(right)
    for key in ("step", "epoch", "samples_in_epoch", "best"):
        key = f"lockstep.{key}"
        assert ours.get(key) == theirs.get(key), key


def wait_until(condition, timeout=60, what="condition"):
    """Polls until the condition holds; what a test waits for is a state."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {timeout} s for {what}")
