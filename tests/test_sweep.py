"""lockstep sweep: the grid, the files by their names, resuming, failures apart
from the means, one budget over all, and Ctrl-C."""

import csv
import json
import os
import pathlib
import signal
import statistics

import pytest

from control import ROOT, Control, wait_for

# Writes epoch events as python/lockstep.py would; quick to start. What it does
# is told by files beside it: fail-N and hang-N for a world of N ranks, slow.
PROGRAM = r"""#!/bin/bash
# rank seconds of epoch 0: 0.5 + rank / 10
batch=$1
now=$(date +%s.%N)
event() {
  echo "{\"v\":1,\"kind\":\"$1\",\"time\":$now,\"rank\":$RANK,\"node\":\"n\",$2}"
}
samples=$((64 / WORLD_SIZE))
{
  event iteration "\"step\":1,\"epoch\":0,\"samples\":$samples,\"data\":0,\"compute\":0.$RANK,\"communication\":0,\"wait\":0,\"total\":0.$RANK"
  event epoch "\"epoch\":0,\"steps\":1,\"samples\":$samples,\"seconds\":0.$((5 + RANK))"
  event epoch "\"epoch\":1,\"steps\":1,\"samples\":$samples,\"seconds\":9"
} >>"$LOCKSTEP_EVENTS"
echo "batch $batch lr $2 world $WORLD_SIZE"
if [ -e "fail-$WORLD_SIZE" ] && [ "$RANK" = 1 ]; then
  echo "out of luck" >&2
  exit 7
fi
if [ -e "hang-$WORLD_SIZE" ]; then
  touch hanging
  exec sleep 1000
fi
if [ -e slow ]; then
  exec sleep 0.1
fi
exit 0
"""

JOB = "name: tiny\nrun: ./program {batch_size} {lr}\n"


@pytest.fixture
def control(tmp_path):
    one = Control(tmp_path)
    one.script("program", PROGRAM)
    one.script("job.yaml", JOB)
    yield one
    one.end_all()


