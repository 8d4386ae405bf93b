"""How long it takes to start ranks of a program that exits at once, and what
an agent costs while ranks train.

Here: 8 ranks, lockstep against torchrun and mpirun. On four hosts (network
namespaces with real sshd, see tests/testbed.py; needs root): first launch,
with nothing of lockstep there, launches after it, and 64 ranks, with mpirun and
torchrun over ssh beside it. Sides run in turn; medians are compared. A line
that ends in /limit is a time against the most it may be.
"""

import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import measure

LOCKSTEP = str(measure.BUILD / "bin" / "lockstep")
LIMIT = 120  # seconds one launch may take
TRUE = shutil.which("true") or "/bin/true"

# Ranks that train: ten steps a second, as python/lockstep.py would tell them.
TRAIN = r"""
import json, os, sys, time
end = time.monotonic() + float(sys.argv[1])
step = 0
with open(os.environ["LOCKSTEP_EVENTS"], "a", buffering=1) as events:
    while time.monotonic() < end:
        step += 1
        time.sleep(0.1)
        print("step", step, "loss", 1 / step, flush=True)
        event = {"v": 1, "kind": "iteration", "time": time.time(), "node": "n"}
        event.update(rank=int(os.environ["RANK"]), step=step, epoch=0, samples=32)
        event.update(data=0.0, compute=0.1, communication=0.0, wait=0.0, total=0.1)
        events.write(json.dumps(event) + "\n")
"""


def seconds(command, env=None, **options):
    """Wall clock of a command that must succeed."""
    begun = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        env={**os.environ, **(env or {})},
        **options,
    )
    taken = time.monotonic() - begun
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise measure.BenchError(
            f"exit code {done.returncode}: {words}\n{measure.tail(done.stdout)}"
        )
    return taken


def in_turn(sides, rounds):
    """{name: function} A B A B; the medians and all values by name."""
    values = {name: [] for name in sides}
    for _ in range(rounds):
        for name, function in sides.items():
            values[name].append(function())
    for name, list_ in values.items():
        shown = " ".join(f"{value * 1e3:.0f}" for value in list_)
        print(f"# {name}: {shown} ms", flush=True)
    return {name: statistics.median(list_) for name, list_ in values.items()}, values


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def local(table, folder, rounds):
    ours = [LOCKSTEP, "run", "--procs", "8", "--runs-dir", folder / "runs"]
    ours += ["--output", "quiet", "--", TRUE]
    sides = {"lockstep 8": lambda: seconds(ours)}
    if shutil.which("mpirun"):
        mpi = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "8", TRUE]
        sides["mpirun 8"] = lambda: seconds(mpi)
    seconds(ours)  # into the page cache
    medians, table.runs["local"] = in_turn(sides, rounds * 3)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8"]
    torchrun += ["--no-python", TRUE]
    slow, table.runs["torchrun"] = in_turn(
        {"torchrun 8": lambda: seconds(torchrun)}, rounds
    )
    mine = medians["lockstep 8"]
    table.add("launch/8ranks/torchrun", mine, slow["torchrun 8"], "<=0.04", "s")
    if "mpirun 8" in medians:
        table.add("launch/8ranks/mpirun", mine, medians["mpirun 8"], "<=1", "s")


class HostBench:
    """Launches on the hosts of the test bed."""

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.folder = folder
        self.env = {**hosts.environment(), "HOME": str(folder)}
        self.names = ",".join(hosts.names)

    def lockstep(self, procs, program=(TRUE,), names=None):
        command = [LOCKSTEP, "run", "--hosts", names or self.names]
        command += ["--procs", procs, "--runs-dir", self.folder / "runs"]
        command += ["--workdir", self.folder / "work", "--output", "quiet"]
        return [*command, "--", *program]

    def launch(self, procs):
        return seconds(self.lockstep(procs), self.env)

    def first_launch(self):
        """With nothing of lockstep on any host, and no open connection."""
        for name in self.hosts.names:
            self.hosts.run(name, "rm -rf ~/.cache/lockstep")
        shutil.rmtree(self.folder / ".cache", ignore_errors=True)
        return self.launch(2)

    def mpirun(self):
        agent = self.hosts.folder / "rsh.sh"  # that the hosts see too
        agent.write_text(f'#!/bin/sh\nexec ssh -F {self.hosts.ssh_config} "$@"\n')
        agent.chmod(0o755)
        hostfile = self.folder / "hostfile"
        hostfile.write_text("".join(f"{name} slots=2\n" for name in self.hosts.names))
        network = str(self.hosts.subnet)
        command = ["mpirun", "--allow-run-as-root", "--hostfile", hostfile]
        command += ["--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self"]
        command += ["--mca", "btl_tcp_if_include", network]
        command += ["--mca", "oob_tcp_if_include", network]
        return seconds([*command, "-np", "8", "--map-by", "node", TRUE])

    def torchrun(self):
        """As people do it: the same command on every host, at once."""
        head = self.hosts.address(self.hosts.names[0])
        words = f"{sys.executable} -m torch.distributed.run --nnodes 4 "
        words += f"--nproc-per-node 2 --rdzv-backend c10d --rdzv-id {free_port()} "
        words += f"--rdzv-endpoint {head}:{free_port()} --no-python {TRUE}"
        begun = time.monotonic()
        started = [
            subprocess.Popen(
                ["ssh", "-F", str(self.hosts.ssh_config), name, words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for name in self.hosts.names
        ]
        codes = [process.wait(LIMIT) for process in started]
        if any(codes):
            raise measure.BenchError(f"torchrun over ssh: exit codes {codes}")
        return time.monotonic() - begun

    def agent_use(self, length):
        """Peak memory and CPU share of the agent of a host whose ranks train."""
        script = self.folder / "work" / "train.py"
        script.write_text(TRAIN)
        program = (sys.executable, "train.py", str(length))
        first = self.hosts.names[0]
        process = subprocess.Popen(
            [str(word) for word in self.lockstep(2, program, self.names)],
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            looks = []
            begun = time.monotonic()
            while process.poll() is None and time.monotonic() - begun < LIMIT:
                looks.append((time.monotonic(), agents(self.hosts.pids(first))))
                time.sleep(0.25)
        finally:
            if process.poll() is None:
                process.terminate()
            code = process.wait(LIMIT)
        if code != 0:
            raise measure.BenchError(f"the ranks that train ended with {code}")
        return agent_numbers(looks, length)


def agents(pids):
    """{pid: (peak resident bytes, CPU seconds)} of lockstep's own processes."""
    found = {}
    tick = os.sysconf("SC_CLK_TCK")
    for pid in pids:
        process = pathlib.Path("/proc") / str(pid)
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if len(words) < 2 or not words[0].endswith(b"lockstep"):
                continue
            if words[1] != b"agent":
                continue
            peak = 0
            for line in (process / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    peak = int(line.split()[1]) * 1024
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            found[pid] = (peak, (int(fields[11]) + int(fields[12])) / tick)
        except OSError:
            continue
    return found


def agent_numbers(looks, length):
    """Of the agent that lived longest: peak bytes, and its share of a core over
    the middle of its life, start and end left out."""
    lives = {}
    for moment, found in looks:
        for pid, (peak, cpu) in found.items():
            lives.setdefault(pid, []).append((moment, peak, cpu))
    if not lives:
        raise measure.BenchError("no agent was seen on the host")
    life = max(lives.values(), key=len)
    begin, end = life[0][0] + 1, life[-1][0] - 1
    curve = [(moment, cpu) for moment, _, cpu in life]
    used = measure.interpolate(curve, end) - measure.interpolate(curve, begin)
    if end - begin < length / 2:
        raise measure.BenchError("the agent was seen for too short a time")
    return max(peak for _, peak, _ in life), used / (end - begin)


def on_hosts(table, rounds, quick):
    sys.path.insert(0, str(measure.ROOT / "tests"))
    import testbed

    with testbed.Hosts(4) as hosts, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "work").mkdir()
        bench = HostBench(hosts, folder)
        first, table.runs["first"] = in_turn({"first 4x2": bench.first_launch}, rounds)
        sides = {"again 4x2": lambda: bench.launch(2)}
        sides["64 ranks"] = lambda: bench.launch(16)
        if shutil.which("mpirun"):
            sides["mpirun 4x2"] = bench.mpirun
        medians, table.runs["hosts"] = in_turn(sides, rounds)
        slow, table.runs["torchrun_hosts"] = in_turn(
            {"torchrun 4x2": bench.torchrun}, 1 if quick else 2
        )
        again = medians["again 4x2"]
        table.add("launch/4x2/first/limit", first["first 4x2"], 2.5, "<=1", "s")
        table.add("launch/4x2/again/limit", again, 1.0, "<=1", "s")
        if "mpirun 4x2" in medians:
            table.add("launch/4x2/mpirun", again, medians["mpirun 4x2"], unit="s")
        table.add("launch/4x2/torchrun", again, slow["torchrun 4x2"], unit="s")
        table.add("launch/64/8ranks", medians["64 ranks"], again, "<=2", "s")
        peak, share = bench.agent_use(6 if quick else 20)
        table.add("launch/agent/memory/limit", peak / 1e6, 20, "<=1", "MB")
        table.add("launch/agent/cpu/limit", share * 100, 1, "<=1", "% of a core")


def main():
    arguments = measure.parse_arguments(__doc__.splitlines()[0])
    rounds = arguments.rounds
    table = measure.Table("launch")
    only = arguments.only or ""
    if "hosts" not in only:
        with tempfile.TemporaryDirectory() as name:
            local(table, pathlib.Path(name), rounds)
    if "local" not in only:
        if os.geteuid() == 0:
            on_hosts(table, rounds, arguments.quick)
        else:
            print("# hosts: not measured, network namespaces need root")
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
