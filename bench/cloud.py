"""Twenty machines side by side, and a look at a thousand.

Against moto with hosts of the test bed as machines (tests/testbed_cloud.py;
needs root). Each host takes 15 to 25 seconds to boot, as rented machines do.
`up` of twenty stands against the moment at which the slowest has booted; the
CPU time that `status` itself uses for a thousand stands against a limit, its
memory against that for a hundred.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import measure

LOCKSTEP = str(measure.BUILD / "bin" / "lockstep")
NODES = 20
LIMIT_SECONDS = 2


def many(count):
    """Answers to DescribeInstances, a hundred a page."""

    def answer(parameters):
        first = int(parameters.get("NextToken", "0"))
        items = "".join(
            f"<item><instancesSet><item><instanceId>i-{number:017d}</instanceId>"
            "<instanceType>c5.xlarge</instanceType><instanceState><name>running"
            "</name></instanceState><launchTime>2026-11-15T08:00:00.000Z"
            "</launchTime><tagSet><item><key>lockstep:cluster</key><value>big"
            f"</value></item><item><key>lockstep:node</key><value>big-{number}"
            "</value></item><item><key>lockstep:hourly</key><value>0.17</value>"
            "</item></tagSet></item></instancesSet></item>"
            for number in range(first, min(first + 100, count))
        )
        more = f"<nextToken>{first + 100}</nextToken>" if first + 100 < count else ""
        return 200, f"<r><reservationSet>{items}</reservationSet>{more}</r>"

    return answer


# Started by a small process: a program inherits the peak of who starts it.
USE = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, use = os.wait4(pid, 0)
print(use.ru_utime + use.ru_stime, use.ru_maxrss / 1000, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def own_use(laptop, *words):
    """CPU seconds of one command, and the most memory it had in MB."""
    done = subprocess.run(
        [sys.executable, "-IS", "-c", USE, LOCKSTEP, *words],
        cwd=laptop.folder,
        env=laptop.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise measure.BenchError(f"{words}: {measure.tail(done.stderr)}")
    return tuple(map(float, done.stderr.splitlines()[-1].split()))


def bring_up(site, laptop):
    """Seconds of `up`, and until the slowest machine had booted."""
    # Spread over the range in an order of its own.
    site.machines.boot_seconds = lambda index: 15 + 10 * (index * 7 % NODES) / (NODES - 1)
    site.machines.booted.clear()
    file = laptop.file("many", nodes={"c5.xlarge": {"count": NODES}}, idle="10m")
    begun = time.time()
    done = laptop.up(file, timeout=measure.LIMIT)
    ended = time.time()
    if done.returncode != 0:
        raise measure.BenchError(done.stderr)
    slowest = max(site.machines.booted.values())
    laptop.call("down", "many", timeout=120)
    return ended - begun, slowest - begun


def look(table, cloud, laptop, rounds):
    """`status` over a hundred and over a thousand machines."""
    uses = {}
    for count in (100, 1000):
        cloud.documents["DescribeInstances"] = many(count)
        uses[count] = [own_use(laptop, "status", "--output", "json") for _ in range(rounds)]
    seconds = [one for one, _ in uses[1000]]
    table.runs["status"] = seconds
    table.add("cloud/status/1000/limit", max(seconds), LIMIT_SECONDS, "<=1", "s")
    most = {count: max(memory for _, memory in found) for count, found in uses.items()}
    table.add("cloud/status/memory/1000/100", most[1000], most[100], "<=1.5", "MB")


def main():
    arguments = measure.parse_arguments(__doc__.splitlines()[0])
    if os.geteuid() != 0:
        print("cloud: hosts in network namespaces need root", file=sys.stderr)
        return 1
    sys.path.insert(0, str(measure.ROOT / "tests"))
    from clusters import Laptop, Site
    from testbed_cloud import Cloud, Machines

    table = measure.Table("cloud")
    with tempfile.TemporaryDirectory() as name, Cloud() as cloud:
        with Machines(cloud) as machines:
            site = Site(cloud, machines)
            laptop = Laptop(pathlib.Path(name), site)
            if not arguments.only or arguments.only in "up":
                took, slowest = bring_up(site, laptop)
                table.add(f"cloud/up/{NODES}/slowest", took, slowest, "<=1.1", "s")
            if not arguments.only or arguments.only in "status":
                look(table, cloud, laptop, arguments.rounds)
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
