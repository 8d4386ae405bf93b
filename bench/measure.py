"""How a training is measured, ours and the peer's alike.

Both run two ranks with one thread each, unpinned, started by their own
launcher. Throughput is samples of all ranks over the wall clock from the end
of the last warm-up step to the end of the last step, read from the time
stamps that rank 0 itself wrote. Start-up is from the command to the start of
step 1. Peak memory is the largest VmHWM of a rank, and CPU time the sum over
the ranks, both read by one watcher from outside while the ranks live. Samples
a CPU second do not suffer from other work on the machine; they are shown
beside the throughput, which is what is required.
"""

import argparse
import csv
import json
import os
import pathlib
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
LIMIT = 900  # seconds a run may take


class BenchError(RuntimeError):
    """A side did not run; its last lines are in the message."""


def parse_arguments(description, argv=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few steps, one round")
    parser.add_argument("--rounds", type=int, help="runs of each side")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument(
        "--data", default="fashion_mnist", choices=["fashion_mnist", "synthetic"]
    )
    # Options of the other benchmarks pass; run.py refuses what nobody knows.
    arguments, _ = parser.parse_known_args(argv)
    stop_cleanly()
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 3
    return arguments


def stop_cleanly():
    """A stop signal ends what runs below, too."""

    def leave(number, frame):
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


class RankWatcher(threading.Thread):
    """Largest VmHWM and CPU seconds over time of the ranks: the processes below
    `parent` that run the program `word`."""

    PERIOD = 0.2
    TICK = os.sysconf("SC_CLK_TCK")

    def __init__(self, parent, word):
        super().__init__(daemon=True)
        self.parent = parent
        self.word = word.encode()
        self.peak = 0
        self.cpu = {}  # pid: [(time, CPU seconds so far)]
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(self.PERIOD):
            for pid in descendants(self.parent):
                try:
                    self.read(pathlib.Path("/proc") / pid)
                except OSError:
                    pass  # it ended meanwhile

    def read(self, process):
        if not self.is_rank((process / "cmdline").read_bytes()):
            return
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                self.peak = max(self.peak, int(line.split()[1]) * 1024)
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / self.TICK
        self.cpu.setdefault(process.name, []).append((time.time(), seconds))

    def cpu_seconds(self, begin, end):
        """Of all ranks between two moments, interpolated."""
        return sum(
            interpolate(curve, end) - interpolate(curve, begin)
            for curve in self.cpu.values()
        )

    def is_rank(self, command):
        """The launchers' own command lines name the program too: theirs have
        it further behind."""
        words = command.split(b"\0")
        return any(word.endswith(self.word) for word in words[:3])

    def stop(self):
        self.ended.set()
        self.join()


def interpolate(curve, moment):
    """The value of [(time, value)] at a moment; the ends go on flat."""
    before = curve[0]
    for point in curve:
        if point[0] >= moment:
            span = point[0] - before[0]
            part = (moment - before[0]) / span if span > 0 else 0
            return before[1] + max(0, part) * (point[1] - before[1])
        before = point
    return before[1]


def descendants(pid):
    """Ids of all processes below `pid`."""
    found = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                path = f"/proc/{parent}/task/{task}/children"
                children = pathlib.Path(path).read_text().split()
                found += children
                waiting += children
        except OSError:
            continue
    return found


def run(command, word):
    """Runs to the end; the time of the command and what was watched."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    started = time.time()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watcher = RankWatcher(process.pid, word)
    watcher.start()
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate()
        raise BenchError(f"{word}: no end after {LIMIT} s\n{tail(output)}")
    finally:
        if process.poll() is None:  # we were stopped ourselves
            process.terminate()
            process.wait()
        watcher.stop()
    if process.returncode != 0:
        raise BenchError(
            f"{word}: exit code {process.returncode}\n"
            f"{' '.join(map(str, command))}\n{tail(output)}"
        )
    return started, watcher


def tail(text, count=25):
    return "\n".join(text.splitlines()[-count:])


def run_peer(script, arguments, warmup, ranks=2):
    """A script under torchrun, with the rendezvous that starts fastest."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        result_file = pathlib.Path(folder) / "result.json"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run"]
        command += ["--nproc-per-node", ranks, "--master-port", port]
        command += [ROOT / "bench" / script, *arguments]
        command += ["--warmup", warmup, "--out", result_file]
        try:
            started, watcher = run(command, script)
        except BenchError as error:
            # Gloo now and then aborts a rank of the peer; only a second time
            # in a row is it no accident.
            print(f"# peer failed, tried again: {error}".splitlines()[0], flush=True)
            started, watcher = run(command, script)
        result = json.loads(result_file.read_text())
    ends = result.pop("step_ends")
    return {
        "samples_per_second": result["samples_per_second"],
        "samples_per_cpu_second": per_cpu_second(
            watcher, ends, warmup, result["samples_per_second"]
        ),
        "startup": result["first_step"] - started,
        "peak_bytes": max(watcher.peak, result["peak_bytes"]),
        "step_seconds": typical_step(ends, warmup),
        "detail": result,
    }


def per_cpu_second(watcher, ends, warmup, samples_per_second):
    begin, end = ends[warmup - 1], ends[-1]
    cpu = watcher.cpu_seconds(begin, end)
    return samples_per_second * (end - begin) / cpu if cpu > 0 else 0.0


