"""Nothing is ever left running: the controller dies at every step of
provisioning, the network is cut at every step, and the way to the cloud fails at
random. The AWS SDK is the witness; hosts of the test bed are the machines, whose
own timers end them.

LOCKSTEP_SOAK=1: two nodes instead of one, and 200 rounds of random faults."""

import json
import os
import random
import subprocess
import threading
import time

import pytest
from clusters import Laptop, Site, tags_of
from fault_proxy import FaultProxy
from testbed import needs_root, wait_for
from testbed_cloud import REGION, Cloud, Machines

pytestmark = needs_root

SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
NODES = 2 if SOAK else 1
ROUNDS = 200 if SOAK else 3
LEASE = 12
SIDE_BY_SIDE = 6


@pytest.fixture(scope="module")
def site():
    with Cloud() as cloud, Machines(cloud) as machines:
        yield Site(cloud, machines)


@pytest.fixture
def fresh(site, tmp_path):
    """A machine that has never seen a cluster."""
    laptop = Laptop(tmp_path / "fresh", site)
    yield laptop
    laptop.end_all()


def make(folder, site, name, url=None):
    laptop = Laptop(folder, site, url)
    file = laptop.file(
        name,
        nodes={"c5.xlarge": {"count": NODES, "setup": "echo ready > ~/ready"}},
        idle=f"{LEASE}s",
        ssh_timeout="30s",
    )
    return laptop, file


def side_by_side(jobs):
    """Each job in a thread; the first failure is told."""
    failed = []
    gate = threading.Semaphore(SIDE_BY_SIDE)

    def run(job):
        with gate:
            try:
                job()
            except BaseException as error:  # noqa: B902
                failed.append(error)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def count_records(site, folder):
    """How many records an `up` writes, from its own journal."""
    laptop, file = make(folder, site, "whole")
    done = laptop.up(file)
    assert done.returncode == 0, done.stderr
    records = laptop.journal("whole")
    assert laptop.call("down", "whole").returncode == 0
    assert [one["n"] for one in records] == list(range(1, len(records) + 1))
    steps = {one.get("step") for one in records}
    assert {"want", "key-pair", "security-group", "launch", "confirm", "setup", "up"} <= steps
    return len(records)


def never_twice(site):
    """One machine for a token, one living machine for a node."""
    tokens = [tags_of(one)["lockstep:token"] for one in site.instances()]
    assert len(tokens) == len(set(tokens))
    names = [tags_of(one)["lockstep:node"] for one in site.live()]
    assert len(names) == len(set(names))


def ends_at_zero(site, fresh):
    """Machines by their own timers; then an audit from elsewhere finds nothing
    to pay for, and ends the rest once nobody claims it."""
    wait_for(lambda: not site.live(), "all machines have ended", 150)
    told = json.loads(fresh.call("audit", "--output", "json").stdout)
    assert not [one for one in told["resources"] if one["kind"] == "instance"]

    def is_clean():
        done = fresh.call("audit", "--fix", "--output", "json")
        assert done.returncode == 0, done.stderr
        return not json.loads(fresh.call("audit", "--output", "json").stdout)["resources"]

    wait_for(is_clean, "nothing carries our tag", 150)
    assert site.others() == []


def test_the_controller_is_killed_at_every_step(site, fresh, tmp_path):
    site.reset()
    number = count_records(site, tmp_path / "whole")
    points = [f"{when}:{n}" for n in range(1, number + 1) for when in ("before", "after")]
    resumed = []

    def kill(index, point):
        name = f"k{index}"
        laptop, file = make(tmp_path / name, site, name)
        done = laptop.up(file, env={"LOCKSTEP_FLEET_STOP": point})
        assert done.returncode == -9, (point, done.returncode, done.stderr)
        launched = len(site.instances(name))
        assert launched <= NODES, point
        # Every third is finished by the next command, every third undone.
        if index % 3 == 0:
            again = laptop.up(file)
            assert again.returncode == 0, (point, again.stderr)
            assert len(site.live(name)) == NODES, point
            resumed.append(name)
        elif index % 3 == 1:
            down = laptop.call("down", name, timeout=120)
            assert down.returncode == 0, (point, down.stderr)
            assert not site.live(name), point
            assert len(site.instances(name)) == launched, point

    side_by_side([lambda i=i, p=p: kill(i, p) for i, p in enumerate(points)])
    assert len(resumed) >= len(points) // 3
    never_twice(site)
    ends_at_zero(site, fresh)


