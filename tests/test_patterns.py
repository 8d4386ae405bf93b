"""What `iterations` and `epochs` patterns read, and what ranks tell again after a restart."""

import json
import sys

import pytest

from control import without_leftovers


@pytest.fixture
def control(tmp_path):
    yield from without_leftovers(tmp_path)


def test_patterns_read_programs_that_write_no_events(control):
    script = (
        "for s in 1 2 3; do echo step $s loss 0.$s; done; "
        "echo epoch 0 finished accuracy 0.75"
    )
    control.script(
        "job.yaml",
        f"run: {script!r}\n"
        "iterations: {pattern: 'step (?<step>\\d+) loss (?<loss>[\\d.]+)'}\n"
        "epochs: {pattern: 'epoch (?<epoch>\\d+) finished accuracy (?<accuracy>[\\d.]+)'}\n",
    )
    result = control.call("run", "job.yaml", "--output", "json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["steps"] == 3
    assert report["metrics"] == {"loss": 0.3, "accuracy": 0.75}
    kinds = [event["kind"] for event in control.run().events()]
    assert kinds.count("iteration") == 3 and kinds.count("epoch") == 1
    assert (control.run().path / "metrics.csv").read_text().startswith("step,epoch,")


def test_a_new_generation_takes_the_place_of_the_old_ones_metrics(control):
    control.script(
        "train.py",
        """
import os, lockstep
again = int(os.environ["LOCKSTEP_GENERATION"])
rank = int(os.environ["RANK"])
lockstep.init("resumes")
for step in range(3, 9) if again else range(1, 6):
    lockstep.iteration(step, samples=1, total=0.1)
    lockstep.metric(loss=100 * again + step + rank)
lockstep.flush()
os._exit(0 if again else 1)
""",
    )
    result = control.call(
        "run", "--procs", 2, "--retries", 1, "--", sys.executable, "train.py"
    )
    assert result.returncode == 0, result.stderr
    table = (control.run().path / "metrics.csv").read_text().splitlines()[1:]
    steps = {int(line.split(",")[0]): float(line.split(",")[2]) for line in table}
    assert steps == {1: 1.5, 2: 2.5} | {s: 100.5 + s for s in range(3, 9)}


def test_a_pattern_may_match_two_lines_of_a_step(control):
    script = (
        "for s in 100 200 300; do "
        "echo step $s loss 0.5; echo step $s val_loss 0.7; done"
    )
    control.script(
        "job.yaml",
        f"run: {script!r}\n"
        "iterations: {pattern: 'step (?<step>\\d+) "
        "((loss (?<loss>[\\d.]+))|(val_loss (?<val_loss>[\\d.]+)))'}\n",
    )
    result = control.call("run", "job.yaml", "--output", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 300
    table = (control.run().path / "metrics.csv").read_text()
    assert table == (
        "step,epoch,loss,val_loss\n100,0,0.5,0.7\n200,0,0.5,0.7\n300,0,0.5,0.7\n"
    )


def test_a_pattern_reads_each_update_of_a_progress_bar(control):
    script = 'for i in 1 2 3 4; do printf "\\rstep %d/4 loss 0.%d" $i $i; done; echo'
    control.script(
        "job.yaml",
        f"run: |\n  {script}\n"
        "iterations: {pattern: 'step (?<step>\\d+)/4 loss (?<loss>[\\d.]+)'}\n",
    )
    result = control.call("run", "job.yaml", "--output", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 4
    steps = [e["step"] for e in control.run().events() if e["kind"] == "iteration"]
    assert steps == [1, 2, 3, 4]
    assert (control.run().path / "ranks" / "0.log").read_bytes().count(b"\r") == 4


def test_a_pattern_reads_the_steps_of_a_program_that_resumed(control):
    script = (
        "if [ $LOCKSTEP_GENERATION = 0 ]; then from=1; else from=4; fi; "
        "for s in $(seq $from $((from + 4 - $LOCKSTEP_GENERATION * 2))); do "
        "echo step $s loss $LOCKSTEP_GENERATION.$s; done; "
        "[ $LOCKSTEP_GENERATION = 1 ]"
    )
    control.script(
        "job.yaml",
        f"run: {script!r}\n"
        "iterations: {pattern: 'step (?<step>\\d+) loss (?<loss>[\\d.]+)'}\n",
    )
    result = control.call("run", "job.yaml", "--retries", 1, "--output", "json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 6
    steps = [e["step"] for e in control.run().events() if e["kind"] == "iteration"]
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6]
    table = (control.run().path / "metrics.csv").read_text().splitlines()[1:]
    assert table == ["1,0,0.1", "2,0,0.2", "3,0,0.3", "4,0,1.4", "5,0,1.5", "6,0,1.6"]
