"""Runs on other hosts through ssh: four real sshd in namespaces."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time

import pytest
from control import BUILD, ROOT, Control, wait_for
from testbed import Hosts, needs_root

pytestmark = needs_root

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", str(BUILD / "bin" / "lockstep-train"))
needs_trainer = pytest.mark.skipif(
    not os.path.exists(TRAINER), reason="lockstep-train is not built"
)


@pytest.fixture(scope="module")
def hosts():
    with Hosts(4) as bed:
        yield bed


@pytest.fixture
def control(tmp_path, hosts):
    control = Control(tmp_path)
    control.environment.update(hosts.environment())
    # The runs are not below the folder that is synced.
    control.work = tmp_path / "work"
    control.work.mkdir()
    yield control
    for alias in hosts.names:
        for pid, _ in marked(hosts, alias, control):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    control.end_all()


def marked(hosts, alias, control):
    return hosts.processes(alias, control.marker)


def on_hosts(control, *words, **options):
    # Ranks carry the marker, so that what is left of them can be found.
    return control.call(*run_words(control, *words), timeout=120, **options)


def run_words(control, *words):
    mark = ["--env", f"{control.marker}=1", "--workdir", control.work]
    return ["run", *mark, *words]


def assert_nothing_left(hosts, control):
    def left():
        return {
            alias: found
            for alias in hosts.names
            if (found := marked(hosts, alias, control))
        }

    wait_for(lambda: not left(), 30, lambda: f"left: {left()}")


def script(control, name, text, mode=0o755):
    path = control.work / name
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_program_on_two_hosts(hosts, control):
    done = on_hosts(control, "--hosts", "n1,n2", "--ranks", "all", "--", "hostname")
    assert done.returncode == 0, done.stderr
    assert "[r0] node1" in done.stderr and "[r1] node2" in done.stderr
    run = control.run()
    assert (run.log(0), run.log(1)) == ("node1\n", "node2\n")
    state = run.state()
    assert (state["state"], state["exit_code"], state["world_size"]) == ("done", 0, 2)
    assert (state["launcher"], state["head_host"]) == ("ssh", "n1")
    assert state["hosts"] == ["n1", "n2"]
    exits = [one for one in run.events() if one["kind"] == "exit"]
    assert sorted((one["rank"], one["code"]) for one in exits) == [(0, 0), (1, 0)]
    assert (run.path / "logbook.md").exists()
    assert "state" in done.stdout and "done" in done.stdout
    assert_nothing_left(hosts, control)


def test_the_environment_of_each_rank(hosts, control):
    job = control.folder / "job.yaml"
    job.write_text(
        "run: env\nprocs_per_node: 2\n"
        "envs: {ALL: everybody, n1: {OWN: first}, n2: {OWN: second, ALL: other}}\n"
    )
    done = on_hosts(
        control,
        *("--hosts", "n1,n2,n3,n4", job),
        env={"SLURM_JOB_ID": "7", "ONLY_HERE": "1"},
    )
    assert done.returncode == 0, done.stderr
    run = control.run()
    seen = []
    for rank in range(8):
        lines = run.log(rank).splitlines()
        seen.append(dict(line.split("=", 1) for line in lines if "=" in line))
    for rank, env in enumerate(seen):
        node, local = divmod(rank, 2)
        assert env["RANK"] == str(rank) and env["WORLD_SIZE"] == "8"
        assert env["LOCAL_RANK"] == str(local) and env["LOCAL_WORLD_SIZE"] == "2"
        assert env["NODE_RANK"] == env["GROUP_RANK"] == str(node)
        assert env["MASTER_ADDR"] == hosts.address("n1")
        assert env["MASTER_PORT"] == seen[0]["MASTER_PORT"]
        assert env["GLOO_SOCKET_IFNAME"] == env["NCCL_SOCKET_IFNAME"] == "eth0"
        assert env["TORCHELASTIC_RUN_ID"] == env["LOCKSTEP_RUN_ID"] == run.path.name
        assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert env["LOCKSTEP_COORDINATOR"].startswith(hosts.address("n1") + ":")
        cores = len(os.sched_getaffinity(0))
        assert env["OMP_NUM_THREADS"] == str(max(1, cores // 2))
        assert env["ALL"] == ("other" if node == 1 else "everybody")
        assert env.get("OWN") == {0: "first", 1: "second"}.get(node)
        folder = env["LOCKSTEP_RUN_DIR"]
        kind = f"/runs/{run.path.name}" if node == 0 else f"/nodes/{run.path.name}-{node}"
        assert folder.endswith(kind), folder
        assert env["LOCKSTEP_CHECKPOINTS"] == folder + "/checkpoints"
        assert not any(name.startswith(("SLURM_", "SSH_")) for name in env), env
        assert "ONLY_HERE" not in env
    # The key is a private file on each node and nowhere else.
    key_file = seen[2]["LOCKSTEP_KEY_FILE"]
    assert key_file.endswith("/.key")
    assert_nothing_left(hosts, control)


def test_slots_and_hostfile(hosts, control):
    done = on_hosts(control, "--hosts", "n1:2,n2:1", "--", "true")
    assert done.returncode == 0, done.stderr
    assert control.run().state()["world_size"] == 3
    file = control.folder / "hosts"
    file.write_text("# ours\nn1 slots=1\n\nn2 slots=2  # two\nn3\n")
    done = on_hosts(control, "--hostfile", file, "--nodes", "2", "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\s*\d+\s+\d\s+n[12]\s", done.stdout, re.M)) == 3, done.stdout
    file.write_text("n1 slots=1\nn2 slts=2\n")
    done = on_hosts(control, "--hostfile", file, "--", "true")
    assert done.returncode == 2 and f"{file}:2" in done.stderr, done.stderr
    done = on_hosts(control, "--hosts", "n1:1,n2:1", "--procs", "2", "--", "true")
    assert done.returncode == 2 and "2" in done.stderr, done.stderr
    done = on_hosts(control, "--hosts", "n1,n2", "--nodes", "3", "--", "true")
    assert done.returncode == 2 and "3 nodes are wanted of 2 hosts" in done.stderr


def test_workdir_setup_and_program_travel_once(hosts, control):
    script(control, "prog", "#!/bin/sh\ncat data/a.txt\n")
    (control.work / "data").mkdir()
    (control.work / "data" / "a.txt").write_text("first\n")
    (control.work / "big.bin").write_bytes(b"x" * 100_000)
    (control.work / "skip.me").write_text("no")
    (control.work / ".lockstepignore").write_text("*.me\n")
    words = ["--hosts", "n1,n2", "--setup", "echo one >> made; ls -A", "--", "./prog"]
    done = on_hosts(control, *words)
    assert done.returncode == 0, done.stderr
    first = control.run()
    assert first.log(0) == first.log(1) == "first\n"
    setup = (first.path / "ranks" / "setup.log").read_text()
    assert "--- n1" in setup and "--- n2" in setup and "big.bin" in setup
    assert "skip.me" not in setup
    # Again: nothing travels but what changed, the set-up is not run.
    (control.work / "data" / "a.txt").write_text("second\n")
    done = control.call("-v", *run_words(control, *words), timeout=120)
    assert done.returncode == 0, done.stderr
    assert "workdir: 1 files, 7 B sent" in done.stderr, done.stderr
    second = max(control.runs(), key=lambda run: run.path.stat().st_mtime)
    assert second.log(0) == "second\n"
    for alias in ("n1", "n2"):
        made = hosts.ssh(alias, "cat ~/.cache/lockstep/workdirs/*/made")
        assert made.count("one") <= 2, made
        programs = hosts.ssh(alias, "ls -d ~/.cache/lockstep/bin/*/lockstep")
        assert len(programs.splitlines()) == 1, programs


def test_exit_codes(hosts, control):
    text = "#!/bin/sh\necho before\n[ $RANK = 1 ] && { echo worst; exit 7; }\nsleep 600\n"
    script(control, "fails", text)
    began = time.monotonic()
    done = on_hosts(control, "--hosts", "n1,n2", "--", "./fails")
    assert done.returncode == 1, done.stderr
    assert re.search(r"rank 1 failed on (n2|node2) \(pid \d+\): exit code 7", done.stderr)
    assert "| worst" in done.stderr
    assert time.monotonic() - began < 60
    run = control.run()
    assert run.state()["state"] == "failed" and run.log(0) == "before\n"
    assert_nothing_left(hosts, control)
    done = on_hosts(control, "--hosts", "n1,n2", "--timeout", "2s", "--grace", "1s", "--", "sleep", "600")
    assert done.returncode == 124, done.stderr
    assert_nothing_left(hosts, control)


def started(control, words):
    """The client and its run, once both ranks said so."""
    before = {run.path for run in control.runs()}
    process = control.start(*run_words(control, *words))

    def ready():
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        for run in control.runs():
            logs = [run.path / "ranks" / f"{rank}.log" for rank in (0, 1)]
            if run.path not in before and all(log.exists() for log in logs):
                if all("ready" in log.read_text() for log in logs):
                    return run

    return process, wait_for(ready, 120)


STUBBORN = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done"


def test_ctrl_c_stops_and_twice_kills(hosts, control):
    words = ["--hosts", "n1,n2", "--grace", "30s", "--"]
    polite = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    process, run = started(control, [*words, "bash", "-c", polite])
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=90)
    assert process.returncode == 130, text
    assert run.log(0).endswith("bye\n") and run.log(1).endswith("bye\n")
    assert run.state()["state"] == "stopped"
    assert_nothing_left(hosts, control)

    process, run = started(control, [*words, "bash", "-c", STUBBORN])
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "asked" in run.log(1), 60)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=90)
    assert process.returncode == 130, text
    assert_nothing_left(hosts, control)


# Prints until a file appears; the last line says how many there were.
COUNTING = """#!/bin/bash
echo ready
i=0
while [ ! -e $1/finish ] && [ $i -lt 3000 ]; do
  i=$((i+1)); echo "line $i of rank $RANK"; sleep 0.02
