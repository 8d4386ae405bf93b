"""Runs on this machine that are left alone, and coming back to them."""

import json
import os
import pty
import shutil
import signal

import pytest
from control import Control, wait_for


@pytest.fixture
def control(tmp_path):
    control = Control(tmp_path)
    yield control
    control.end_all()


STUBBORN = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.1; done"
POLITE = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
UNTIL = 'echo ready; while [ ! -e finish ]; do sleep 0.05; done; printf "the end"'


def detach(control, *words, **options):
    done = control.call("run", "--detach", *words, **options)
    assert done.returncode == 0, done.stderr
    assert f"lockstep attach {done.stdout.strip()}" in done.stderr
    (run,) = [one for one in control.runs() if one.path.name == done.stdout.strip()]
    return run


def ready(run):
    log = run.path / "ranks" / "0.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text())


def attach(control):
    """One that shows the run, so that it takes signals as it should."""
    attached = control.start("attach", "--from-start")
    assert "ready" in attached.stderr.readline()
    return attached


def states(control):
    listed = json.loads(control.call("--output", "json", "ps").stdout)
    return {one["id"]: one["state"] for one in listed}


def test_detach_and_attach_to_the_end(control):
    words = ["--procs", "2", "--price", "3.60", "--", "bash", "-c", UNTIL]
    run = detach(control, *words)
    assert states(control) == {run.path.name: "running"}
    ready(run)
    attached = control.start("attach", run.path.name, "--from-start", "--ranks", "all")
    followed = control.start("logs", "-f", "--rank", "1", "last")
    (control.folder / "finish").write_text("")
    report, shown = attached.communicate(timeout=60)
    assert attached.returncode == 0, shown
    assert "[r0] ready" in shown and "[r1] the end" in shown
    assert "done" in report and "cost" in report
    assert followed.communicate(timeout=60)[0] == "ready\nthe end\n"
    assert run.state()["exit_code"] == 0 and run.state()["launcher"] == "local"
    assert (run.path / "logbook.md").exists() and (run.path / "job.yaml").exists()
    assert states(control) == {run.path.name: "done"}
    control.assert_nothing_left()


def test_a_failure_is_told_to_who_comes_later(control):
    run = detach(control, "--", "bash", "-c", "echo last words; exit 5")
    wait_for(lambda: (run.path / "state.json").exists() and run.state()["ended"])
    done = control.call("attach", "last")
    assert done.returncode == 1
    assert "rank 0 failed on" in done.stderr and "exit code 5" in done.stderr
    assert "| last words" in done.stderr
    control.assert_nothing_left()


def test_stop_is_graceful_and_now_is_not(control):
    polite = detach(control, "--", "bash", "-c", POLITE)
    ready(polite)
    done = control.call("stop", "last")
    assert done.returncode == 0 and "stopped" in done.stdout
    assert polite.log(0).endswith("bye\n") and polite.state()["exit_code"] == 130
    stubborn = detach(control, "--grace", "1h", "--", "bash", "-c", STUBBORN)
    ready(stubborn)
    done = control.call("cancel", "--now", stubborn.path.name)
    assert done.returncode == 0 and stubborn.state()["state"] == "stopped"
    assert "is not running" in control.call("stop", "last").stderr
    control.assert_nothing_left()


def test_ctrl_c_of_attach_stops_the_run(control):
    run = detach(control, "--grace", "1h", "--", "bash", "-c", STUBBORN)
    ready(run)
    attached = attach(control)
    attached.send_signal(signal.SIGINT)
    wait_for(lambda: "asked" in run.log(0))
    attached.send_signal(signal.SIGINT)
    _, shown = attached.communicate(timeout=60)
    assert attached.returncode == 130, shown
    control.assert_nothing_left()


def test_closing_the_terminal_leaves_a_detached_run(control):
    """The terminal of the one who started it, and of the one who watches."""
    main, side = pty.openpty()
    words = control.command("run", "--detach", "--", "bash", "-c", UNTIL)
    pid = os.fork()
    if pid == 0:
        os.login_tty(side)
        os.chdir(control.folder)
        os.execve(words[0], words, control.environment)
    os.close(side)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(main)
    (run,) = control.runs()
    ready(run)
    attached = attach(control)
    attached.send_signal(signal.SIGHUP)
    attached.communicate(timeout=60)
    assert attached.returncode == 0
    assert run.state()["state"] == "running"
    (control.folder / "finish").write_text("")
    wait_for(lambda: run.state()["state"] == "done")
    control.assert_nothing_left()


def test_the_same_name_twice(control):
    first = detach(control, "--name", "mine", "--", "bash", "-c", "echo ready; echo one")
    ready(first)
    second = detach(control, "--name", "mine", "--", "bash", "-c", "echo ready; echo two")
    ready(second)
    assert first.path != second.path
    wait_for(lambda: set(states(control).values()) == {"done"})
    assert control.call("logs", "mine").stdout == "ready\ntwo\n"
    assert control.call("logs", first.path.name).stdout == "ready\none\n"


def test_secrets_of_a_detached_run(control):
    control.script("job.yaml", "run: 'echo ${#TOKEN} ready'\nsecrets: {TOKEN: null}\n")
    run = detach(control, "job.yaml", env={"TOKEN": "hush-hush"})
    wait_for(lambda: (run.path / "state.json").exists() and run.state()["ended"])
    assert run.log(0) == "9 ready\n"
    for path in run.path.rglob("*"):
        assert not path.is_file() or "hush-hush" not in path.read_text(errors="replace")


def test_secrets_are_masked_by_who_does_not_know_them(control):
    control.script("job.yaml", "run: 'echo ready; echo key $TOKEN'\nsecrets: {TOKEN: null}\n")
    run = detach(control, "job.yaml", env={"TOKEN": "hush-hush\nsecond-line"})
    wait_for(lambda: (run.path / "state.json").exists() and run.state()["ended"])
    assert "hush-hush" in run.log(0)
    logs = control.call("logs")
    assert logs.stdout == "ready\nkey *** ***\n"
    attached = control.call("attach", "--from-start")
    assert "key *** ***" in attached.stderr
    assert "hush" not in attached.stderr + attached.stdout


def test_a_run_whose_directory_was_deleted_ends(control):
    run = detach(control, "--", "bash", "-c", POLITE)
    ready(run)
    listed = json.loads(control.call("--output", "json", "ps").stdout)
    assert listed[0]["exit_code"] is None  # it has none yet
    shutil.rmtree(run.path)
    control.assert_nothing_left()
    assert not run.path.exists()


def test_a_killed_head_is_told(control):
    run = detach(control, "--", "bash", "-c", POLITE)
    ready(run)
    os.kill(run.state()["pid"], signal.SIGKILL)
    control.assert_nothing_left()
    assert states(control) == {run.path.name: "lost"}
    done = control.call("attach")
    assert done.returncode == 3 and "gone" in done.stderr
