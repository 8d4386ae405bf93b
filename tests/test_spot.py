"""Spot machines under a run: the two-minute notice and the rebalance hint of the
metadata service, machines that vanish, others in their place, and the head."""

import datetime
import json
import sys
import time

import pytest
from clusters import Laptop, Site
from test_run_cloud import begun, job, nothing_is_left
from testbed import ROOT, needs_root, wait_for
from testbed_cloud import Cloud, Machines, refusal

pytestmark = needs_root

SERVER = ROOT / "tests" / "metadata_server.py"

# Ranks that end well when they are told to, and are done once they were started
# again; rank 0 leaves a checkpoint.
RANKS = """
save() { echo "saved on $RANK"; mkdir -p "$LOCKSTEP_CHECKPOINTS"
         echo "of $WORLD_SIZE" > "$LOCKSTEP_CHECKPOINTS/last"; exit 0; }
trap save TERM
echo "begun of $WORLD_SIZE, start $TORCHELASTIC_RESTART_COUNT"
[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || { echo "resumed of $WORLD_SIZE"; exit 0; }
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def bed():
    with Cloud() as cloud, Machines(cloud) as machines:
        yield Site(cloud, machines)


@pytest.fixture
def site(bed):
    bed.reset()
    yield bed
    bed.clear()


@pytest.fixture
def laptop(site, tmp_path):
    laptop = Laptop(tmp_path, site)
    laptop.environment["LOCKSTEP_SPOT_WAIT"] = "1s"
    (tmp_path / "work").mkdir()
    yield laptop
    laptop.end_all()


class Metadata:
    """Of one machine of the bed, at the address that every machine asks."""

    def __init__(self, site, instance):
        self.machines, self.alias = site.machines, site.machines.alias_of(instance)
        self.folder = self.machines.hosts[self.alias].folder / "metadata"
        self.folder.mkdir()
        self.machines.run(self.alias, "ip addr add 169.254.169.254/32 dev lo")
        self.machines.popen(
            self.alias, f"exec {sys.executable} {SERVER} {self.folder}",
            log=f"{self.alias}/metadata.log",
        )

    def put(self, path, **document):
        file = self.folder / "latest/meta-data" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(".new")
        temporary.write_text(json.dumps(document))
        temporary.rename(file)

    def asked(self):
        file = self.folder / "asked"
        return file.read_text() if file.exists() else ""


def when(seconds):
    moment = datetime.datetime.fromtimestamp(time.time() + seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def told(run, kind, word, host=None):
    """Events of the run by kind that say the word."""
    return [
        one
        for one in run.events()
        if one["kind"] == kind and word in json.dumps(one)
        and host in (None, one.get("host"))
    ]


def spot_of(site):
    live = site.live()
    [head] = [one for one in live if one.get("InstanceLifecycle") != "spot"]
    return head, [one for one in live if one.get("InstanceLifecycle") == "spot"]


def test_the_notice_reaches_the_run_and_another_machine_takes_the_place(site, laptop):
    started = laptop.start(
        "run", job(laptop, RANKS, resources={"use_spot": "true"}, grace="20s"), "-y"
    )
    run = begun(laptop)
    head, [spot] = spot_of(site)  # the head is on demand
    metadata = Metadata(site, spot["InstanceId"])
    wait_for(lambda: "PUT /latest/api/token 200" in metadata.asked(), "it asks", 60)
    # A hint alone changes nothing.
    metadata.put("events/recommendations/rebalance", noticeTime=when(0))
    wait_for(lambda: told(run, "node", "rebalance"), "the hint is told", 60)
    assert not told(run, "decision", "restart")
    metadata.put("spot/instance-action", action="terminate", time=when(120))
    wait_for(lambda: told(run, "node", "interruption: terminate at"), "it is told", 60)
    _, words = started.communicate(timeout=150)
    assert started.returncode == 0, words  # though --retries is 0
    # Ranks had their time, and went on with two nodes.
    assert "saved on 0" in run.log(0) and "resumed of 2" in run.log(0)
    assert "saved on 1" in run.log(1) and "resumed of 2" in run.log(1)
    assert (run.path / "checkpoints/last").read_text() == "of 2\n"
    ids = [one["InstanceId"] for one in site.instances()]
    assert len(ids) == 3 and head["InstanceId"] in ids
    [price] = told(run, "decision", "without ranks")
    assert "$" in json.dumps(price)
    assert "without ranks" in (run.path / "logbook.md").read_text()
    assert "nothing is replaced while this machine is off" in words
    nothing_is_left(site)


def test_one_that_vanishes_uses_up_no_retry_and_auto_pays_after_a_wait(site, laptop):
    """No notice; and no spot machine is to be had any more."""
    started = laptop.start(
        "run", job(laptop, RANKS, resources={"use_spot": "auto"}), "-y"
    )
    run = begun(laptop)
    _, [spot] = spot_of(site)
    before = len(site.instances())
    refused = []

    def launch(parameters):
        if parameters.get("InstanceMarketOptions.MarketType") == "spot":
            refused.append(parameters)
            return refusal("InsufficientInstanceCapacity", "no spot here")

    site.cloud.documents["RunInstances"] = launch
    site.ec2.terminate_instances(InstanceIds=[spot["InstanceId"]])
    _, words = started.communicate(timeout=200)
    assert started.returncode == 0, words
    assert "resumed of 2" in run.log(0) and "resumed of 2" in run.log(1)
    assert refused and len(site.instances()) == before + 1
    last = max(site.instances(), key=lambda one: one["LaunchTime"])
    assert last.get("InstanceLifecycle") != "spot"
    assert told(run, "decision", "without ranks")
    nothing_is_left(site)


def test_losing_the_head_ends_the_run_and_gives_back(site, laptop):
    started = laptop.start(
        "run", job(laptop, RANKS, resources={"use_spot": "true"}), "-y"
    )
    begun(laptop)
    head, _ = spot_of(site)
    site.ec2.terminate_instances(InstanceIds=[head["InstanceId"]])
    _, words = started.communicate(timeout=200)
    assert started.returncode == 3, words
    assert "the cloud says that its machine has ended" in words
    nothing_is_left(site)
