"""`lockstep bench` over machine types: each is rented for its probe, on the test
bed with the speed and the price of its type, and goes back."""

import json
import signal

import pytest
from test_optimise import FAST, PRICES, SLOW, bed, job, laptop  # noqa: F401
from testbed import needs_root, wait_for

pytestmark = needs_root
UNIT = 3600  # seconds of a price


def bench(laptop, *words, **keys):  # noqa: F811
    resources = {"candidates": [SLOW, FAST]}
    path = job(laptop, steps=400, resources=resources, num_nodes=1, **keys)
    return ["bench", path, *words]


def test_types_are_rented_measured_and_given_back(bed, laptop):  # noqa: F811
    words = ["-y", "--output", "json", "--budget", "1"]
    done = laptop.call(*bench(laptop, *words), timeout=240)
    assert done.returncode == 0, done.stderr
    assert bed.live() == [] and bed.others() == []
    result = json.loads(done.stdout)
    rows = {one["name"]: one for one in result["candidates"]}
    assert set(rows) == {FAST, SLOW}
    assert result["cheapest"] == FAST and result["fastest"] == FAST, result
    for name, row in rows.items():
        assert row["dollars_per_hour"] == pytest.approx(PRICES[name])
        # From the start of a machine to its end.
        assert row["probe_seconds"] > row["setup_seconds"] > 0
        assert row["probe_dollars"] == pytest.approx(
            PRICES[name] * row["probe_seconds"] / UNIT, rel=1e-6
        )
    for name, price in PRICES.items():
        assert f"{name}: ${price:.2f}" in done.stderr, done.stderr


def test_without_a_yes_nothing_is_rented(bed, laptop):  # noqa: F811
    done = laptop.call(*bench(laptop), timeout=60)
    assert done.returncode != 0 and "-y" in done.stderr, done.stderr
    assert bed.live() == []


def test_ctrl_c_gives_all_back(bed, laptop):  # noqa: F811
    started = laptop.start(*bench(laptop, "-y", "--iterations", "100000"))
    wait_for(lambda: len(bed.live()) == 2, "both are rented", 120)
    started.send_signal(signal.SIGINT)
    assert started.wait(120) == 130
    assert bed.live() == [] and bed.others() == []


@pytest.mark.parametrize(
    "words, hint",
    [
        (["--candidates", f"{FAST}+{SLOW}"], "of one type"),
        (["--candidates", f"{FAST},{FAST}"], "given twice"),
        (["--candidates", f"{FAST}=0"], "above 0"),
        (["--candidates", FAST, "--budget", "0.000001"], "cap of 1e-06 dollars"),
    ],
)
def test_bad_candidates_rent_nothing(bed, laptop, words, hint):  # noqa: F811
    done = laptop.call(*bench(laptop, "-y", *words), timeout=60)
    assert done.returncode != 0 and hint in done.stderr + done.stdout, done.stderr
    assert bed.live() == []