done
printf 'last %s' $i
"""


def assert_whole(text, rank):
    lines = text.split("\n")
    assert lines[0] == "ready"
    last = int(lines[-1].removeprefix("last "))
    expected = [f"line {i} of rank {rank}" for i in range(1, last + 1)]
    assert lines[1:-1] == expected


def test_the_client_is_killed_and_comes_back(hosts, control):
    script(control, "count", COUNTING)
    process, run = started(control, ["--hosts", "n1,n2", "--", "./count", hosts.shared])
    process.kill()
    process.wait()
    assert run.state()["state"] == "running"
    listed = json.loads(control.call("--output", "json", "ps").stdout)
    assert [(one["state"], one["head"]) for one in listed] == [("running", "n1")]
    seen = run.log(1)
    (hosts.shared / "finish").write_text("")
    try:
        done = control.call("attach", "last", timeout=120)
    finally:
        (hosts.shared / "finish").unlink()
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert_whole(run.log(rank), rank)
    assert run.log(1).startswith(seen)
    head = run.state()["head_directory"]
    for rank in (0, 1):
        there = hosts.ssh("n1", f"cat {head}/ranks/{rank}.log")
        assert there == run.log(rank)
    assert run.state()["state"] == "done" and (run.path / "logbook.md").exists()
    assert_nothing_left(hosts, control)


def test_closing_the_terminal_leaves_the_run(hosts, control):
    script(control, "count", COUNTING)
    process, run = started(control, ["--hosts", "n1,n2", "--", "./count", hosts.shared])
    process.send_signal(signal.SIGHUP)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 0, text
    assert marked(hosts, "n2", control)
    done = control.call("stop", "--now", "last", timeout=120)
    assert done.returncode == 0 and "stopped" in done.stdout, done.stderr
    assert run.state()["state"] == "stopped"
    assert_nothing_left(hosts, control)


def test_detach_ps_logs_attach_stop(hosts, control):
    script(control, "count", COUNTING)
    words = ["--detach", "--name", "far", "--hosts", "n1,n2", "--grace", "5s"]
    done = on_hosts(control, *words, "--", "./count", hosts.shared)
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert name.startswith("far-") and f"attach {name}" in done.stderr
    follower = control.start("logs", "-f", "--rank", "1", "far")
    # The same name again is another run; the name means the newest.
    second = on_hosts(control, *words, "--", "./count", hosts.shared).stdout.strip()
    assert second != name and second.startswith("far-")
    listed = json.loads(control.call("--output", "json", "ps").stdout)
    assert {one["id"]: one["state"] for one in listed} == {
        name: "running",
        second: "running",
    }
    logs = wait_for(
        lambda: "ready" in (text := control.call("logs", "far").stdout) and text, 60
    )
    assert "[r0] ready" in logs or "[r1] ready" in logs
    done = control.call("cancel", "far", timeout=120)
    assert done.returncode == 0 and f"{second} stopped" in done.stdout, done.stderr
    (hosts.shared / "finish").write_text("")
    try:
        text, errors = follower.communicate(timeout=120)
    finally:
        (hosts.shared / "finish").unlink()
    assert follower.returncode == 0, errors
    assert_whole(text.removesuffix("\n"), 1)
    done = control.call("attach", name, timeout=60)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr
    done = control.call("stop", name)
    assert done.returncode == 0 and "not running" in done.stderr
    assert_nothing_left(hosts, control)


def test_two_runs_at_once(hosts, control):
    words = ["--hosts", "n1,n2,n3,n4", "--procs", "2", "--", "bash", "-c"]
    both = [
        control.start(*run_words(control, "--name", name, *words, f"echo {name}; sleep 1"))
        for name in ("one", "two")
    ]
    for process in both:
        _, text = process.communicate(timeout=120)
        assert process.returncode == 0, text
    for run in control.runs():
        name = run.path.name.split("-")[0]
        assert [run.log(rank) for rank in range(8)] == [name + "\n"] * 8
    assert_nothing_left(hosts, control)


def test_ps_says_when_a_head_is_not_reachable(hosts, control):
    done = on_hosts(control, "--detach", "--hosts", "n3,n4", "--", "sleep", "600")
    assert done.returncode == 0, done.stderr
    hosts.cut("n3")
    try:
        began = time.monotonic()
        listed = json.loads(control.call("--output", "json", "ps").stdout)
        assert time.monotonic() - began < 30
        assert listed[0]["state"] == "unreachable"
        assert "n3" in listed[0]["detail"]
    finally:
        hosts.restore("n3")
    wait_for(
        lambda: json.loads(control.call("--output", "json", "ps").stdout)[0]["state"]
        != "unreachable",
        60,
    )
    control.call("stop", "--now", "last", timeout=120)
    assert_nothing_left(hosts, control)


def test_wrong_inputs(hosts, control):
    def refused(code, *words, **options):
        done = on_hosts(control, *words, **options)
        assert done.returncode == code, (done.returncode, done.stderr)
        assert not control.runs(), "a run directory is left"
        return done.stderr

    assert "nowhere" in refused(3, "--hosts", "n1,nowhere", "--", "true")
    text = refused(2, "--hosts", "n1,n2", "--", "no-such-program")
    assert "no such program" in text and "n1" in text
    script(control, "plain", "#!/bin/sh\n", 0o644)
    assert "chmod +x" in refused(2, "--hosts", "n1,n2", "--", "./plain")
    assert "n1" in refused(2, "--hosts", "n1,n1", "--", "true")
    assert "hosts" in refused(2, "--launcher", "ssh", "--", "true")
    assert "2 nodes" in refused(2, "--nodes", "2", "--", "true")
    job = control.folder / "job.yaml"
    job.write_text("run: 'true'\nenvs: {n9: {A: 1}}\n")
    assert "n9" in refused(2, "--hosts", "n1,n2", job)
    job.write_text("run: 'true'\nresources: {hosts: [n1, n2]}\nfile_mounts: {d: /nowhere}\n")
    assert "file_mounts.d" in refused(2, job)
    assert_nothing_left(hosts, control)


def test_ports_that_are_closed_end_it_clearly(hosts, control):
    # n2 reaches the head by ssh's port only.
    hosts.drop("n2", "-p", "tcp", "!", "--sport", "22", chain="OUTPUT")
    try:
        done = on_hosts(control, "--hosts", "n1,n2", "--", "true", env={})
    finally:
        hosts.drop_nothing("n2")
    assert done.returncode == 3, done.stderr
    assert "n2" in done.stderr and hosts.address("n1") in done.stderr
    assert_nothing_left(hosts, control)


def test_no_shared_memory_folder_is_no_matter(hosts, control):
    hosts.run("n2", "umount /dev/shm; mount -t tmpfs -o ro none /dev/shm")
    try:
        done = on_hosts(control, "--hosts", "n1,n2", "--", "true")
    finally:
        hosts.run("n2", "umount /dev/shm; mount -t tmpfs none /dev/shm")
    assert done.returncode == 0, done.stderr


def test_names_that_resolve_differently_are_no_matter(control):
    wrong = {
        "n1": "127.0.1.1 node1",
        "n2": "192.0.2.7 node1\n192.0.2.8 n1",
    }
    with Hosts(2, etc_hosts=wrong) as bed:
        control.environment.update(bed.environment())
        done = on_hosts(control, "--hosts", "n1,n2", "--", "sh", "-c", "echo $MASTER_ADDR")
        assert done.returncode == 0, done.stderr
        assert control.run().log(1).strip() == bed.address("n1")


def test_file_mounts_of_local_folders(hosts, control):
    data = control.folder / "data"
    data.mkdir()
    (data / "x").write_text("brought\n")
    job = control.folder / "job.yaml"
    job.write_text(f"run: cat in/x\nresources: {{hosts: [n1, n2]}}\nfile_mounts: {{in: {data}}}\n")
    done = on_hosts(control, job)
    assert done.returncode == 0, done.stderr
    assert control.run().log(0) == control.run().log(1) == "brought\n"


def test_secrets_reach_ranks_and_nothing_else(hosts, control):
    job = control.folder / "job.yaml"
    job.write_text("run: 'echo len ${#TOKEN}; echo $TOKEN'\nsecrets: {TOKEN: null}\n")
    secret = "hush-hush-hush"
    done = on_hosts(control, "--hosts", "n1,n2", job, env={"TOKEN": secret})
    assert done.returncode == 0, done.stderr
    run = control.run()
    assert f"len {len(secret)}" in run.log(1)
    assert "***" in done.stderr and secret not in done.stderr + done.stdout
    assert secret not in control.call("logs").stdout
    for path in run.path.rglob("*"):
        if path.is_file() and path.parent.name != "ranks":
            assert secret not in path.read_text(errors="replace"), path
    for alias in ("n1", "n2"):
        found = hosts.ssh(alias, f"grep -rl {secret} ~/.cache/lockstep || true").split()
        assert all("/ranks/" in name for name in found), found


def test_a_rank_that_prints_much_is_mirrored_whole(hosts, control):
    # 20 MB a rank, in lines of 1,000 bytes, and no end of line at the end.
    text = (
        "import os, sys\n"
        "line = 'x' * 992\n"
        "for i in range(20000):\n"
        "    sys.stdout.write(f'{i:6d} {line}\\n')\n"
        "sys.stdout.write(f'end of {os.environ[\"RANK\"]}')\n"
    )
    (control.work / "much.py").write_text(text)
    with open(control.folder / "shown", "w") as shown:
        process = control.start(
            *run_words(control, "--hosts", "n1,n2", "--", "python3", "much.py"),
            stderr=shown,
        )
        most = 0
        while process.poll() is None:
            try:
                status = open(f"/proc/{process.pid}/status").read()
                most = max(most, int(re.search(r"VmRSS:\s+(\d+)", status).group(1)))
            except (OSError, AttributeError):
                pass
            time.sleep(0.02)
    assert process.returncode == 0
    assert most < 60_000, f"the client took {most} kB"
    run = control.run()
    for rank in (0, 1):
        lines = run.log(rank).split("\n")
        assert len(lines) == 20001 and lines[-1] == f"end of {rank}"
        assert all(int(line[:6]) == i for i, line in enumerate(lines[:-1]))


TRAIN = """name: tiny
train:
  recipe: dcgan
  data: {name: synthetic, length: 64, image_size: 16, batch_size: 4}
  model: {nz: 8, ngf: 4, ndf: 4}
  trainer: {device: cpu, max_epochs: 1, log_every: 1, checkpoint_every: 2}
  validation_samples: 16