def test_the_network_is_cut_at_every_step(site, fresh, tmp_path):
    site.reset()
    number = count_records(site, tmp_path / "whole")

    def cut(n):
        name = f"c{n}"
        with FaultProxy(site.cloud.front.server_address[1]) as proxy:
            laptop, file = make(tmp_path / name, site, name, proxy.url)
            command = laptop.start("up", file, "-y", stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
            try:
                wait_for(lambda: len(laptop.journal(name)) >= n or command.poll() is not None,
                         f"record {n} is written", 120)
                # From now on nobody reaches the cloud or the nodes.
                proxy.chaos = lambda request: {"kind": "before"}
                for one in site.instances(name):
                    alias = site.machines.by_instance.get(one["InstanceId"])
                    if alias and one["InstanceId"] not in site.machines.over:
                        site.machines.cut(alias)
                wait_for(lambda: not site.live(name), f"cut at {n}: all ended", 150)
            finally:
                command.kill()
                command.wait(30)

    side_by_side([lambda n=n: cut(n) for n in range(1, number + 1)])
    never_twice(site)
    ends_at_zero(site, fresh)


LIMIT = (
    b"<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>Request "
    b"limit exceeded.</Message></Error></Errors><RequestID>r</RequestID></Response>"
)
SLOW = LIMIT.replace(b"RequestLimitExceeded", b"SlowDown")
FAILED = LIMIT.replace(b"RequestLimitExceeded", b"InternalError")


def chaos_of(seed, share):
    chance = random.Random(seed)
    lock = threading.Lock()

    def chaos(request):
        with lock:
            if chance.random() > share:
                return None
            kind = chance.choice(
                ["delay", "before", "after", "limit", "slow", "500", "truncate", "stale"]
            )
            seconds = chance.random()
        if kind == "stale" and b"Action=Describe" not in request.start:
            return None
        if kind == "delay":
            return {"kind": "delay", "seconds": seconds}
        if kind in ("limit", "slow", "500"):
            status, body = {"limit": (503, LIMIT), "slow": (503, SLOW), "500": (500, FAILED)}[kind]
            return {"kind": "status", "status": status, "body": body}
        return {"kind": kind}

    return chaos


def test_random_faults_leak_nothing(site, fresh, tmp_path):
    site.reset()
    seed = int(os.environ.get("LOCKSTEP_SEED", time.time()))
    print("seed", seed)
    budget = 0.02

    def round_of(number):
        name = f"r{number}"
        with FaultProxy(site.cloud.front.server_address[1]) as proxy:
            laptop, file = make(tmp_path / name, site, name, proxy.url)
            with open(file, "a") as text:
                text.write(f"budget: {budget} USD\n")
            proxy.chaos = chaos_of(seed + number, 0.15)
            done = laptop.up(file, timeout=240)
            assert done.returncode in (0, 3), (seed, number, done.stderr)
            if done.returncode == 0:
                assert len(site.live(name)) == NODES, (seed, number)
            if number % 2 == 0:
                laptop.call("down", name, timeout=240)

    side_by_side([lambda n=n: round_of(n) for n in range(ROUNDS)])
    never_twice(site)
    ends_at_zero(site, fresh)
    # What each cluster cost, by the witness, at the price that it was told, the
    # end of a machine being at most now.
    spent = {}
    for one in site.instances():
        name = tags_of(one)["lockstep:cluster"]
        if name.startswith("r"):
            lived = max(60, time.time() - one["LaunchTime"].timestamp())
            reason = one.get("StateTransitionReason", "")
            ended = ended_at(reason)
            if ended:
                lived = max(60, ended - one["LaunchTime"].timestamp())
            spent[name] = spent.get(name, 0) + lived / 3600 * 0.175
    assert all(cost <= budget for cost in spent.values()), (seed, spent)


def ended_at(reason):
    """Of "User initiated (2026-11-15 18:00:00 UTC)", Unix seconds."""
    import calendar
    import re

    found = re.search(r"\((\d+-\d+-\d+ \d+:\d+:\d+)", reason)
    return found and calendar.timegm(time.strptime(found[1], "%Y-%m-%d %H:%M:%S"))
