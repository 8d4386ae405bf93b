"""`optimise:` in a job: rented hosts of the test bed whose speed and price depend
on their type, a cluster that changes while it trains, and what it refuses."""

import re

import pytest
import yaml
from clusters import Laptop, Site, tags_of
from testbed import needs_root, wait_for
from testbed_cloud import REGION, Cloud, Machines
from trainer import TRAIN

pytestmark = needs_root

# Of a core, and dollars an hour: a sample costs 0.5 on FAST and 1.67 on SLOW.
FAST, SLOW = "c5.xlarge", "c5.large"
SHARES = {FAST: 0.6, SLOW: 0.15}
PRICES = {FAST: 0.30, SLOW: 0.25}


class Quotas(Machines):
    """Machines whose speed is that of their type."""

    types = {}

    def see(self, instance, one):
        self.types[one["PrivateIpAddress"]] = one["InstanceType"]
        super().see(instance, one)

    def wait_until_up(self, host):
        super().wait_until_up(host)
        self.limit_cpu(host.alias, SHARES[self.types[host.address]])


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Quotas(cloud) as machines:
        yield Site(cloud, machines)


@pytest.fixture
def laptop(bed, tmp_path):
    bed.reset()
    laptop = Laptop(tmp_path, bed)
    laptop.environment["LOCKSTEP_TRAINER_REMOTE"] = TRAIN
    config = tmp_path / "config/lockstep"
    config.mkdir(parents=True)
    (config / "config.yaml").write_text(yaml.safe_dump({"prices": PRICES}))
    yield laptop
    laptop.end_all()
    bed.clear()


def job(laptop, steps=300, resources=None, train=None, optimise=None, **keys):
    site = laptop.site
    (laptop.folder / "work").mkdir(exist_ok=True)
    content = {
        "name": "tune",
        "num_nodes": 2,
        "workdir": str(laptop.folder / "work"),
        "envs": {"OMP_NUM_THREADS": "1"},
        "train": {
            "recipe": "vit",
            "data": {"name": "synthetic", "length": 640, "image_size": 32,
                     "global_batch_size": 32, "workers": 0},
            "model": {"name": "vit_tiny_patch16_224", "patch": 4, "dim": 48,
                      "depth": 4, "heads": 3},
            "optim": {"lr": 0.001, "schedule": "constant"},
            "trainer": {"max_steps": steps, "max_epochs": 1000, "device": "cpu"},
            **(train or {}),
        },
        "optimise": {"goal": "cost", "period": "4s", "candidates": [SLOW, FAST],
                     **(optimise or {})},
        "resources": {
            "cloud": "aws",
            "region": REGION,
            "image_id": site.image["ImageId"],
            "user": "root",
            "subnet": site.machines.subnet_id,
            "ssh_from": ["203.0.113.7/32"],
            "idle": "60s",
            "ssh_timeout": "60s",
            **(resources or {}),
        },
        **keys,
    }
    path = laptop.folder / "job.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}))
    return path


def decisions(run):
    return [one for one in run.events() if one["kind"] == "decision"]


def types_of(site):
    return sorted(one["InstanceType"] for one in site.live())


