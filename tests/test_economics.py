"""lockstep bench --replay: recorded runs through the race, on made files."""

import csv
import json
import math
import random

import pytest

from control import Control

COLUMNS = (
    "suite,experiment,instance,nodes,usd_per_hour_each,pi_count,pi_total_sum_ms,"
    "pi_mean_ms,pi2_ms,pi2_5_mean_ms,pi2_10_mean_ms,first32_mean_ms,first64_mean_ms,"
    "half_second_mean_ms,wallclock_ms"
).split(",")


def made_run(rng, experiment, name, nodes):
    """A machine with a speed, a price that nearly follows it, and noise."""
    speed = math.exp(rng.gauss(0, 0.7))
    price = 0.2 * speed * math.exp(rng.gauss(0, 0.5))
    series = [
        1000 / speed * math.exp(rng.gauss(0, 0.05)) * (1 + 0.5 * math.exp(-i / 3))
        for i in range(300)
    ]

    def mean(first, last):
        return sum(series[first:last]) / (last - first)

    return {
        "suite": "made",
        "experiment": experiment,
        "instance": name,
        "nodes": nodes,
        "usd_per_hour_each": price,
        "pi_count": len(series),
        "pi_total_sum_ms": sum(series),
        "pi_mean_ms": mean(0, len(series)),
        "pi2_ms": series[1],
        "pi2_5_mean_ms": mean(1, 5),
        "pi2_10_mean_ms": mean(1, 10),
        "first32_mean_ms": mean(0, 32),
        "first64_mean_ms": mean(0, 64),
        "half_second_mean_ms": series[1],
        "wallclock_ms": sum(series),
    }


def made_runs(seed, experiments=60, machines=12):
    rng = random.Random(seed)
    return [
        made_run(rng, f"e{e}", f"m{m}", 1 + e % 3)
        for e in range(experiments)
        for m in range(machines)
    ]


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def control(tmp_path):
    return Control(tmp_path)


def replay(control, rows):
    write(control.folder / "runs.csv", rows)
    result = control.call("bench", "--replay", "runs.csv", "--output", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_recorded_runs_are_scored(control):
    score, _ = replay(control, made_runs(1))
    assert list(score) == [
        "experiments", "cheapest", "fastest", "mean_regret", "max_regret", "probe_cost"
    ]
    assert score["experiments"] == 60
    assert score["cheapest"] >= 0.9
    assert score["mean_regret"] <= 0.01
    assert score["probe_cost"] <= 0.25


def test_the_truth_changes_no_pick(control):
    """Columns of the truth scrambled: the probes cost the same to the digit."""
    rows = made_runs(2, experiments=10)
    before, _ = replay(control, rows)
    rng = random.Random(3)
    for row in rows:
        row["pi_mean_ms"] = rng.uniform(1, 1000)
        row["pi_total_sum_ms"] = rng.uniform(1, 1000)
        row["wallclock_ms"] = ""
        row["half_second_mean_ms"] = "nonsense"
    after, _ = replay(control, rows)
    assert after["probe_cost"] == before["probe_cost"]
    assert after["mean_regret"] != before["mean_regret"]


def test_a_run_without_a_price_is_left_out_by_name(control):
    rows = made_runs(4, experiments=2)
    rows[3]["usd_per_hour_each"] = 0
    score, log = replay(control, rows)
    assert score["experiments"] == 2
    assert "runs.csv: row 4 (e0, m3): usd_per_hour_each is 0" in log


def test_a_byte_order_mark_is_no_part_of_a_name(control):
    rows = made_runs(4, experiments=2)
    before, _ = replay(control, rows)
    file = control.folder / "runs.csv"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    result = control.call("bench", "--replay", "runs.csv", "--output", "json")
    assert json.loads(result.stdout) == before


def test_stages_that_were_not_recorded(control):
    rows = made_runs(4, experiments=2)
    for row in rows:
        row["pi2_ms"] = row["pi2_10_mean_ms"] = ""
    score, _ = replay(control, rows)
    assert score["experiments"] == 2 and score["probe_cost"] < 1
    for row in rows:
        row.update({name: "" for name in row if name.endswith("_mean_ms") and name != "pi_mean_ms"})
    write(control.folder / "runs.csv", rows)
    result = control.call("bench", "--replay", "runs.csv")
    assert result.returncode == 2 and "no run has a stage" in result.stderr


@pytest.mark.parametrize(
    "text, word",
    [
        ("", "header"),
        ("a,b\n1,2\n", "usd_per_hour_each"),
        (",".join(COLUMNS) + "\n", "no run in it"),
        (",".join(COLUMNS) + "\n" + "x," * 14 + "x\n", "'x'"),
        ("\0\1\2", "runs.csv"),
    ],
)
def test_bad_files_are_refused(control, text, word):
    (control.folder / "runs.csv").write_text(text)
    result = control.call("bench", "--replay", "runs.csv")
    assert result.returncode == 2, result.stdout
    assert result.stderr.startswith("lockstep: ") and word in result.stderr


def test_bad_commands_are_refused(control):
    for words in (["bench"], ["bench", "--replay", "absent.csv"],
                  ["bench", "job.yaml", "--replay", "runs.csv"],
                  ["bench", "--replay", "."],
                  ["bench", "--replay", "runs.csv", "--budget", "3"]):
        result = control.call(*words)
        assert result.returncode == 2, (words, result.stdout)
        assert result.stderr.startswith("lockstep: ")
