"""Runs that go on where something is different: other ranks, another batch, after a
restart, from a file of another run."""

import shutil
import subprocess
import time

import pytest
from tensorboard.backend.event_processing import event_accumulator
from trainer import (
    LOCKSTEP,
    VIT,
    Ranks,
    clean_environment,
    metadata,
    metrics,
    refused,
    run_ranks,
    train,
    trained,
    wait_until,
)

STEPS = 12  # an epoch of VIT on one rank


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory):
    run = tmp_path_factory.mktemp("first") / "run"
    trained(*VIT, f"out={run}", "trainer.max_epochs=2")
    return run / "checkpoints" / "last.safetensors"


def last(run):
    return metadata(run / "checkpoints" / "last.safetensors")


def test_other_ranks_train_the_epochs_that_are_left(two_epochs, tmp_path):
    run = tmp_path / "run"
    run_ranks(
        tmp_path,
        [*VIT, f"out={run}", "trainer.max_epochs=4", f"trainer.resume={two_epochs}"],
    )
    assert last(run)["lockstep.epoch"] == "4"
    assert last(run)["lockstep.step"] == str(2 * STEPS + 2 * STEPS // 2)


@pytest.mark.parametrize("batch, steps", [(8, STEPS // 2), (2, 2 * STEPS)])
def test_another_batch_trains_the_epochs_that_are_left(two_epochs, tmp_path, batch, steps):
    run = tmp_path / "run"
    trained(
        *VIT, f"out={run}", "trainer.max_epochs=3", f"trainer.resume={two_epochs}",
        f"data.batch_size={batch}",
    )
    assert last(run)["lockstep.epoch"] == "3"
    assert last(run)["lockstep.step"] == str(2 * STEPS + steps)


def test_a_run_that_has_nothing_to_do_has_a_checkpoint_too(two_epochs, tmp_path):
    run = tmp_path / "run"
    done = trained(*VIT, f"out={run}", "trainer.max_epochs=2", f"trainer.resume={two_epochs}")
    assert "nothing to do" in done.stdout
    assert last(run)["lockstep.step"] == str(2 * STEPS)


def test_a_loss_that_is_no_number_names_the_file_that_is_there(two_epochs, tmp_path):
    run = tmp_path / "run"
    done = train(
        *VIT, f"out={run}", "trainer.max_epochs=4", "optim.lr=1e30",
        f"trainer.resume={two_epochs}",
    )
    assert done.returncode == 1 and str(two_epochs) in done.stderr, done.stderr


def restarted(folder, run, *words):
    """The second generation of a run, as torchrun starts it."""
    environment = {
        **clean_environment(), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "1",
    }
    return trained(*VIT, f"out={run}", *words, env=environment)


def test_a_restart_goes_on_from_what_the_run_has_written(two_epochs, tmp_path):
    run = tmp_path / "run"
    words = ["trainer.max_epochs=4", f"trainer.resume={two_epochs}"]
    trained(*VIT, f"out={run}", *words, f"trainer.max_steps={3 * STEPS}")
    done = restarted(tmp_path, run, *words)
    assert f"at step {3 * STEPS}" in done.stdout + done.stderr
    assert last(run)["lockstep.epoch"] == "4"


def test_a_restart_leaves_the_checkpoint_of_another_run_alone(tmp_path):
    folder = tmp_path / "shared"
    words = [f"trainer.checkpoint_dir={folder}", "trainer.max_epochs=1"]
    trained(*VIT, f"out={tmp_path / 'one'}", *words)
    done = restarted(tmp_path, tmp_path / "two", *words, "trainer.seed=9")
    assert "resumed" not in done.stdout + done.stderr
    assert metrics(tmp_path / "two")


def test_shards_of_two_runs_are_no_checkpoint(tmp_path):
    words = [*VIT, "trainer=fsdp", "trainer.max_epochs=1"]
    for seed in (0, 7):
        run_ranks(tmp_path, [*words, f"out={tmp_path / str(seed)}", f"trainer.seed={seed}"])
    folders = [tmp_path / str(seed) / "checkpoints" / "last.safetensors" for seed in (0, 7)]
    second = sorted(folders[0].iterdir())[1]
    shutil.copy(folders[1] / second.name, second)
    done = train(*VIT, f"out={tmp_path / 'mixed'}", f"trainer.resume={folders[0]}")
    refused(done, str(second), "lockstep.run", "not of one checkpoint")


def test_time_that_is_used_up_stays_used_up(tmp_path):
    run = tmp_path / "run"
    words = [*VIT, f"out={run}", "trainer.max_epochs=1000", "trainer.max_seconds=0.5"]
    trained(*words)
    before = last(run)["lockstep.step"]
    done = trained(*words, "trainer.resume=auto")
    assert "nothing to do" in done.stdout and last(run)["lockstep.step"] == before


def test_tensorboard_has_what_was_trained_when_a_run_is_killed(tmp_path):
    run = tmp_path / "run"
    words = [
        *VIT, f"out={run}", "data.length=4800", "trainer.max_epochs=1000",
        "trainer.log_every=10",
    ]
    with Ranks(tmp_path, words) as ranks:
        wait_until(lambda: (run / "checkpoints" / "last.safetensors").exists(), what="epoch 1")
        time.sleep(0.1)  # the line after the file
        ranks.kill()
    board = event_accumulator.EventAccumulator(str(run / "tensorboard"))
    board.Reload()
    assert board.Scalars("val_accuracy")[0].step > 0


def test_the_best_so_far_comes_along(two_epochs, tmp_path):
    """A run that finds no better one has it in its own folder."""
    run = tmp_path / "run"
    more = ["trainer.max_epochs=3", f"trainer.resume={two_epochs}", "optim.lr=1e-30"]
    trained(*VIT, f"out={run}", *more)
    best = run / "checkpoints" / "best.safetensors"
    assert metadata(best)["lockstep.best"] == last(run)["lockstep.best"]


def test_a_new_run_leaves_what_another_wrote_into_its_folder(tmp_path):
    """A folder for checkpoints that runs of `lockstep run` share."""
    folder = tmp_path / "kept"
    job = tmp_path / "job.yaml"
    job.write_text("name: kept\ntrain: vit\n")
    words = [f"train.{word}" for word in VIT[1:]]
    command = [LOCKSTEP, "run", job, *words, f"train.trainer.checkpoint_dir={folder}"]
    for seed in (1, 2):
        done = subprocess.run(
            [*map(str, command), f"train.trainer.seed={seed}"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        if seed == 1:
            first = (folder / "last.safetensors").read_bytes()
    assert (folder / "previous-last.safetensors").read_bytes() == first
    assert (folder / "last.safetensors").read_bytes() != first
