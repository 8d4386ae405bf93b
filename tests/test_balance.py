"""trainer.balance=auto: ranks of different speed share the global batch by their
speed, and what they learn is what equal ranks learn from the same batches."""

import os
import statistics
from collections import defaultdict

import pytest
from testbed import needs_root
from testbed_limits import Limits
from trainer import DCGAN, VIT, Ranks, clean_environment, events, metrics, run_ranks
from trainer import train, trained, wait_until

# Steps long enough that the stalls of a quota do not count.
WORK = ["data.image_size=32", "model.patch=4", "model.dim=48", "model.depth=4",
        "data.length=480", "data.batch_size=16", "data.workers=0"]
SLOW = 0.4


class Speeds:
    """The speed of each rank, as a share of a core."""

    def __init__(self, ranks, shares):
        self.limits = Limits(f"balance{os.getpid()}")
        self.ranks = ranks
        for rank, share in enumerate(shares):
            self.set(rank, share)

    def set(self, rank, share):
        self.limits.cpu(f"r{rank}", share, lambda: [self.ranks.processes[rank].pid])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ranks.kill()
        self.limits.remove()


def steps(run):
    """By step: samples of each rank."""
    found = defaultdict(dict)
    for one in events(run, "iteration"):
        found[one["step"]][one["rank"]] = one["samples"]
    return [found[step] for step in sorted(found)]


def column(table, name):
    return [float(row[name]) for row in table if row.get(name)]


@needs_root
def test_shares_follow_speeds_and_the_loss_is_that_of_equal_ranks(tmp_path):
    words = [*VIT, *WORK, "optim.lr=1e-3"]
    one = tmp_path / "one"
    trained(*words, "data.batch_size=32", f"out={one}")
    mixed = tmp_path / "mixed"
    balanced = [*words, "trainer.balance=auto", f"out={mixed}"]
    with Ranks(tmp_path, balanced) as ranks, Speeds(ranks, [0.8, 0.8 * SLOW]):
        ranks.done()
    shares = steps(mixed)
    assert len(shares) == 30 and all(sum(one.values()) == 32 for one in shares)
    late = statistics.mean(one[1] for one in shares[15:])
    assert shares[0][1] == 16 and 6 <= late <= 13, shares
    assert "shares of the batch by rank" in ranks.output(0)
    left, right = metrics(one), metrics(mixed)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert column(right, name) == pytest.approx(
            column(left, name), rel=1e-3, abs=1e-4
        ), name
    # What a rank tells of its own loss is a mean over its samples.
    last = [one["values"]["loss"] for one in events(mixed, "metric")
            if one["step"] == 29 and "loss" in one["values"]]
    assert len(last) == 2 and all(0.2 < x / column(left, "loss")[28] < 5 for x in last)


@needs_root
def test_a_rank_that_slows_down_and_recovers_is_followed(tmp_path):
    words = [*VIT, *WORK, "data.length=3200", "trainer.max_epochs=20",
             "trainer.balance=auto", f"out={tmp_path / 'run'}"]

    def seen():
        return steps(tmp_path / "run")

    with Ranks(tmp_path, words) as ranks, Speeds(ranks, [0.8, 0.8]) as speeds:
        wait_until(lambda: len(seen()) > 12, 60, "it trains")
        for share, right in ((0.2, lambda n: n <= 11), (0.8, lambda n: n >= 13)):
            speeds.set(1, share)
            before = len(seen())
            wait_until(lambda: len(seen()) > before + 24, 90, "more steps")
            later = [one[1] for one in seen()[before + 21 :] if 1 in one]
            assert right(statistics.median(later)), seen()[before:]


@needs_root
def test_a_resumed_run_goes_on_in_the_same_order(tmp_path):
    words = [*VIT, *WORK, "optim.lr=1e-3", "optim.schedule=constant"]
    whole = tmp_path / "whole"
    trained(*words, "data.batch_size=32", f"out={whole}")
    halves = tmp_path / "halves"
    balanced = [*words, "trainer.balance=auto", f"out={halves}"]
    for more in (["trainer.max_steps=11"], ["trainer.resume=auto"]):
        with Ranks(tmp_path, [*balanced, *more]) as ranks:
            with Speeds(ranks, [0.8, 0.8 * SLOW]):
                ranks.done()
    left, right = metrics(whole), metrics(halves)
    later = [float(row["loss"]) for row in right if row.get("loss")][-19:]
    assert later == pytest.approx(column(left, "loss")[-19:], rel=1e-3, abs=1e-4)


@needs_root
def test_with_batch_norm_it_learns_as_equal_ranks_do(tmp_path):
    """Statistics are of a rank's own batch, so losses agree in the mean only."""
    words = [*DCGAN, "data.image_size=32", "data.length=320", "data.batch_size=8",
             "model.ngf=8", "model.ndf=8", "trainer.max_epochs=3"]
    run_ranks(tmp_path, [*words, f"out={tmp_path / 'equal'}"])
    mixed = [*words, "trainer.balance=auto", f"out={tmp_path / 'mixed'}"]
    with Ranks(tmp_path, mixed) as ranks, Speeds(ranks, [0.8, 0.8 * SLOW]):
        ranks.done()
    for name in ("loss_d", "loss_g", "val_swd"):
        left = statistics.mean(column(metrics(tmp_path / "equal"), name)[-30:])
        right = statistics.mean(column(metrics(tmp_path / "mixed"), name)[-30:])
        assert right == pytest.approx(left, rel=0.25), name


@pytest.mark.parametrize(
    "more, hint",
    [
        (["trainer.balance=fast"], "auto"),
        (["trainer.balance=auto", "trainer=fsdp"], "fsdp"),
        (["trainer.balance=auto", "data.batch_size=auto"], "data.batch_size"),
    ],
)
def test_what_it_cannot_balance_is_refused(tmp_path, more, hint):
    done = train(*VIT, *more, f"out={tmp_path / 'run'}", env=clean_environment())
    assert done.returncode == 2 and "balance" in done.stderr and hint in done.stderr
