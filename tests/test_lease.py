"""The lease of a rented machine: its user-data run for real, on hosts of the test
bed whose shutdown is a script. One bed for all, so that the leases pass side by
side."""

import json
import os
import subprocess
import time

import pytest
from testbed import needs_root, wait_for
from testbed_cloud import PROBE, LeaseHosts

pytestmark = needs_root

LEASE = 12
FOLDER = "/var/lib/lockstep"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAITestTestTestTest"


def probe(verb, **order):
    done = subprocess.run(
        [PROBE, verb], input=json.dumps(order), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["answer"]


class Lease:
    """One host for one story."""

    def __init__(self, bed, alias):
        self.bed, self.alias = bed, alias
        self.file = bed.hosts[alias].folder / "var-lib/lockstep/lease/until"

    def begin(self, lease, longest=3600):
        script = probe("user-data", lease=lease, longest=longest, period=1, key=f"{KEY} me")
        self.bed.run_user_data(self.alias, script)
        wait_for(
            lambda: self.file.exists() and self.file.read_text(), "a lease stands"
        )
        self.first = float(self.file.read_text().split()[2])

    def fired(self):
        return self.bed.shutdowns(self.alias)

    def wait(self):
        return wait_for(self.fired, f"{self.alias} is shut down", 90)[0]


@pytest.fixture(scope="module")
def leases():
    names = ["plain", "renewed", "absent", "words", "zero", "future", "killed"]
    with LeaseHosts(len(names)) as bed:
        yield {name: Lease(bed, f"n{i + 1}") for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def begun(leases):
    """All stories begin at once; each test looks at the end of its own."""
    for name in ("plain", "killed"):
        leases[name].begin(LEASE)
    for name in ("absent", "words", "zero", "future"):
        leases[name].begin(3000)
        assert not leases[name].fired()
    leases["renewed"].begin(LEASE)
    far = time.time() + 9 * 86400
    leases["absent"].file.unlink()
    leases["words"].file.write_text("stay up, please\n")
    leases["zero"].file.write_text(f"lockstep-lease 1 0{time.time() + 600:.0f}\n")
    leases["future"].file.write_text(f"lockstep-lease 1 {far:.0f}\n")
    leases["tampered_at"] = time.time()
    bed = leases["killed"].bed
    loops = bed.processes(leases["killed"].alias, "lease.sh")
    assert loops
    for pid, line in loops:
        if "while" not in line:
            os.kill(pid, 9)
    # As the agent does.
    folder = bed.hosts[leases["renewed"].alias].folder / "var-lib/lockstep"
    leases["until"] = float(int(time.time()) + 2 * LEASE)
    probe("renew", folder=str(folder), until=leases["until"])
    return leases


def test_ends_when_the_lease_is_over(begun):
    at = begun["plain"].wait()
    assert at >= begun["plain"].first - 0.5


def test_a_renewed_lease_lasts_longer(begun):
    at = begun["renewed"].wait()
    assert begun["until"] > begun["renewed"].first + 2
    assert at >= begun["until"] - 0.5


@pytest.mark.parametrize("name", ["absent", "words", "zero", "future"])
def test_a_lease_that_is_not_ours_ends_the_machine(begun, name):
    at = begun[name].wait()
    # Not at once: a file may be away for a moment. Long before the lease.
    assert begun["tampered_at"] + 8 < at < begun[name].first


def test_a_timer_that_is_killed_comes_back(begun):
    at = begun["killed"].wait()
    assert at >= begun["killed"].first - 0.5


def test_the_key_is_there_once_and_the_folder_is_closed(begun):
    bed, alias = begun["plain"].bed, begun["plain"].alias
    script = bed.hosts[alias].folder / "user-data"
    home = bed.run(alias, "echo $HOME").strip()
    keys = f"{home}/.ssh/authorized_keys"
    wait_for(lambda: KEY in bed.run(alias, f"cat {keys}", check=False), "a key")
    assert bed.run(alias, f"cat {keys}") == f"{KEY}\n"
    assert bed.run(alias, f"stat -c %a {home}/.ssh {keys}").split() == ["700", "600"]
    text = script.read_text()
    for word in ("AWS_", "SECRET", "PRIVATE", "curl", "http"):
        assert word not in text