def test_from_a_mixed_cluster_to_the_ideal_set(bed, laptop):
    # Long enough that the minute that is charged at least decides nothing.
    steps_in_all = 600
    done = laptop.call("run", job(laptop, steps_in_all), "-y", timeout=240)
    assert done.returncode == 0, done.stderr
    assert bed.live() == [] and bed.others() == []
    [run] = laptop.runs()
    told = decisions(run)
    changes = [i for i, one in enumerate(told) if one["action"] == "change"]
    # Within three periods after the first full one, and never back.
    assert len(changes) == 1 and changes[0] <= 3, told
    reason = told[changes[0]]["reason"]
    assert f"1 x {FAST} instead of" in reason and "the change costs" in reason
    # Every step once, from the checkpoint that was taken for the change.
    steps = [one for one in run.events() if one["kind"] == "iteration"]
    last = [one for one in steps if one["step"] == steps_in_all]
    assert len(last) == 1 and last[0]["samples"] == 32
    alone = min(one["step"] for one in steps if one["samples"] == 32)
    assert {one["step"] for one in steps} == set(range(1, steps_in_all + 1))
    assert all(one["samples"] == 16 for one in steps if one["step"] < alone)
    saved = [one for one in run.events() if one["kind"] == "checkpoint"]
    assert [one["step"] for one in saved if one["reason"] == "signal"] == [alone - 1]
    # Cheaper than the mixed cluster would have been from here to the end.
    mixed = [one for one in steps if one["step"] < alone and one["rank"] == 0]
    seconds = sorted(one["total"] for one in mixed)[len(mixed) // 2]
    without = steps_in_all * seconds * (PRICES[FAST] + PRICES[SLOW]) / 3600
    assert run.state()["cost"] < without
    # What two sittings left came here: checkpoints, best and last, of each.
    fetched = sum(
        path.stat().st_size
        for path in (run.path / "sittings").glob("*/runs/*/**/*") if path.is_file()
    )
    traffic = float(re.search(r"\$([0-9.]+) of it for traffic", done.stderr)[1])
    assert traffic == pytest.approx(fetched / 1e9 * 0.09, rel=0.2), done.stderr
    book = (run.path / "logbook.md").read_text()
    assert "## Decisions" in book and "timeline.svg" in book
    assert (run.path / "plots/timeline.svg").exists()
    assert (run.path / "checkpoints/last.safetensors").exists()
    assert run.state()["state"] == "done"


def test_for_time_the_faster_set_is_paid_for(bed, laptop):
    """Dearer an hour, and within the budget."""
    path = job(laptop, 700, optimise={"goal": "time", "max_nodes": 2}, budget=1)
    done = laptop.call("run", path, "-y", timeout=240)
    assert done.returncode == 0, done.stderr
    assert bed.live() == [] and bed.others() == []
    [run] = laptop.runs()
    changes = [one for one in decisions(run) if one["action"] == "change"]
    assert len(changes) == 1, decisions(run)
    assert f"2 x {FAST} instead of" in changes[0]["reason"], changes
    steps = [one for one in run.events() if one["kind"] == "iteration"]
    at = changes[0]["time"]
    before = [one["total"] for one in steps if one["time"] < at]
    after = [one["total"] for one in steps if one["time"] > at]
    middle = len(after) // 2
    assert sorted(after)[middle] < 0.7 * sorted(before)[len(before) // 2]


@pytest.mark.parametrize("goal, nodes", [("cost", 1), ("time", 2)])
def test_a_node_that_degrades_goes(bed, laptop, goal, nodes):
    """For cost one does as well as two; for time another takes its place."""
    wish = {"goal": goal, "candidates": [FAST], "max_nodes": 2}
    path = job(laptop, 700, optimise=wish, budget=1)
    started = laptop.start("run", path, "-y")

    def told(kind):
        runs = [run for run in laptop.runs() if (run.path / "events.jsonl").exists()]
        return runs and [one for one in runs[0].events() if one["kind"] == kind]

    wait_for(lambda: len(told("iteration") or []) > 10, "it trains", 90)
    [bad] = [one for one in bed.live() if tags_of(one)["lockstep:node"].endswith("-b0")]
    bed.machines.limit_cpu(bed.machines.alias_of(bad["InstanceId"]), 0.1)
    wait_for(
        lambda: bed.live() and bad["InstanceId"] not in [one["InstanceId"] for one in bed.live()],
        "the slow one is given back", 120,
    )
    wait_for(lambda: types_of(bed) == [FAST] * nodes, f"{nodes} train", 60)
    _, words = started.communicate(timeout=120)
    assert started.returncode == 0, words
    assert bed.live() == []
    changes = [one for one in told("decision") if one["action"] == "change"]
    assert len(changes) == 1, changes


def test_no_change_when_none_pays(bed, laptop):
    SHARES[SLOW], before = 0.5, SHARES[SLOW]
    try:
        done = laptop.call("run", job(laptop, 120), "-y", timeout=240)
    finally:
        SHARES[SLOW] = before
    assert done.returncode == 0, done.stderr
    [run] = laptop.runs()
    assert {one["action"] for one in decisions(run)} == {"keep"}, decisions(run)


def test_a_dry_run_only_recommends_and_an_interrupt_gives_back(bed, laptop):
    path = job(laptop, 3000, optimise={"dry_run": True})
    started = laptop.start("run", path, "-y")

    def recommended():
        runs = [run for run in laptop.runs() if (run.path / "events.jsonl").exists()]
        return runs and "would change" in [one["action"] for one in decisions(runs[0])]

    wait_for(recommended, "it recommends a change", 90)
    assert types_of(bed) == [SLOW, FAST]
    started.terminate()
    _, words = started.communicate(timeout=90)
    assert started.returncode == 130, words
    assert bed.live() == []
    [run] = laptop.runs()
    assert {one["samples"] for one in run.events() if one["kind"] == "iteration"} == {16}
    assert (run.path / "checkpoints/last.safetensors").exists()
    assert run.state()["state"] == "stopped"


@pytest.mark.parametrize(
    "keys, words, hint",
    [
        ({"train": {"data": {"name": "synthetic", "batch_size": 16}}}, ["-y"],
         "global_batch_size"),
        ({"optimise": {"goal": "beauty"}}, ["-y"], "accepted: cost, time"),
        ({"optimise": {"candidates": []}}, ["-y"], "no machine type is named"),
        ({"optimise": {"candidates": ["c5.xlrage"]}}, ["-y"], "c5.xlarge"),
        ({"optimise": {"period": "10ms"}}, ["-y"], "optimise.period"),
        ({"budget": "0.001 USD"}, ["-y"], "below the cost of one minute"),
        ({}, ["-y", "--detach"], "--detach"),
    ],
)
def test_bad_input_rents_nothing(bed, laptop, keys, words, hint):
    before = len(bed.instances())
    done = laptop.call("run", job(laptop, **keys), *words, timeout=60)
    assert done.returncode == 2 and hint in done.stderr, done.stderr
    assert len(bed.instances()) == before


def test_a_program_that_hides_its_wait_is_refused(bed, laptop):
    path = job(laptop)
    content = yaml.safe_load(path.read_text())
    del content["train"]
    content["run"] = "true"
    path.write_text(yaml.safe_dump(content))
    done = laptop.call("run", path, "-y")
    assert done.returncode == 2 and "lockstep bench" in done.stderr, done.stderr
    assert "wait" in done.stderr and bed.live() == []
