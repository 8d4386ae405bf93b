"""python/lockstep.py: events in the documented schema, the stop flag, and how
it behaves without lockstep, with a stalled disk and in forked children."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from control import ROOT, Control, wait_for

MODULE = ROOT / "python" / "lockstep.py"

# docs/events.md: the fields of each kind.
FIELDS = {
    "init": {"program", "world_size", "seconds", "facts"},
    "phase": {"name"},
    "iteration": {"step", "epoch", "samples", "data", "compute", "communication"}
    | {"wait", "total"},
    "metric": {"step", "epoch", "values"},
    "epoch": {"epoch", "steps", "samples", "seconds"},
    "checkpoint": {"step", "path", "reason", "seconds"},
    "resource": {"resident_bytes", "cpu", "gpu_use", "gpu_memory_bytes"},
}
HEAD = {"v", "kind", "time", "rank", "node"}


def run(tmp_path, code, events=True, env=None, **options):
    path = tmp_path / "events.jsonl"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKSTEP_")}
    environment["PYTHONPATH"] = str(MODULE.parent)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment.pop("RANK", None)
    if events:
        environment["LOCKSTEP_EVENTS"] = str(path)
    environment.update(env or {})
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )
    assert done.returncode == 0, done.stderr
    if not path.exists():
        return done, []
    text = path.read_text()
    assert text.endswith("\n")
    return done, [json.loads(line) for line in text.splitlines()]


def check(events):
    """Every event has its head, and the fields of its kind and no others."""
    for event in events:
        assert event["v"] == 1 and event["time"] > 1e9, event
        assert set(event) - HEAD == FIELDS[event["kind"]], event
        if event["kind"] == "iteration":
            parts = sum(event[k] for k in ("data", "compute", "communication", "wait"))
            assert parts == pytest.approx(event["total"]), event


def test_every_kind_is_written_as_documented(tmp_path):
    code = """
import lockstep
lockstep.init("my training", {"device": "cpu", "cores": 2})
lockstep.phase("train")
lockstep.iteration(1, samples=16, data=0.1, compute=0.2)
lockstep.iteration(samples=16, data=0.1, communication=0.25, wait=0.05, total=1.0)
lockstep.metric({"loss": float("nan"), "odd": "text"}, accuracy=0.5)
lockstep.epoch()
lockstep.checkpoint("a/b.ckpt", reason="best", seconds=0.5)
lockstep.resource(resident_bytes=1e6, cpu=1.5)
"""
    env = {"RANK": "3", "WORLD_SIZE": "4"}
    _, events = run(tmp_path, code, env=env)
    check(events)
    assert [event["kind"] for event in events] == [
        "init",
        "phase",
        "iteration",
        "iteration",
        "metric",
        "epoch",
        "checkpoint",
        "resource",
    ]
    init, _, first, second, metric, epoch, checkpoint, _ = events
    assert init["rank"] == 3 and init["world_size"] == 4
    assert init["facts"] == {"device": "cpu", "cores": "2"}
    assert first["step"] == 1 and first["total"] == pytest.approx(0.3)
    assert second["step"] == 2 and second["compute"] == pytest.approx(0.6)
    assert metric["values"] == {"loss": None, "accuracy": 0.5}
    assert metric["step"] == 2
    assert epoch["epoch"] == 0 and epoch["steps"] == 2 and epoch["samples"] == 32
    assert epoch["seconds"] >= 0
    assert checkpoint["step"] == 2 and checkpoint["reason"] == "best"


def test_a_step_measures_its_parts(tmp_path):
    code = """
import time, lockstep
with lockstep.step(samples=8, epoch=1, data=0.5) as step:
    with step.data():
        time.sleep(0.02)
    with step.communication():
        time.sleep(0.03)
    with step.wait():
        time.sleep(0.01)
    time.sleep(0.02)
try:
    with lockstep.step():
        raise RuntimeError
except RuntimeError:
    pass
lockstep.iteration(samples=1)
"""
    _, events = run(tmp_path, code)
    check(events)
    first, second = events  # the step that raised is not there
    assert first["samples"] == 8 and first["epoch"] == 1
    assert 0.52 <= first["data"] < 5 and first["communication"] >= 0.03
    assert first["wait"] >= 0.01 and first["compute"] >= 0.02
    assert second["step"] == 2


def test_without_the_variable_nothing_happens(tmp_path):
    code = """
