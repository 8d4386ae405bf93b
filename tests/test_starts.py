"""The same command under every launcher: alone, by hand, lockstep, torchrun and
mpirun. Losses must be equal bit for bit: only the clock's column may differ."""

import os
import shutil
import subprocess
import sys

import pytest
from PIL import Image
from trainer import (
    LOCKSTEP,
    TRAIN,
    VIT,
    assert_same_checkpoint,
    clean_environment,
    events,
    metrics,
    run_ranks,
    train,
    trained,
)

MPIRUN = shutil.which("mpirun")


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by_hand")
    run_ranks(folder, [*VIT, f"out={folder / 'run'}"])
    return folder / "run"


def launched(command, run, timeout=120):
    done = subprocess.run(
        [*command, TRAIN, *VIT, f"out={run}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def facts(run):
    return {event["rank"]: event["facts"] for event in events(run, "init")}


def check(run, by_hand, launcher, collective=None):
    told = facts(run)
    assert sorted(told) == [0, 1]
    assert {one["launcher"] for one in told.values()} == {launcher}
    if collective:
        assert {one["collective"] for one in told.values()} == {collective}
    assert metrics(run) == metrics(by_hand)
    assert_same_checkpoint(
        run / "checkpoints" / "last.safetensors",
        by_hand / "checkpoints" / "last.safetensors",
    )


def test_alone(tmp_path):
    trained(*VIT, f"out={tmp_path / 'run'}")
    assert facts(tmp_path / "run")[0]["launcher"] == "alone"
    # Without out= the run directory has an id of its own below runs/.
    trained(*VIT, cwd=tmp_path)
    trained(*VIT, cwd=tmp_path)
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert metrics(run) == metrics(tmp_path / "run")


def test_by_hand(by_hand):
    check(by_hand, by_hand, "plain", "host")


@pytest.mark.skipif(not os.path.exists(LOCKSTEP), reason="no control program")
def test_lockstep(tmp_path, by_hand):
    done = subprocess.run(
        [LOCKSTEP, "run", "--procs", "2", "--runs-dir", tmp_path, "--name", "one"]
        + ["--", TRAIN, *VIT],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics_file,) = tmp_path.glob("*/metrics.csv")
    check(metrics_file.parent, by_hand, "lockstep", "host")
    for name in ("events.jsonl", "timing.csv", "logbook.md", "job.yaml"):
        assert (metrics_file.parent / name).exists(), name


@pytest.mark.skipif(not os.path.exists(LOCKSTEP), reason="no control program")
def test_lockstep_job_file(tmp_path, by_hand):
    job = tmp_path / "job.yaml"
    train_section = {}
    for word in VIT[1:]:
        key, value = word.split("=")
        train_section["data.name" if key == "data" else key] = value
    lines = [f"  {key}: {value}" for key, value in train_section.items()]
    job.write_text(
        "name: tiny\nprocs_per_node: 2\nenvs: {OMP_NUM_THREADS: 1}\n"
        "train:\n  recipe: vit\n" + "\n".join(lines) + "\n"
    )
    runs = tmp_path / "runs"
    done = subprocess.run(
        [LOCKSTEP, "run", job, "--runs-dir", runs],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics_file,) = runs.glob("*/metrics.csv")
    check(metrics_file.parent, by_hand, "lockstep")


def test_torchrun(tmp_path, by_hand):
    launched(
        [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        + ["--nproc-per-node", "2", "--no-python"],
        tmp_path / "run",
    )
    check(tmp_path / "run", by_hand, "torchrun", "host")


@pytest.mark.skipif(MPIRUN is None, reason="no Open MPI")
@pytest.mark.parametrize("collective, used", [("auto", "host"), ("mpi", "mpi")])
def test_mpirun(tmp_path, by_hand, collective, used):
    run = tmp_path / "run"
    done = subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "2", TRAIN, *VIT]
        + [f"trainer.collective={collective}", f"out={run}"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check(run, by_hand, "mpirun", used)


def start_two(mine, other):
    """Ranks 0 and 1 of one mpirun, each with words of its own."""
    one = ["-np", "1", TRAIN, *VIT, "trainer.collective=mpi", "trainer.timeout=1h"]
    return subprocess.run(
        [MPIRUN, "--allow-run-as-root", "--oversubscribe"]
        + [*one, *mine, ":", *one, *other],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(MPIRUN is None, reason="no Open MPI")
def test_a_rank_that_fails_ends_the_others_under_mpi(tmp_path):
    """Which waits in MPI for what the others know of their data."""
    for i in range(8):
        path = tmp_path / "there" / ("cat", "cow")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16)).save(path)
    words = ["data=folder", f"out={tmp_path / 'run'}"]
    done = start_two(
        [*words, f"data.root={tmp_path / 'there'}"],
        [*words, f"data.root={tmp_path / 'missing'}"],
    )
    assert done.returncode in (2, 3), done.stderr
    assert "missing is not there" in done.stderr
    assert "rank 1 failed" in done.stderr


def test_mpi_asked_for_without_mpirun(tmp_path):
    """At once and by name."""
    done = train(*VIT, "trainer.collective=mpi", f"out={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "trainer.collective=mpi" in done.stderr
