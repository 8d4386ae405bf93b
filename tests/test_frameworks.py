"""Real packages under lockstep: a PyTorch DDP script and a Lightning script,
as people write them."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from control import ROOT, Control, wait_for

pytest.importorskip("torch")

PATIENCE = 180  # importing torch takes long on a busy machine
LINE = re.compile(
    r"rank (\d+) of (\d+) on node (\d+): sum of ranks (\d+), equal weights (\w+)"
)


@pytest.fixture
def control(tmp_path):
    one = Control(tmp_path)
    one.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    # `python3` of the examples is the one that has the packages.
    folder = os.path.dirname(sys.executable)
    one.environment["PATH"] = folder + ":" + one.environment["PATH"]
    yield one
    one.end_all()


def said(run, ranks):
    """What each rank printed about the group."""
    found = {}
    for rank in range(ranks):
        match = LINE.search(run.log(rank))
        assert match, run.log(rank)
        found[int(match[1])] = match
    return found


def check_group(run, ranks):
    found = said(run, ranks)
    assert sorted(found) == list(range(ranks))
    for match in found.values():
        assert int(match[2]) == ranks
        assert int(match[4]) == sum(range(ranks))
        assert match[5] == "True"


def example(control, name):
    """The job file as it is, from the root of the repository."""
    job = ROOT / "examples" / name
    words = ("run", job, "--workdir", ROOT, "--output", "json")
    result = control.call(*words, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_plain_ddp(control):
    report = example(control, "ddp.yaml")
    check_group(control.run(), 2)
    # Read from its output by the job's pattern.
    assert report["steps"] == 50 and report["metrics"]["loss"] < 0.1
    sums = {re.search(r"checksum (\S+)", control.run().log(r))[1] for r in (0, 1)}
    assert len(sums) == 1
    control.assert_nothing_left()


def test_lightning_ddp(control):
    """World size and ranks come from lockstep's environment; the callback's
    events are read."""
    pytest.importorskip("lightning")
    report = example(control, "lightning_ddp.yaml")
    run = control.run()
    check_group(run, 2)
    # 256 samples, 2 ranks, 16 a batch: 8 steps an epoch.
    assert report["steps"] == 16 and report["epochs"] == 2
    assert report["samples"] == 512
    assert report["program"] == "Line (Lightning)"
    assert 0 < report["metrics"]["loss"] < 1
    kinds = {}
    for event in run.events():
        if event["rank"] >= 0:
            kinds.setdefault(event["kind"], []).append(event)
    assert len(kinds["iteration"]) == 32
    for event in kinds["iteration"]:
        parts = event["data"] + event["compute"]
        assert parts == pytest.approx(event["total"]) and event["samples"] == 16
    epochs = {(e["rank"], e["epoch"]): e for e in kinds["epoch"]}
    assert sorted(epochs) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(e["steps"] == 8 and e["samples"] == 128 for e in epochs.values())
    assert {e["name"] for e in kinds["phase"]} == {"train"}
    (saved,) = {e["path"] for e in kinds["checkpoint"][-1:]}
    assert os.path.exists(saved) and "step=16" in saved
    control.assert_nothing_left()


def test_lightning_stops_at_a_step_with_a_checkpoint(control):
    pytest.importorskip("lightning")
    process = control.start(
        *("run", "--procs", "2", "--"),
        *(sys.executable, ROOT / "examples" / "lightning_ddp.py"),
        env={"EPOCHS": "1000000"},
    )

    def training():
        runs = control.runs()
        path = runs and runs[0].path / "events.jsonl"
        return path and path.exists() and '"iteration"' in path.read_text()

    wait_for(training, PATIENCE, lambda: str(process.poll()))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    run = control.run()
    (saved,) = [
        event
        for event in run.events()
        if event["kind"] == "checkpoint" and event["reason"] == "signal"
    ]
    assert saved["step"] > 0 and os.path.exists(saved["path"])
    # Both ranks stopped at the same step and came to the end of the script.
    check_group(run, 2)
    steps = {re.search(r"steps (\d+)", run.log(rank))[1] for rank in (0, 1)}
    assert len(steps) == 1
    assert saved["path"] == str(run.path / "checkpoints" / "last.ckpt")
    control.assert_nothing_left()


def test_the_callback_fits_the_package_in_use():
    """Both names are installed; the one that the program imported counts."""
    pytest.importorskip("lightning")
    code = "import pytorch_lightning, lockstep\n"
    code += "base = pytorch_lightning.Callback\n"
    code += "assert issubclass(lockstep.LightningCallback, base)\n"
    code += "import sys; assert 'lightning.pytorch' not in sys.modules\n"
    path = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run([sys.executable, "-c", code], env=path, check=True, timeout=PATIENCE)