import lockstep
lockstep.init()
for i in range(100):
    with lockstep.step(samples=1):
        lockstep.metric(loss=1)
lockstep.epoch()
assert not lockstep.enabled() and not lockstep.stop_requested()
assert lockstep.flush() and lockstep.dropped() == 0
import sys
assert "torch" not in sys.modules and "lightning" not in sys.modules
"""
    _, events = run(tmp_path, code, events=False)
    assert events == []
    assert [p.name for p in tmp_path.iterdir()] == []


def test_a_stalled_disk_blocks_nobody(tmp_path):
    """The file is a pipe that nobody reads, as full as it gets."""
    code = """
import os, time, lockstep
reader = os.open("stalled", os.O_RDONLY | os.O_NONBLOCK)
os.environ["LOCKSTEP_EVENTS"] = "stalled"
lockstep._LAST_WORDS = 0.1
begin = time.monotonic()
for i in range(30000):
    lockstep.iteration(samples=1, total=0.1)
lockstep.metric(loss=1)
assert time.monotonic() - begin < 30
assert lockstep.dropped() > 10000, lockstep.dropped()
assert not lockstep.flush(0.1)
# What waits comes once there is room, whole.
text = b""
os.set_blocking(reader, True)
while b'"metric"' not in text:
    text += os.read(reader, 1 << 20)
import json
lines = text.decode().splitlines()
assert all(json.loads(line) for line in lines)
assert len(lines) == 30001 - lockstep.dropped()
"""
    os.mkfifo(tmp_path / "stalled")
    run(tmp_path, code)


def test_a_place_that_cannot_be_written_harms_nobody(tmp_path):
    code = """
import lockstep
lockstep._LAST_WORDS = 0.1
lockstep.init()
lockstep.iteration(samples=1)
print("fine")
"""
    env = {"LOCKSTEP_EVENTS": str(tmp_path / "absent" / "events.jsonl")}
    done, _ = run(tmp_path, code, env=env)
    assert done.stdout == "fine\n"


def test_forked_children_are_silent_and_can_be_ended(tmp_path):
    code = """
import os, signal, lockstep
lockstep.init()
there, here = os.pipe()
child = os.fork()
if child == 0:
    lockstep.metric(who=2)
    os.write(here, b"x")
    while True:
        signal.pause()
os.read(there, 1)
os.kill(child, signal.SIGTERM)
_, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
lockstep.metric(who=1)
"""
    _, events = run(tmp_path, code)
    check(events)
    assert [e["values"] for e in events if e["kind"] == "metric"] == [{"who": 1.0}]


def test_threads_write_whole_lines(tmp_path):
    code = """
import threading, lockstep
def work(me):
    for i in range(500):
        lockstep.metric({"loss": i}, step=me)
threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    _, events = run(tmp_path, code)
    check(events)
    assert len(events) == 2000
    for me in range(4):
        values = [e["values"]["loss"] for e in events if e["step"] == me]
        assert values == sorted(values) and len(values) == 500


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_the_stop_signal_sets_the_flag_and_calls_who_was_there(tmp_path, number):
    code = f"""
import os, signal, lockstep
seen = []
signal.signal({int(number)}, lambda n, f: seen.append(n))
lockstep.init(stop_signal={int(number)})
lockstep.init(stop_signal={int(number)})
assert not lockstep.stop_requested()
os.kill(os.getpid(), {int(number)})
assert lockstep.stop_requested()
assert seen == [{int(number)}], seen
"""
    run(tmp_path, code)


@pytest.mark.parametrize("name", ["SIGUSR2", "USR2", str(int(signal.SIGUSR2))])
def test_the_flag_works_without_init_and_reads_the_jobs_signal(tmp_path, name):
    code = """
import os, signal, lockstep
assert not lockstep.stop_requested()
os.kill(os.getpid(), signal.SIGUSR2)
assert lockstep.stop_requested()
"""
    run(tmp_path, code, env={"LOCKSTEP_STOP_SIGNAL": name})