"""


@needs_trainer
def test_a_mistyped_key_of_the_trainer_starts_nothing(hosts, control):
    job = control.folder / "tiny.yaml"
    job.write_text(TRAIN)
    result = control.call(
        *run_words(control, "--hosts", "n1,n2", job, "optim.lrr=1"),
        env={"LOCKSTEP_TRAINER_BIN": TRAINER},
        timeout=120,
    )
    assert result.returncode == 2, result.stderr
    assert "optim.lrr" in result.stderr and "optim.lr" in result.stderr
    assert not control.runs()


@contextlib.contextmanager
def without_libtorch(hosts, names):
    """The hosts see an empty folder where this machine has LibTorch."""
    listed = subprocess.run(["ldd", TRAINER], capture_output=True, text=True, check=True).stdout
    found = re.search(r"libtorch_cpu\.so => (\S+)", listed)
    folder = os.path.dirname(os.path.realpath(found.group(1)))
    for name in names:
        hosts.ssh(name, f"mount -t tmpfs none {folder}")
        assert hosts.ssh(name, f"ls {folder}") == ""
    try:
        yield
    finally:
        for name in names:
            hosts.ssh(name, f"umount -l {folder}")


@needs_trainer
def test_the_trainer_on_two_hosts(hosts, control):
    """Over the TCP ring; LibTorch travels; what it left is here at the end."""
    with without_libtorch(hosts, ["n1", "n2"]):
        check_the_trainer(hosts, control)


def check_the_trainer(hosts, control):
    job = control.folder / "tiny.yaml"
    job.write_text(TRAIN)
    here = {"LOCKSTEP_TRAINER_BIN": TRAINER}
    done = control.call(
        *run_words(control, "--hosts", "n1,n2", "--procs", "2", job),
        *("--env", "OMP_NUM_THREADS=1"),
        timeout=300,
        env=here,
    )
    assert done.returncode == 0, done.stderr
    run = control.run()
    rows = [one for one in run.events() if one["kind"] == "iteration"]
    assert {one["rank"] for one in rows} == {0, 1, 2, 3}
    assert {one["node"] for one in rows} == {"node1", "node2"}
    init = [one for one in run.events() if one["kind"] == "init" and one["rank"] == 3]
    assert init[0]["facts"]["collective"] == "host", init
    for name in ("checkpoints/last.safetensors", "metrics.csv", "timing.csv", "logbook.md"):
        assert (run.path / name).stat().st_size > 0, name
    assert list((run.path / "samples").glob("*.png"))
    assert list((run.path / "tensorboard").iterdir())
    last = run.path / "checkpoints" / "last.safetensors"
    there = f"{run.state()['head_directory']}/checkpoints/last.safetensors"
    theirs = hosts.ssh("n1", f"sha256sum {there}").split()[0]
    assert hashlib.sha256(last.read_bytes()).hexdigest() == theirs
    # The report names the files that are here, not those on the head.
    assert str(run.path / "checkpoints") in done.stdout, done.stdout
    assert_nothing_left(hosts, control)


@needs_trainer
def test_the_example_runs_as_it_is(hosts, control):
    done = subprocess.run(
        control.command("run", "--runs-dir", control.runs_dir, "examples/hosts.yaml"),
        cwd=ROOT,
        env={**control.environment, "LOCKSTEP_TRAINER_BIN": TRAINER},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    run = control.run()
    assert run.state()["hosts"] == ["n1", "n2"]
    assert "ready on node2" in (run.path / "ranks" / "setup.log").read_text()


@needs_trainer
def test_a_restart_resumes_on_every_host(hosts, control):
    """Only the head has the checkpoint; rank 1 gets it from rank 0."""
    script(
        control,
        "once",
        '#!/bin/bash\n"$@" & child=$!\n'
        'if [ "$RANK" = 1 ] && [ "$LOCKSTEP_GENERATION" = 0 ]; then\n'
        "  until grep -qs '\"step\":6' $LOCKSTEP_EVENTS; do sleep 0.05; done\n"
        "  kill -9 $child; exit 9\nfi\nwait $child\n",
    )
    words = ["dcgan", "data=synthetic", "data.length=256", "data.image_size=16"]
    words += ["data.batch_size=4", "model.nz=8", "model.ngf=4", "model.ndf=4"]
    words += ["trainer.device=cpu", "trainer.max_epochs=1", "trainer.checkpoint_every=2"]
    words += ["validation_samples=16"]
    done = control.call(
        *run_words(control, "--hosts", "n1,n2", "--retries", "2"),
        *("--env", "OMP_NUM_THREADS=1"),
        *("--", "./once", TRAINER, *words),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    run = control.run()
    assert run.state()["generation"] == 1
    assert "resumed from" in run.log(0)
    events = run.events()
    began = [i for i, one in enumerate(events) if (one["kind"], one["rank"]) == ("init", -1)]
    assert len(began) == 2
    for rank in (0, 1):
        rows = [one for one in events[began[1] :] if one["kind"] == "iteration"]
        steps = [one["step"] for one in rows if one["rank"] == rank]
        assert steps == list(range(steps[0], 33)), (rank, steps)
        assert steps[0] == rows[0]["step"] > 4
    assert_nothing_left(hosts, control)


def test_a_set_up_that_fails(hosts, control):
    words = ["--hosts", "n1,n2", "--setup", "echo trying; exit 4", "--", "true"]
    done = on_hosts(control, *words)
    assert done.returncode == 1, done.stderr
    for alias in ("n1", "n2"):
        assert re.search(rf"{alias}.*setup failed.*exit code 4", done.stderr), done.stderr
    assert_nothing_left(hosts, control)