def run_ours(arguments, warmup, ranks=2):
    """lockstep-train under `lockstep run`, read from its run directory."""
    trainer = BUILD / "bin" / "lockstep-train"
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        command = [BUILD / "bin" / "lockstep", "run", "--procs", ranks]
        command += ["--runs-dir", folder, "--output", "quiet", "--"]
        command += [trainer, *arguments]
        started, watcher = run(command, "lockstep-train")
        runs = [p for p in pathlib.Path(folder).iterdir() if p.is_dir()]
        if len(runs) != 1:
            raise BenchError(f"lockstep run left {len(runs)} run directories, not 1")
        return read_run(runs[0], started, watcher, warmup)


def read_run(run_directory, started, watcher, warmup):
    steps = []
    facts = {}
    with open(run_directory / "events.jsonl") as lines:
        for line in lines:
            event = json.loads(line)
            if event["rank"] != 0:
                continue
            if event["kind"] == "iteration":
                steps.append(event)
            elif event["kind"] == "init":
                facts = event["facts"]
    steps.sort(key=lambda event: event["step"])
    if [event["step"] for event in steps] != list(range(1, len(steps) + 1)):
        raise BenchError("events.jsonl lacks iterations of rank 0")
    if len(steps) <= warmup:
        raise BenchError(f"{len(steps)} steps are too few for {warmup} of warm-up")
    ends = [event["time"] for event in steps]
    batch = steps[0]["samples"]
    world = 1 + max(int(row["rank"]) for row in timing_rows(run_directory))
    speed = batch * world * (len(steps) - warmup) / (ends[-1] - ends[warmup - 1])
    return {
        "samples_per_second": speed,
        "samples_per_cpu_second": per_cpu_second(watcher, ends, warmup, speed),
        "startup": ends[0] - steps[0]["total"] - started,
        "peak_bytes": watcher.peak,
        "step_seconds": typical_step(ends, warmup),
        "shares": time_shares(run_directory, warmup),
        "detail": facts,
    }


def timing_rows(run_directory):
    with open(run_directory / "timing.csv", newline="") as file:
        return list(csv.DictReader(file))


def time_shares(run_directory, warmup):
    """The parts of an iteration after the warm-up, all ranks, as shares."""
    sums = dict.fromkeys(["data", "compute", "communication", "wait", "total"], 0.0)
    for row in timing_rows(run_directory):
        if int(row["step"]) > warmup:
            for key in sums:
                sums[key] += float(row[key])
    total = sums.pop("total")
    return {key: value / total for key, value in sums.items()}


def typical_step(ends, warmup):
    return statistics.median(
        after - before for before, after in zip(ends[warmup - 1 :], ends[warmup:])
    )


def training_line(result):
    return (
        f"{result['samples_per_second']:.1f} samples/s, "
        f"{result['samples_per_cpu_second']:.1f} a CPU second, "
        f"step {result['step_seconds'] * 1e3:.0f} ms, "
        f"start-up {result['startup']:.2f} s, "
        f"peak {result['peak_bytes'] / 2**20:.0f} MiB"
    )


def interleave(sides, rounds, line=training_line):
    """sides: {name: function}. Runs them A B A B ...; the results by name.
    `line` tells a person of one result."""
    results = {name: [] for name in sides}
    for number in range(rounds):
        for name, function in sides.items():
            load = os.getloadavg()[0]
            result = function()
            result["load_before"] = load
            results[name].append(result)
            print(
                f"# round {number + 1} {name}: {line(result)}, "
                f"load before {load:.1f}",
                flush=True,
            )
    return results


def median(results, key):
    return statistics.median(result[key] for result in results)


class Table:
    """Lines `name ours peer ratio required verdict`, and the same as JSON.
    The ratio is ours over the peer's; `required` says which way. A line with
    nothing required is there for the reader."""

    def __init__(self, name):
        self.name = name
        self.lines = []
        self.runs = {}

    def add(self, name, ours, peer, required=None, unit="", goal=None):
        ratio = ours / peer
        verdict = "info" if required is None else self.judge(ratio, required)
        line = {
            "name": name,
            "ours": ours,
            "peer": peer,
            "unit": unit,
            "ratio": ratio,
            "required": required,
            "goal": goal,
            "verdict": verdict,
        }
        self.lines.append(line)
        print(format_line(line), flush=True)

    def add_training(self, name, results, required, unit):
        """Speed, memory and start-up of two trainings that interleave ran."""
        self.runs[name] = results
        for key, suffix, limit, what, scale in [
            ("samples_per_second", "", required, unit, 1),
            ("samples_per_cpu_second", "-cpu", None, "samples a CPU second", 1),
            ("peak_bytes", "-memory", "<=1.0", "MiB", 2**-20),
            ("startup", "-startup", "<=0.2", "s", 1),
        ]:
            self.add(
                name + suffix,
                median(results["ours"], key) * scale,
                median(results["peer"], key) * scale,
                limit,
                what,
            )

    @staticmethod
    def judge(ratio, required):
        limit = float(required[2:])
        good = ratio >= limit if required.startswith(">=") else ratio <= limit
        return "ok" if good else "MISSED"

    @property
    def missed(self):
        return [line["name"] for line in self.lines if line["verdict"] == "MISSED"]

    def write(self):
        folder = BUILD / "bench"
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "name": self.name,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "lines": self.lines,
            "runs": self.runs,
        }
        path = folder / f"{self.name}.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.rename(path)
        return 1 if self.missed else 0


def format_line(line):
    required = line["required"] or "-"
    unit = f" [{line['unit']}]" if line["unit"] else ""
    return (
        f"{line['name']} {line['ours']:.4g} {line['peer']:.4g} "
        f"{line['ratio']:.3f} {required} {line['verdict']}{unit}"
    )


def machine():
    model = ""
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "host": platform.node(),
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }
