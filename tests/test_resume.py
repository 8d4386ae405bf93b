"""Stopped at any moment and resumed, a run ends with the weights, the optimiser
state and the metrics of one that was never stopped: bit for bit."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest
from trainer import (
    DCGAN,
    LOCKSTEP,
    TRAIN,
    VIT,
    Ranks,
    assert_same_checkpoint,
    clean_environment,
    events,
    metadata,
    metrics,
    run_ranks,
    tensors,
    trained,
    wait_until,
)

SOAK = os.environ.get("LOCKSTEP_SOAK") == "1"
ROUNDS = 50 if SOAK else 3

LONG = ["data.length=100", "trainer.max_epochs=6", "trainer.checkpoint_every=3"]
JOBS = {
    "vit": [*VIT, *LONG],
    "dcgan": [*DCGAN, *LONG, "sample_every=20"],
    "fsdp": [*VIT, *LONG, "trainer=fsdp", "optim.clip=1"],
}


@pytest.fixture(scope="module", params=JOBS)
def reference(request, tmp_path_factory):
    """The run that was never stopped, and how long it took."""
    folder = tmp_path_factory.mktemp(request.param)
    words = JOBS[request.param]
    begun = time.monotonic()
    run_ranks(folder, [*words, f"out={folder / 'run'}"])
    return folder / "run", words, time.monotonic() - begun


def assert_same_run(left, right):
    for name in ("last", "best"):
        assert_same_checkpoint(
            left / "checkpoints" / f"{name}.safetensors",
            right / "checkpoints" / f"{name}.safetensors",
        )
    assert metrics(left) == metrics(right)


def last_tensors(run):
    return tensors(run / "checkpoints" / "last.safetensors")


def last_step(run):
    path = pathlib.Path(run) / "metrics.csv"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0


def test_kill_at_a_random_moment(reference, tmp_path):
    whole, words, seconds = reference
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    killed = 0
    for number in range(ROUNDS):
        run = tmp_path / str(number)
        told = f"seed {seed}, round {number}"
        # Up to three kills in a row, then to the end.
        for sitting in range(chance.randint(1, 3)):
            with Ranks(
                tmp_path,
                [*words, f"out={run}", "trainer.resume=auto", "trainer.timeout=20s"],
            ) as ranks:
                victim = chance.choice([0, 1, None])
                try:
                    ranks.wait(timeout=chance.uniform(0.3, 1) * seconds)
                except subprocess.TimeoutExpired:
                    killed += 1
                    ranks.kill(victim)
                    if victim is not None:
                        # 0: the victim was past its last word.
                        code = ranks.wait(timeout=60)[1 - victim]
                        assert code in (0, 1, 3), f"{told}\n{ranks.output()}"
        run_ranks(tmp_path, [*words, f"out={run}", "trainer.resume=auto"])
        try:
            assert_same_run(whole, run)
        except AssertionError as wrong:
            raise AssertionError(told) from wrong
        shutil.rmtree(run)
    assert killed > 0 or ROUNDS < 5


def test_stop_signal_writes_a_checkpoint(reference, tmp_path):
    """To one rank only: all stop after the same step, mid-epoch or not."""
    whole, words, _ = reference
    run = tmp_path / "run"
    with Ranks(tmp_path, [*words, f"out={run}"]) as ranks:
        wait_until(lambda: last_step(run) >= 4, what="step 4")
        ranks.send(signal.SIGTERM, rank=1)
        assert ranks.wait() == [143, 143], ranks.output()
    step = int(metadata(run / "checkpoints" / "last.safetensors")["lockstep.step"])
    total = int(metadata(whole / "checkpoints" / "last.safetensors")["lockstep.step"])
    assert 4 <= step < total
    assert step == last_step(run)
    reasons = [event["reason"] for event in events(run, "checkpoint")]
    assert reasons[-1] == "signal"
    codes = [event["code"] for event in events(run, "exit")]
    assert codes == [143, 143]
    run_ranks(tmp_path, [*words, f"out={run}", "trainer.resume=auto"])
    assert_same_run(whole, run)


def test_three_ranks_sum_in_one_order(tmp_path):
    """Buckets are laid out anew after the first step of a sitting; with three
    ranks the order of a sum would show."""
    words = [*VIT, "optim.schedule=constant", "data.batch_size=3"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    run_ranks(tmp_path, [*words, f"out={whole}"], world=3)
    run_ranks(tmp_path, [*words, "trainer.max_steps=4", f"out={run}"], world=3)
    run_ranks(tmp_path, [*words, "trainer.resume=auto", f"out={run}"], world=3)
    # The tensors alone: the first sitting ended with a validation of its own.
    assert last_tensors(whole) == last_tensors(run)


def test_stop_at_the_end_of_an_epoch_keeps_its_validation(tmp_path):
    """Every step ends an epoch here, so the signal cannot miss one."""
    words = [*VIT, "data.length=4", "trainer.max_epochs=60"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    trained(*words, f"out={whole}")
    process = subprocess.Popen([TRAIN, *words, f"out={run}"], env=clean_environment())
    try:
        wait_until(lambda: last_step(run) >= 3, what="step 3")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    finally:
        process.kill()
    trained(*words, f"out={run}", "trainer.resume=auto")
    assert_same_run(whole, run)
    assert all(row["val_loss"] for row in metrics(run))


def test_interrupt_exits_with_130(tmp_path):
    run = tmp_path / "run"
    words = [*VIT, "trainer.max_epochs=100000", f"out={run}"]
    process = subprocess.Popen([TRAIN, *words], env=clean_environment())
    try:
        wait_until(lambda: last_step(run) >= 3, what="step 3")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    assert (run / "checkpoints" / "last.safetensors").exists()


def test_rows_do_not_depend_on_the_sitting(tmp_path):
    """With a row every 5 steps, a run that resumed at step 7 has no row 8."""
    words = [*VIT, "trainer.log_every=5", "optim.schedule=constant"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    trained(*words, f"out={whole}")
    trained(*words, f"out={run}", "trainer.max_steps=7")
    trained(*words, f"out={run}", "trainer.resume=auto")
    steps = [row["step"] for row in metrics(run)]
    assert steps == sorted(set(steps), key=int)
    # The first sitting ended at 7 and validated there.
    assert set(steps) - {"7"} == {row["step"] for row in metrics(whole)}


def test_a_finished_run_has_nothing_to_do(tmp_path):
    run = tmp_path / "run"
    trained(*VIT, f"out={run}")
    before = (run / "metrics.csv").read_bytes()
    stamp = (run / "checkpoints" / "last.safetensors").stat().st_mtime_ns
    again = trained(*VIT, f"out={run}", "trainer.resume=auto")
    assert "nothing to do: the checkpoint is at step 24 of 24" in again.stdout
    assert (run / "metrics.csv").read_bytes() == before
    assert (run / "checkpoints" / "last.safetensors").stat().st_mtime_ns == stamp


def test_resume_auto_without_a_checkpoint_starts_anew(tmp_path):
    run, plain = tmp_path / "run", tmp_path / "plain"
    trained(*VIT, f"out={run}", "trainer.resume=auto")
    trained(*VIT, f"out={plain}")
    assert_same_run(plain, run)


def test_resume_from_a_named_file(tmp_path):
    """Mid-epoch: after step 8 of 12."""
    words = [*VIT, "optim.schedule=constant"]
    first, second = tmp_path / "first", tmp_path / "second"
    trained(*words, f"out={first}", "trainer.max_steps=8")
    checkpoint = first / "checkpoints" / "last.safetensors"
    trained(*words, f"out={second}", f"trainer.resume={checkpoint}")
    whole = tmp_path / "whole"
    trained(*words, f"out={whole}")
    assert last_tensors(whole) == last_tensors(second)
    assert [row["step"] for row in metrics(second)][0] == "9"


def test_only_rank_0_needs_the_checkpoint(tmp_path):
    """As on several machines: rank 1 has a folder of its own, and nothing in it.
    It gets weights, optimiser state and place in the epoch from rank 0."""
    words = [*VIT, "optim.schedule=constant"]
    run = tmp_path / "run"

    def folders(rank):
        return {"LOCKSTEP_CHECKPOINTS": tmp_path / f"checkpoints-{rank}"}

    whole = tmp_path / "whole"
    run_ranks(tmp_path, [*words, f"out={whole}"])
    run_ranks(tmp_path, [*words, f"out={run}", "trainer.max_steps=4"], env=folders)
    assert list((tmp_path / "checkpoints-0").glob("*.safetensors"))
    assert not list((tmp_path / "checkpoints-1").glob("*"))
    run_ranks(tmp_path, [*words, f"out={run}", "trainer.resume=auto"], env=folders)
    last = tmp_path / "checkpoints-0" / "last.safetensors"
    assert tensors(last) == last_tensors(whole)
    # The verb 'test' too: rank 1 is given a name that is not there for it.
    shown = run_ranks(
        tmp_path / "test",
        [words[0], "test", *words[1:], "checkpoint=last.safetensors"],
        cwd=lambda rank: tmp_path / f"checkpoints-{rank}",
    )
    assert "val_accuracy" in shown.output(0)


def descendants(pid):
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *descendants(child)]
    return found


def rank_process(pid, rank):
    """The lockstep-train below `pid` whose environment has RANK=rank."""
    for child in descendants(pid):
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes()
            name = os.readlink(f"/proc/{child}/exe")
        except OSError:
            continue
        wanted = f"RANK={rank}".encode()
        if name == TRAIN and wanted in environment.split(b"\0"):
            return child
    return None


def test_lockstep_retries_and_ends_equal(reference, tmp_path):
    """kill -9 of one rank under `lockstep run --retries`: the next generation
    goes on from the checkpoint by itself."""
    if not os.path.exists(LOCKSTEP):
        pytest.skip("no control program in this build")
    whole, words, _ = reference
    output = open(tmp_path / "output.txt", "w+")
    process = subprocess.Popen(
        [LOCKSTEP, "run", "--procs", "2", "--retries", "2"]
        + ["--runs-dir", str(tmp_path), "--name", "killed", "--", TRAIN, *words],
        env=clean_environment(),
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    try:
        run = wait_until(
            lambda: next(
                (p.parent for p in tmp_path.glob("*/metrics.csv")), None
            ),
            what="a run directory",
        )
        wait_until(lambda: last_step(run) >= 4, what="step 4")
        os.kill(rank_process(process.pid, 1), signal.SIGKILL)
        code = process.wait(120)
    finally:
        process.kill()
        process.wait()
    output.seek(0)
    assert code == 0, output.read()
    assert_same_run(whole, run)
