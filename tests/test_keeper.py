"""No process is left, whoever is killed: the runner, the keeper, or nobody."""

import os
import pty
import random
import select
import signal
import subprocess
import sys
import time

import pytest

from control import Control, keepers, wait_for

# A rank that ignores SIGTERM and has two kinds of children: one in its process
# group, one that moved to a session of its own and lost its parent.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("daemon", flush=True)
        time.sleep(1000)
    os._exit(0)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    made.script("stubborn.py", STUBBORN)
    yield made
    made.end_all()


def ready(control, ranks):
    def all_ready():
        runs = control.runs()
        if not runs:
            return False
        for rank in range(ranks):
            path = runs[0].path / "ranks" / f"{rank}.log"
            if not path.exists() or {"ready", "daemon"} - set(path.read_text().split()):
                return False
        return True

    wait_for(all_ready)


def start(control, *options, **more):
    process = control.start(
        "run", "--procs", 2, "--grace", "500ms", *options, "--", sys.executable, "stubborn.py",
        **more,
    )
    ready(control, 2)
    # Two ranks, each with a sleep and a daemon, the keeper and the runner.
    # The parent of a daemon may still be on its way out.
    wait_for(lambda: len(control.left()) == 8, message=lambda: f"{control.left()}")
    return process


def test_killed_runner_leaves_nothing(control):
    process = start(control)
    process.kill()
    process.wait()
    control.assert_nothing_left()
    process.communicate()


def test_killed_keeper_leaves_nothing_and_is_told(control):
    process = start(control)
    [keeper] = keepers(control)
    os.kill(keeper, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "keeper" in err
    control.assert_nothing_left()


def test_keeper_that_gets_sigterm_ends_everything(control):
    process = start(control)
    [keeper] = keepers(control)
    os.kill(keeper, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 3
    control.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_everything(control, number):
    process = start(control)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not control.left()
    assert control.run().state()["state"] == "stopped"


def test_second_interrupt_kills_at_once(control):
    process = control.start(
        "run", "--grace", "1000s", "--", sys.executable, "stubborn.py"
    )
    ready(control, 1)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: b"stopping" in peek(process))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not control.left()


def peek(process):
    """What stderr has so far, kept on the object."""
    seen = getattr(process, "seen", b"")
    if select.select([process.stderr], [], [], 0)[0]:
        seen += os.read(process.stderr.fileno(), 65536)
    process.seen = seen
    return seen


def test_failure_ends_stubborn_ranks(control):
    process = start(control)
    ranks = [pid for pid, line in control.left() if b"stubborn" in line]
    children = {}
    for pid in ranks:
        with open(f"/proc/{pid}/stat") as stat:
            children[pid] = int(stat.read().rsplit(")", 1)[1].split()[1])
    [keeper] = keepers(control)
    leader = next(pid for pid, parent in children.items() if is_rank(pid, keeper))
    os.kill(leader, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "signal 9 (Killed)" in err
    assert not control.left()


def is_rank(pid, keeper):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return int(fields[1]) == keeper and int(fields[2]) == pid and int(fields[3]) != pid


def test_leftovers_of_a_rank_that_ended_well_are_swept(control):
    script = "setsid sleep 1000 & setsid --fork sleep 1000; exit 0"
    result = control.call("run", "--procs", 2, "--", "bash", "-c", script)
    assert result.returncode == 0
    assert not control.left()


def test_stopped_ranks_end(control):
    """SIGTERM alone would wait until somebody continues them."""
    process = control.start(
        "run", "--grace", "500ms", "--", "bash", "-c", "echo ready daemon; kill -STOP $$"
    )
    ready(control, 1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not control.left()


def test_interrupt_during_setup(control):
    control.script("setup.sh", "echo ready daemon\nsleep 1000\n")
    process = control.start("run", "--setup", "bash setup.sh", "--", "true")
    log = lambda: control.runs() and (control.run().path / "ranks" / "setup.log")
    wait_for(lambda: log() and log().exists() and "ready" in log().read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not control.left()


def in_terminal(control, *words):
    """lockstep as a person starts it: its own session on a pty."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(control.folder)
        os.execve(control.command()[0], control.command(*words), control.environment)
    return pid, terminal


def read_until(terminal, text, seconds=60):
    seen = b""
    end = time.monotonic() + seconds
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                break
    assert text in seen, seen
    return seen


def drain(terminal):
    seen = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:
            return seen
        if not block:
            return seen
        seen += block


def test_ctrl_c_in_a_terminal(control):
    script = (
        "trap 'echo saved; exit 143' TERM; trap 'echo INT' INT; echo ready daemon; "
        "while :; do sleep 0.05; done"
    )
    pid, terminal = in_terminal(control, "run", "--procs", "2", "--", "bash", "-c", script)
    ready(control, 2)
    os.write(terminal, b"\x03")
    seen = drain(terminal)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130, seen
    assert not control.left()
    # The ranks got our stop signal, not the terminal's.
    for rank in range(2):
        assert "saved" in control.run().log(rank) and "INT" not in control.run().log(rank)


def test_closed_terminal_ends_everything(control):
    pid, terminal = in_terminal(
        control, "run", "--grace", "500ms", "--", sys.executable, "stubborn.py"
    )
    ready(control, 1)
    os.close(terminal)
    os.waitpid(pid, 0)
    control.assert_nothing_left()


EVENTS = """
import json, os, sys, time
with open(os.environ["LOCKSTEP_EVENTS"], "a") as events:
    def emit(**fields):
        events.write(json.dumps({"v": 1, "time": time.time(), "rank": 0, "node": "n", **fields}) + "\\n")
        events.flush()
    emit(kind="init", program="p", world_size=1, seconds=0, facts={"total_steps": "1000"})
    step = 0
    while not os.path.exists("enough"):
        step += 1
        emit(kind="iteration", step=step, epoch=0, samples=8, data=0, compute=0.01,
             communication=0, wait=0, total=0.01)
        emit(kind="metric", step=step, epoch=0, values={"loss": 0.5})
        time.sleep(0.01)
"""


def test_progress_is_redrawn_on_a_terminal(control):
    control.script("events.py", EVENTS)
    pid, terminal = in_terminal(
        control, "run", "--price", "1", "--", sys.executable, "events.py"
    )
    seen = read_until(terminal, b"eta ")
    (control.folder / "enough").write_text("")
    seen += drain(terminal)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\r\x1b[K" in seen
    for part in (b"epoch 0", b"/1000", b"loss 0.5", b"samples/s", b"$0."):
        assert part in seen, seen


def test_progress_is_plain_elsewhere(control):
    control.script("events.py", EVENTS)
    process = control.start("run", "--", sys.executable, "events.py")
    wait_for(lambda: b"/1000" in peek(process))
    (control.folder / "enough").write_text("")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b" not in process.seen and "\x1b" not in err and "\r" not in err


# A few rounds here, many in `make soak`.
ROUNDS = 100 if os.environ.get("LOCKSTEP_SOAK") else 6


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_random_kills_leave_nothing(control, seed):
    """SIGKILL to any one process of the run, at any moment of its life."""
    choose = random.Random(seed)
    process = control.start(
        "run", "--procs", 3, "--grace", "300ms", "--", sys.executable, "stubborn.py"
    )
    if choose.random() < 0.5:
        ready(control, 3)
    else:
        count = choose.randint(1, 8)
        wait_for(lambda: len(control.left()) >= min(count, 2))
    victims = [pid for pid, _ in control.left()]
    victim = choose.choice(victims)
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        pass
    # A daemon that a rank lost is no failure: then somebody must end the run.
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    control.assert_nothing_left()