def sweep(control, *words, job="job.yaml", code=0, **options):
    words = words or ("--procs", "1,2", "--repeat", "2", "batch_size=16", "lr=0.1")
    result = control.call(
        "sweep", job, *words, "--out", "out", "--output", "json", timeout=120, **options
    )
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout) if result.stdout else None


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def journal(control):
    lines = (control.folder / "out" / "repeats.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_files_are_named_and_filled_as_documented(control):
    result = sweep(
        control, "--procs", "1,2", "--repeat", "2", "batch_size=16,32", "lr=0.1"
    )
    out = control.folder / "out"
    names = sorted(p.name for p in out.glob("nnode-*.csv"))
    assert names == [
        "nnode-1_nproc-1_batch_size-16.csv",
        "nnode-1_nproc-1_batch_size-32.csv",
        "nnode-1_nproc-2_batch_size-16.csv",
        "nnode-1_nproc-2_batch_size-32.csv",
    ]
    lines = (out / names[2]).read_text().splitlines()
    assert lines[0] == "total,t0,t1" and len(lines) == 3
    for line in lines[1:]:
        total, first, second = map(float, line.split(","))
        # By rank, epoch 0 only.
        assert total > 0 and first == 0.5 and second == 0.6
    table = rows(out / "speedup.csv")
    header = (out / "speedup.csv").read_text().splitlines()[0]
    assert header == "nodes,procs,batch_size,mean,ci95,speedup,efficiency"
    # Baselines first.
    assert [(r["procs"], r["batch_size"]) for r in table] == [
        ("1", "16"),
        ("1", "32"),
        ("2", "16"),
        ("2", "32"),
    ]
    means = {}
    for row in table:
        file = f"nnode-1_nproc-{row['procs']}_batch_size-{row['batch_size']}.csv"
        totals = [float(one["total"]) for one in rows(out / file)]
        means[row["procs"], row["batch_size"]] = statistics.mean(totals)
        assert float(row["mean"]) == pytest.approx(statistics.mean(totals))
        # Student's t with one degree of freedom.
        error = statistics.stdev(totals) / 2**0.5
        assert float(row["ci95"]) == pytest.approx(12.7062047 * error, rel=1e-5)
        speedup = means["1", row["batch_size"]] / means[row["procs"], row["batch_size"]]
        assert float(row["speedup"]) == pytest.approx(speedup)
        efficiency = speedup / int(row["procs"])
        assert float(row["efficiency"]) == pytest.approx(efficiency)
    svg = (out / "speedup.svg").read_text()
    for text in ("ideal", "1 node, batch 16", "1 node, batch 32", "weak scaling"):
        assert text in svg
    summary = (out / "summary.md").read_text()
    assert "8 of 8 repeats done, 0 failed" in summary and "speedup.svg" in summary
    assert "lockstep sweep job.yaml" in summary
    assert [one["repeats"] for one in result["configurations"]] == [2, 2, 2, 2]
    logs = [p.read_text() for p in out.glob("runs/*/ranks/0.log")]
    assert sorted(logs).count("batch 32 lr 0.1 world 2\n") == 2
    control.assert_nothing_left()


def test_strong_scaling_shares_the_batch(control):
    sweep(
        control,
        *("--procs", "2", "--repeat", "1", "--scaling", "strong"),
        *("batch_size=64", "lr=1"),
    )
    out = control.folder / "out"
    logs = {p.read_text() for p in out.glob("runs/*/ranks/0.log")}
    assert logs == {"batch 64 lr 1 world 1\n", "batch 32 lr 1 world 2\n"}
    assert (out / "nnode-1_nproc-2_batch_size-64.csv").exists()


def test_other_keys_are_swept_and_named(control):
    sweep(control, "--procs", "1", "--repeat", "1", "batch_size=8", "lr=0.1,0.2")
    out = control.folder / "out"
    assert (out / "nnode-1_nproc-1_batch_size-8_lr-0.1.csv").exists()
    assert (out / "nnode-1_nproc-1_batch_size-8_lr-0.2.csv").exists()
    assert [row["lr"] for row in rows(out / "speedup.csv")] == ["0.1", "0.2"]


def test_failures_are_recorded_and_in_no_mean(control):
    (control.folder / "fail-2").touch()
    result = sweep(control, code=1)
    out = control.folder / "out"
    assert not (out / "nnode-1_nproc-2_batch_size-16.csv").exists()
    assert len(rows(out / "nnode-1_nproc-1_batch_size-16.csv")) == 2
    failures = rows(out / "failures.csv")
    assert len(failures) == 2
    for failure in failures:
        assert failure["configuration"] == "nnode-1_nproc-2_batch_size-16"
        assert failure["exit_code"] == "1" and "rank 1" in failure["reason"]
        assert (out / "runs" / failure["run"] / "events.jsonl").exists()
    assert rows(out / "speedup.csv")[1]["mean"] == ""
    assert result["configurations"][1]["failures"] == 2
    assert result["configurations"][1]["mean"] is None
    assert "rank 1" in (out / "summary.md").read_text()
    # Tried again when asked again; what was done is not.
    (control.folder / "fail-2").unlink()
    result = sweep(control)
    assert [one["repeats"] for one in result["configurations"]] == [2, 2]
    assert len(rows(out / "failures.csv")) == 2
    assert len(list((out / "runs").iterdir())) == 6


def test_a_finished_sweep_runs_nothing_and_grows(control):
    sweep(control)
    runs = sorted(p.name for p in (control.folder / "out" / "runs").iterdir())
    sweep(control)
    assert runs == sorted(p.name for p in (control.folder / "out" / "runs").iterdir())
    words = ("--procs", "1,2,3", "--repeat", "2", "batch_size=16", "lr=0.1")
    result = sweep(control, *words)
    assert [one["repeats"] for one in result["configurations"]] == [2, 2, 2]
    assert len(journal(control)) == 6


def test_half_a_line_never_counts(control):
    sweep(control)
    path = control.folder / "out" / "repeats.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:-20])
    (control.folder / "out" / "nnode-1_nproc-2_batch_size-16.csv").write_text(
        "total,t0,t1\n9,9,9\n1.2"
    )
    result = sweep(control)
    assert [one["repeats"] for one in result["configurations"]] == [2, 2]
    table = rows(control.folder / "out" / "nnode-1_nproc-2_batch_size-16.csv")
    assert len(table) == 2 and all(float(row["t1"]) == 0.6 for row in table)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_sweep_goes_on(control, number):
    hang = control.folder / "hang-2"
    hang.touch()
    words = ("--procs", "1,2", "--repeat", "2", "batch_size=16", "lr=0.1")
    process = control.start("sweep", "job.yaml", *words, "--out", "out")
    wait_for((control.folder / "hanging").exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130, errors
        assert "goes on" in errors
    control.assert_nothing_left()
    hang.unlink()
    result = sweep(control)
    assert [one["repeats"] for one in result["configurations"]] == [2, 2]
    assert result["failures"] == []
    done = [one for one in journal(control) if one["done"]]
    assert len(done) == 4
    first = [one for one in done if "nproc-1" in one["configuration"]]
    # The baseline's repeats are those of before the interruption.
    assert journal(control)[:2] == first
    control.assert_nothing_left()


def test_one_budget_covers_all_runs(control):
    # A dollar a second: ten of these hundred runs fit at most.
    (control.folder / "slow").touch()
    words = ("--procs", "1,2", "--repeat", "50", "batch_size=16", "lr=0.1")
    money = ("--price", "3600", "--budget", "1")
    result = sweep(control, *words, *money, code=4)
    assert result["exit_code"] == 4
    spent = sum(one["dollars"] for one in journal(control))
    assert 0.5 < spent < 1 + 2
    before = len(journal(control))
    sweep(control, *words, *money, code=4)
    assert len(journal(control)) <= before + 1
    needs = control.call("sweep", "job.yaml", *words, "--budget", "3", "--out", "x")
    assert needs.returncode == 2 and "--price" in needs.stderr


def test_a_slow_repeat_is_a_failure(control):
    (control.folder / "hang-2").touch()
    result = sweep(
        control,
        *("--procs", "2", "--repeat", "1", "--timeout", "1s", "--grace", "1s"),
        *("batch_size=16", "lr=0.1"),
        code=1,
    )
    assert len(result["failures"]) == 1
    assert result["failures"][0]["exit_code"] == 124
    control.assert_nothing_left()


def test_dry_run_lists_and_makes_nothing(control):
    words = ("--procs", "1,2", "--repeat", "3", "batch_size=16", "lr=0.1")
    result = control.call("sweep", "job.yaml", *words, "--dry-run", "--output", "json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["to_run"] == 6
    assert [one["to_run"] for one in plan["configurations"]] == [3, 3]
    assert "--procs 2" in plan["configurations"][1]["command"]
    assert "./program 16 0.1" in plan["configurations"][1]["command"]
    assert not (control.folder / "sweeps").exists()
    text = control.call("sweep", "job.yaml", *words, "--dry-run")
    assert "6 runs" in text.stdout


@pytest.mark.parametrize(
    "words, text",
    [
        ([], "needs a job file"),
        (["absent.yaml"], "absent.yaml"),
        (["job.yaml", "--procs", "0"], "--procs"),
        (["job.yaml", "--nodes", "two"], "--nodes"),
        (["job.yaml", "--repeat", "0"], "--repeat"),
        (["job.yaml", "--scaling", "big"], "--scaling"),
        (["job.yaml", "--nodes", "1,2"], "--hosts"),
        (["job.yaml", "--hosts", "a,b", "--nodes", "3"], "2 hosts are given"),
        (["job.yaml", "batch_size"], "key=value"),
        (["job.yaml", "batch_size=big"], "batch size"),
        (["job.yaml", "nowhere=1,2"], "{nowhere}"),
        (
            ["job.yaml", "--scaling", "strong", "--procs", "1,3", "batch_size=16"],
            "does not divide by 3 ranks",
        ),
        (["job.yaml", "--proc", "1"], "--procs"),
    ],
)
def test_bad_input_is_told_and_makes_nothing(control, words, text):
    result = control.call("sweep", *words)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert text in result.stderr
    assert not (control.folder / "sweeps").exists()


def test_a_job_that_cannot_run_ends_the_sweep(control):
    control.script("bad.yaml", "run: [./absent, '{batch_size}']\n")
    result = control.call("sweep", "bad.yaml", "batch_size=1", "--out", "out")
    assert result.returncode == 2
    assert "./absent" in result.stderr and "no such program" in result.stderr


def test_another_sweep_in_the_folder_is_refused(control):
    sweep(control)
    words = ("--scaling", "strong", "batch_size=16", "lr=0.1", "--out", "out")
    result = control.call("sweep", "job.yaml", *words)
    assert result.returncode == 2 and "another 'scaling'" in result.stderr
    control.script("job.yaml", JOB + "envs: {A: b}\n")
    result = control.call("sweep", "job.yaml", "batch_size=16", "lr=0.1", "--out", "out")
    assert result.returncode == 2 and "another 'job'" in result.stderr


def test_programs_that_tell_nothing_are_timed_by_their_life(control):
    control.script("quiet.yaml", "run: 'true'\n")
    result = sweep(control, "--procs", "1,2", "--repeat", "1", job="quiet.yaml")
    out = control.folder / "out"
    (row,) = rows(out / "nnode-1_nproc-2_batch_size-0.csv")
    assert 0 < float(row["t0"]) <= float(row["total"]) + 0.1
    assert result["configurations"][1]["batch_size"] == "0"
    assert "tell no epochs" in (out / "summary.md").read_text()


TRAINER = os.environ.get(
    "LOCKSTEP_TRAINER_BIN",
    str(pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build")) / "bin/lockstep-train"),
)
TRAIN_JOB = """
name: tiny-vit
envs: {OMP_NUM_THREADS: 1}
train:
  recipe: vit
  data: {name: synthetic, length: 48, image_size: 16}
  model: {name: vit_tiny_patch16_224, patch: 8, dim: 24, depth: 2, heads: 3}
  trainer: {device: cpu, max_epochs: 1, log_every: 1}
"""


@pytest.mark.skipif(not os.path.exists(TRAINER), reason="lockstep-train is not built")
def test_the_native_trainer_is_swept(control):
    control.script("vit.yaml", TRAIN_JOB)
    env = {"LOCKSTEP_TRAINER_BIN": TRAINER}
    words = ("--procs", "1,2", "--repeat", "1", "--scaling", "strong")
    result = sweep(control, *words, "data.batch_size=8", job="vit.yaml", env=env)
    one, two = result["configurations"]
    assert two["speedup"] > 0 and two["work"] == 1
    assert one["samples_per_second"] > 0
    out = control.folder / "out"
    (row,) = rows(out / "nnode-1_nproc-2_batch_size-8.csv")
    seconds = {}
    for path in (out / "runs").glob("*nproc-2*/events.jsonl"):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "epoch" and event["epoch"] == 0:
                seconds[event["rank"]] = event["seconds"]
            if event["kind"] == "iteration":
                assert event["samples"] == 4  # half of 8
    assert float(row["t0"]) == pytest.approx(seconds[0], abs=1e-6)
    assert float(row["t1"]) == pytest.approx(seconds[1], abs=1e-6)
    # The batch size that the job leaves to the recipe is in the file name.
    dry = control.call("sweep", "vit.yaml", "--dry-run", "--output", "json", env=env)
    assert dry.returncode == 0, dry.stderr
    batch = json.loads(dry.stdout)["configurations"][0]["batch_size"]
    assert int(batch) > 0