def test_old_pythons_can_read_it():
    compile(MODULE.read_text(), str(MODULE), "exec")
    tree = __import__("ast").parse(MODULE.read_text(), feature_version=(3, 8))
    names = {
        alias.name.split(".")[0]
        for node in __import__("ast").walk(tree)
        if isinstance(node, __import__("ast").Import)
        for alias in node.names
    }
    assert names <= set(sys.stdlib_module_names), names


SCRIPT = """
import os, sys, time
import lockstep
lockstep.init("tiny", {"device": "cpu"})
rank = int(os.environ["RANK"])
for epoch in range(2):
    lockstep.phase("train")
    for i in range(3):
        with lockstep.step(samples=4, epoch=epoch) as step:
            with step.communication():
                pass
            time.sleep(0.01 * (1 + rank))
        lockstep.metric(loss=1.0 + rank)
    lockstep.epoch(epoch)
path = os.path.join(os.environ["LOCKSTEP_CHECKPOINTS"], "last.txt")
if rank == 0:
    open(path, "w").write("state")
    lockstep.checkpoint(path, reason="final")
while len(sys.argv) > 1 and not lockstep.stop_requested():
    time.sleep(0.01)
print("stopped" if lockstep.stop_requested() else "ended")
"""


@pytest.fixture
def control(tmp_path):
    one = Control(tmp_path)
    yield one
    one.end_all()


def test_lockstep_reads_what_a_script_writes(control):
    control.script("train.py", SCRIPT)
    result = control.call(
        "run", "--procs", "2", "--output", "json", "--", sys.executable, "train.py"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["steps"] == 6 and report["epochs"] == 2 and report["samples"] == 48
    assert report["program"] == "tiny" and report["world_size"] == 2
    assert report["metrics"]["loss"] == pytest.approx(1.5)  # the mean over ranks
    assert report["samples_per_second"] > 0
    assert len(report["ranks"]) == 2
    run = control.run()
    rows = (run.path / "timing.csv").read_text().splitlines()
    assert len(rows) == 1 + 12
    check([e for e in run.events() if e["rank"] >= 0 and e["kind"] in FIELDS])
    skipped = (run.path / "logbook.md").read_text()
    assert "could not be read" not in skipped
    control.assert_nothing_left()


def test_lockstep_stop_reaches_the_flag(control):
    control.script("train.py", SCRIPT)
    process = control.start(
        "run", "--procs", "2", "--", sys.executable, "train.py", "wait"
    )

    def trained():
        runs = control.runs()
        path = runs[0].path / "events.jsonl" if runs else pathlib.Path("/nowhere")
        return path.exists() and path.read_text().count('"epoch":1,"steps"') == 2

    wait_for(trained)
    stopped = control.call("stop", "last")
    assert stopped.returncode == 0, stopped.stderr
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in control.run().log(0) and "stopped" in control.run().log(1)
    control.assert_nothing_left()


def test_ranks_find_the_module_and_nothing_is_shadowed(control):
    code = "import lockstep, os; print(lockstep.__file__, os.environ['LOCKSTEP_PYTHON'])"
    result = control.call("run", "--", sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    file, folder = control.run().log(0).split()
    assert file == f"{folder}/lockstep.py"
    assert pathlib.Path(file).read_text() == MODULE.read_text()
    assert os.listdir(folder) == ["lockstep.py"]
    mine = control.folder / "mine"
    mine.mkdir()
    (mine / "lockstep.py").write_text("")
    run = ["run", "--name", "second", "--", sys.executable, "-c", code]
    result = control.call(*run, env={"PYTHONPATH": str(mine)})
    assert result.returncode == 0, result.stderr
    second = [one for one in control.runs() if "second" in one.path.name]
    assert second[0].log(0).split()[0] == str(mine / "lockstep.py")


@pytest.mark.parametrize("name", ["SIGUSR1", "USR1", str(int(signal.SIGUSR1))])
def test_ranks_know_the_stop_signal(control, name):
    control.script("train.py", SCRIPT)
    control.script(
        "job.yaml",
        f"run: [{sys.executable}, train.py, wait]\nstop_signal: {name}\ngrace: 30s\n",
    )
    process = control.start("run", "job.yaml")

    def ready():
        runs = control.runs()
        path = runs[0].path / "events.jsonl" if runs else pathlib.Path("/nowhere")
        return path.exists() and '"checkpoint"' in path.read_text()

    wait_for(ready)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert "stopped" in control.run().log(0)
