"""The test bed itself: hosts come up, are cut off and leave nothing behind."""

import os
import subprocess
import sys
import textwrap
import time

import pytest
from testbed import (
    BASE,
    PREFIX,
    Hosts,
    links,
    machine_lock,
    namespaces,
    needs_root,
    sweep,
    wait_for,
)
from testbed_containers import Docker, Podman, needs_docker, needs_podman
from testbed_slurm import Slurm, needs_slurm


@pytest.fixture(scope="module")
def four():
    with Hosts(4) as hosts:
        yield hosts


def assert_gone(token):
    wait_for(
        lambda: not any(name.startswith(f"lk{token}") for name in links()),
        "no interface is left",
    )
    assert not any(name.startswith(f"lk{token}") for name in namespaces())
    assert not (BASE / f"{PREFIX}{token}").exists()


@needs_root
def test_four_hosts_and_nothing_after():
    began = time.monotonic()
    with Hosts(4) as hosts:
        print(f"four hosts: {time.monotonic() - began:.2f} s")
        names = [hosts.ssh(name, "hostname").strip() for name in hosts.names]
        assert names == ["node1", "node2", "node3", "node4"]
        inits = [host.init for host in hosts.hosts.values()]
        hosts.ssh("n1", "setsid sleep 1000 >/dev/null 2>&1 </dev/null &")
        ((sleeper, _),) = wait_for(
            lambda: hosts.processes("n1", "sleep\x001000"), "it sleeps"
        )
    for pid in [*inits, sleeper]:
        assert not os.path.exists(f"/proc/{pid}"), pid
    assert_gone(hosts.token)


@needs_root
def test_hosts_have_their_own_places(four):
    four.ssh("n1", "echo one > ~/mark; echo two > /tmp/mark; echo three > /dev/shm/mark")
    for name in ("n2", "n3", "n4"):
        gone = four.ssh(name, "ls ~/mark /tmp/mark /dev/shm/mark 2>&1 || true")
        assert gone.count("No such file") == 3, gone
    assert four.ssh("n1", "cat ~/mark /tmp/mark").split() == ["one", "two"]
    assert (four.hosts["n1"].home / "mark").read_text() == "one\n"
    # Process ids of their own, the network too; a shared folder by name.
    assert "sshd" in four.ssh("n2", "cat /proc/1/cmdline")
    assert four.address("n2") in four.ssh("n2", "ip -4 -br addr")
    (four.shared / "hello").write_text("here")
    assert four.ssh("n3", f"cat {four.shared}/hello") == "here"
    assert four.ssh("n4", "getent hosts node1").split()[0] == four.address("n1")


@needs_root
def test_cut_restore_drop(four):
    def reaches(source, goal):
        words = f"timeout 2 bash -c 'exec 3<>/dev/tcp/{four.address(goal)}/22'"
        return four.run(source, words + " && echo yes || true").strip() == "yes"

    assert reaches("n1", "n2") and reaches("n2", "n1")
    four.cut("n2")
    assert not reaches("n1", "n2")
    assert four.run("n2", "hostname").strip() == "node2"  # it lives on
    four.restore("n2")
    wait_for(lambda: reaches("n1", "n2"), "n2 is back")
    # Packets of n3 are lost in n1; the others still come.
    four.drop("n1", "-s", four.address("n3"))
    assert not reaches("n3", "n1")
    assert reaches("n4", "n1")
    four.drop_nothing("n1")
    assert reaches("n3", "n1")


@needs_root
def test_power_off_and_on(four):
    four.ssh("n4", "setsid sleep 1001 >/dev/null 2>&1 </dev/null &")
    (found,) = wait_for(lambda: four.processes("n4", "sleep\x001001"), "it sleeps")
    four.ssh("n4", "echo kept > ~/kept")
    four.power_off("n4")
    assert not os.path.exists(f"/proc/{found[0]}")
    assert four.processes("n4", "sleep") == []
    four.power_on("n4")
    assert four.ssh("n4", "cat ~/kept; hostname").split() == ["kept", "node4"]


@needs_root
def test_limits(four):
    try:
        four.limit_memory("n3", 64 << 20)
        four.limit_cpu("n3", 0.25)
    except (RuntimeError, OSError) as error:
        pytest.skip(f"no cgroup controllers here: {error}")
    code = "x = bytearray(200 << 20); print(len(x))"
    told = four.ssh("n3", f"{sys.executable} -c '{code}'; echo code $?", check=False)
    assert "code 137" in told, told


@needs_root
def test_shape(four):
    """20 mbit: 2 MB take 0.8 s, unshaped a fraction of it."""
    (four.shared / "block").write_bytes(os.urandom(2 << 20))

    def seconds():
        began = time.monotonic()
        words = f"cat {four.shared}/block"
        with open(os.devnull, "w") as nothing:
            subprocess.run(
                ["ssh", "-F", four.ssh_config, "n1", words],
                stdout=nothing,
                check=True,
                timeout=60,
            )
        return time.monotonic() - began

    four.shape("n1", "20mbit")
    slow = seconds()
    four.shape("n1", None)
    assert slow > 0.7
    assert seconds() < slow


@needs_root
def test_failed_set_up_leaves_nothing(monkeypatch):
    beds = []

    def broken(self, host):
        beds.append(self)
        raise RuntimeError("half way")

    monkeypatch.setattr(Hosts, "wait_until_up", broken)
    with pytest.raises(RuntimeError, match="half way"):
        with Hosts(2):
            pass
    assert_gone(beds[0].token)


@needs_root
def test_a_killed_test_is_swept():
    code = """
        import sys, time
        sys.path.insert(0, sys.argv[1])
        from testbed import Hosts
        with Hosts(2) as hosts:
            print(hosts.token, *(h.init for h in hosts.hosts.values()), flush=True)
            time.sleep(1000)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), os.path.dirname(__file__)],
        stdout=subprocess.PIPE,
        text=True,
    )
    token, *inits = child.stdout.readline().split()
    child.kill()
    child.wait()
    for pid in inits:
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), f"{pid} died too")
    with machine_lock():
        sweep()
    assert_gone(token)


@needs_slurm
def test_slurm_on_this_machine():
    began = time.monotonic()
    with Slurm() as slurm:
        print(f"slurm: {time.monotonic() - began:.2f} s")
        told = slurm.call("srun", "-N", "4", "-n", "4", "bash", "-c", "echo $SLURM_NODEID")
        assert sorted(told.split()) == ["0", "1", "2", "3"]
    assert_gone(slurm.token)


@needs_slurm
def test_slurm_on_hosts(four):
    with Slurm(four) as slurm:
        told = slurm.call("srun", "-N", "4", "hostname")
        assert sorted(told.split()) == ["node1", "node2", "node3", "node4"]


@needs_docker
def test_docker():
    began = time.monotonic()
    with Docker() as docker:
        print(f"dockerd: {time.monotonic() - began:.2f} s")
        docker.make_image("tools")
        told = docker.call("run", "--rm", "--network", "host", "tools", "sh", "-c", "echo hi")
        assert told == "hi\n"
        assert docker.containers(everything=True) == []
    assert_gone(docker.token)


@needs_podman
def test_podman():
    with Podman() as podman:
        podman.make_image("tools")
        told = podman.call("run", "--rm", "--network", "host", "tools", "sh", "-c", "echo hi")
        assert told == "hi\n"
        assert podman.containers(everything=True) == []
    assert_gone(podman.token)
