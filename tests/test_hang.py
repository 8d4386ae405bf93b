"""A rank that hangs is named, with where it sits; the policy says what follows."""

import os
import pathlib
import re
import signal
import sys
import time

import pytest

import trainer
from control import Control, wait_for
from trainer import VIT

TRAIN = os.environ.get("LOCKSTEP_TRAINER_BIN", trainer.TRAIN)
CGROUP = pathlib.Path("/sys/fs/cgroup/memory")
SLACK = 5  # seconds, for a machine with other work

PROGRAM = pathlib.Path(__file__).with_name("synchronous.py")


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    made.script("train.py", PROGRAM.read_text())
    yield made
    left = made.left()
    made.end_all()
    assert not left, left


def start(control, how, policy, *options, ranks=3, hanging=1, steps=60):
    variables = {"HOW": how, "WHO": str(hanging), "AT": "20", "STEPS": str(steps)}
    text = (
        f"name: hang\nrun: [{sys.executable}, train.py]\nprocs_per_node: {ranks}\n"
        f"hang: {{policy: {policy}, after: 2s}}\nenvs: {variables}\n"
    )
    control.script("job.yaml", text)
    return control.start("run", "job.yaml", *options)


def test_stopped_rank_is_named_and_may_go_on(control):
    process = start(control, "stop", "report")
    said = []
    for line in process.stderr:
        said.append(line)
        if "hangs on" in line:
            break
    verdict = said[-1]
    assert re.search(r"rank 1 hangs on \S+ \(pid \d+\): no step for", verdict), said
    assert "at step 19 as all others; stopped" in verdict
    pid = int(re.search(r"pid (\d+)", verdict).group(1))
    os.kill(pid, signal.SIGCONT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "rank 1 goes on" in rest
    assert "hangs" not in rest


def test_sleeping_rank_shows_its_python_stack_and_the_run_stops(control):
    process = start(control, "sleep", "stop", hanging=2)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"rank 2 on \S+ \(pid \d+\) seems to be the cause: no step", err), err
    assert "nanosleep" in err
    assert re.search(r"\| read_batch \(.*train.py:\d+\)", err), err
    assert re.search(r"\| .*nanosleep", err), err  # the native one, by gdb
    events = control.run().events()
    assert [event for event in events if event["kind"] == "decision"]
    assert control.run().state()["state"] == "failed"


def test_deadlocked_rank_is_restarted(control):
    process = start(control, "lock", "restart", "--retries", "1", ranks=2, hanging=0)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "restart 1 of 1" in err
    assert re.search(r"\| read_batch \(.*train.py:\d+\)", err), err
    assert control.run().state()["generation"] == 1


def test_run_without_steps_is_left_alone(control):
    control.script("job.yaml", "run: sleep 4\nhang: {policy: stop, after: 1s}\n")
    result = control.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not pathlib.Path(TRAIN).exists(), reason="lockstep-train is not built")
def test_rank_killed_before_the_group_formed(control):
    """The others wait for it as long as trainer.timeout says; not under lockstep."""
    script = f"[ $RANK = 1 ] && sleep 1 && kill -9 $$; exec {TRAIN} {' '.join(VIT)}"
    process = control.start("run", "--procs", "3", "--", "bash", "-c", script)
    told = None
    said = []
    for line in process.stderr:
        said.append(line)
        if "rank 1 failed on" in line and "signal 9" in line:
            told = time.monotonic()
    assert process.wait(60) == 1
    assert told, said
    assert time.monotonic() - told < 3 + SLACK, said
    process.communicate()


@pytest.mark.skipif(
    not (CGROUP / "memory.limit_in_bytes").exists() or not os.access(CGROUP, os.W_OK),
    reason="needs a writable cgroup v1 of memory",
)
def test_out_of_memory_below_a_shell_is_told_apart(control):
    group = CGROUP / control.marker
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("100M")
        eat = "blocks = []\nwhile True: blocks.append(b'x' * (8 << 20))\n"
        control.script("eat.py", eat)
        process = control.start(
            "run", "--", "bash", "-c", f"{sys.executable} eat.py; exit $?",
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1
        assert re.search(r"rank 0 failed on \S+ \(pid \d+\): out of memory", err), err
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()
