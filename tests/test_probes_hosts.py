"""lockstep bench on hosts of different speed: cgroup quotas of 100, 50 and 25%
of a core. Exact numbers are in bench/; here the order must be right."""

import json
import os

import pytest

from control import Control
from testbed import Hosts, needs_root

pytestmark = needs_root

# The same work each iteration; its time is the machine's.
PROGRAM = r"""#!/usr/bin/env python3
import json, os, time

TOTAL = 60
with open(os.environ["LOCKSTEP_EVENTS"], "a") as file:
    def event(kind, **fields):
        head = {"v": 1, "kind": kind, "time": time.time(), "rank": 0, "node": "n"}
        file.write(json.dumps({**head, **fields}) + "\n")
        file.flush()
    event("init", program="made", world_size=1, seconds=0.1,
          facts={"total_steps": str(TOTAL)})
    for i in range(TOTAL):
        start = time.perf_counter()
        sum(range(5000000))
        total = time.perf_counter() - start
        event("iteration", step=i + 1, epoch=0, samples=8, data=0, compute=total,
              communication=0, wait=0, total=total)
"""

# A sample costs 1 on n1, 0.5 on n2, 0.8 on n3.
ROUNDS = 20 if os.environ.get("LOCKSTEP_SOAK") else 3
CANDIDATES = "n1=0.40,n2=0.10,n3=0.08"


@pytest.fixture(scope="module")
def hosts():
    with Hosts(3) as bed:
        for name, share in (("n1", 1.0), ("n2", 0.5), ("n3", 0.25)):
            bed.limit_cpu(name, share)
        yield bed


@pytest.fixture
def control(tmp_path, hosts):
    one = Control(tmp_path)
    one.script("program", PROGRAM)
    one.script("job.yaml", "name: made\nworkdir: .\nrun: ./program\n")
    one.environment.update(hosts.environment())
    yield one
    one.end_all()


def bench(control, number):
    result = control.call(
        "bench", "job.yaml", "--candidates", CANDIDATES, "--out", f"b{number}",
        "--output", "json", timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_hosts_are_ranked_by_cost_and_by_speed(control):
    for number in range(ROUNDS):
        result = bench(control, number)
        assert [one["name"] for one in result["candidates"]][0] == "n2", result
        assert result["cheapest"] == "n2" and result["fastest"] == "n1", result
        by_name = {one["name"]: one for one in result["candidates"]}
        seconds = [by_name[n]["iteration"]["seconds"] for n in ("n1", "n2", "n3")]
        assert seconds[0] < seconds[1] < seconds[2], seconds
        assert by_name["n2"]["whole"]["dollars"]["value"] > 0


def test_a_phase_that_the_slow_reach_later_misleads_nobody(control):
    """A slow host is still in its short first steps when the fast ones are not."""
    late = PROGRAM.replace("range(5000000)", "range(1500000 if i < 8 else 5000000)")
    control.script("program", late)
    result = bench(control, 8)
    assert result["cheapest"] == "n2" and result["fastest"] == "n1", result


def test_a_host_that_cannot_be_reached_does_not_end_the_bench(control, hosts):
    hosts.cut("n3")
    try:
        result = bench(control, 9)
    finally:
        hosts.restore("n3")
    by_name = {one["name"]: one for one in result["candidates"]}
    assert by_name["n3"]["state"] == "failed" and by_name["n3"]["reason"]
    assert result["cheapest"] == "n2"
