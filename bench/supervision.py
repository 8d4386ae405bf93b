"""How long it takes from a death to its verdict, and until nothing is left.

On four hosts (network namespaces with real sshd, see tests/testbed.py; needs
root), eight ranks. A rank gets kill -9 while the others ignore SIGTERM, sit in
a recv() or compute; a host loses its link or its power, its agent is killed or
stopped. Measured: until the verdict is on the user's terminal, and until the
last rank is gone, on the host that is cut off, too. The worst of all rounds
stands against the limit.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import measure

LOCKSTEP = str(measure.BUILD / "bin" / "lockstep")
PATIENCE = 60  # seconds; nothing takes this long when all is well
PROCS = 2

RANK = r"""
import signal, socket, sys, time
how = sys.argv[1]
if how == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
if how == "recv":
    ours, theirs = socket.socketpair()
    ours.recv(1)
while how == "busy":
    pass
time.sleep(1000)
"""


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise measure.BenchError(f"waited {PATIENCE} s until {what}")
        time.sleep(0.002)
    return value


class Live:
    """A run over the hosts, what it says on the terminal with its time."""

    def __init__(self, hosts, folder, how):
        self.hosts = hosts
        self.marker = "LOCKSTEP_BENCH_" + uuid.uuid4().hex
        command = [LOCKSTEP, "run", "--hosts", ",".join(hosts.names)]
        command += ["--procs", str(PROCS), "--runs-dir", str(folder / "runs")]
        command += ["--workdir", str(folder / "work"), "--ranks", "all"]
        command += ["--", "env", f"{self.marker}=1", sys.executable, "rank.py", how]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **hosts.environment(), "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []  # (time, text)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def said(self, pattern):
        return next((at for at, line in self.lines if re.search(pattern, line)), None)

    def ranks(self, alias):
        """The pids of its ranks, as seen from here."""
        found = self.hosts.processes(alias, self.marker)
        return [pid for pid, line in found if re.match(r"\S*python\S* rank\.py", line)]

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise measure.BenchError("".join(line for _, line in self.lines))
            return sum("ready" in line for _, line in self.lines) >= 4 * PROCS

        wait_for(ready, "all ranks are ready")

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


def agents(hosts, alias):
    found = hosts.processes(alias, "lockstep")
    return [pid for pid, line in found if re.search(r"lockstep agent", line)]


def is_alive(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rsplit(")", 1)[1].split()[0] not in "ZX"


def measure_case(hosts, folder, how, act, verdict, watched):
    """Seconds from the act to the verdict, and to the end of the last of the
    watched ranks (a function of the run that gives pids)."""
    # Of the last run: one that was cut off looks for its head for a while.
    wait_for(lambda: not any(agents(hosts, name) for name in hosts.names), "no agent is left")
    live = Live(hosts, folder, how)
    try:
        live.wait_ready()
        pids = watched(live)
        begun = act(live)
        gone = None
        told = None
        end = begun + PATIENCE
        while (told is None or gone is None) and time.monotonic() < end:
            told = told or live.said(verdict)
            if gone is None and not any(map(is_alive, pids)):
                gone = time.monotonic()
            time.sleep(0.002)
        if told is None or gone is None:
            raise measure.BenchError("".join(line for _, line in live.lines))
        live.process.wait(PATIENCE)
        return told - begun, gone - begun
    finally:
        live.close()


def kill_rank(live):
    victim = live.ranks("n4")[-1]
    begun = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return begun


def signal_agent(number):
    def act(live):
        [victim] = agents(live.hosts, "n3")
        begun = time.monotonic()
        os.kill(victim, number)
        act.victim = victim
        return begun

    act.victim = None
    return act


def all_ranks(live):
    return [pid for alias in live.hosts.names for pid in live.ranks(alias)]


def cases(hosts):
    """(name, how ranks sit, act, verdict, watched, limits, cure)"""
    killed = r"rank \d failed on n4 \(pid \d+\): signal 9"
    lost = r"node n3 was lost"

    def cut(live):
        begun = time.monotonic()
        hosts.cut("n3")
        return begun

    def power_off(live):
        begun = time.monotonic()
        hosts.power_off("n3")
        return begun

    def on_host(live):
        return live.ranks("n3")

    stop = signal_agent(signal.SIGSTOP)

    def go_on():
        if stop.victim:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stop.victim, signal.SIGCONT)

    for how in ("deaf", "recv", "busy"):
        yield f"killed/{how}", how, kill_rank, killed, all_ranks, (1, 3), None
    yield "cut", "deaf", cut, lost, on_host, (10, 10), lambda: hosts.restore("n3")
    kill = signal_agent(signal.SIGKILL)
    yield "agent_killed", "deaf", kill, lost, on_host, (10, 10), None
    yield "agent_stopped", "deaf", stop, lost, on_host, (10, 10), go_on
    yield "power_off", "recv", power_off, lost, on_host, (10, 10), lambda: hosts.power_on("n3")


def main():
    arguments = measure.parse_arguments(__doc__.splitlines()[0])
    if os.geteuid() != 0:
        print("supervision: hosts in network namespaces need root", file=sys.stderr)
        return 1
    sys.path.insert(0, str(measure.ROOT / "tests"))
    import testbed

    table = measure.Table("supervision")
    with testbed.Hosts(4) as hosts, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "work").mkdir()
        (folder / "work" / "rank.py").write_text(RANK)
        for case, how, act, verdict, watched, limits, cure in cases(hosts):
            if arguments.only and arguments.only not in case:
                continue
            rounds = []
            for _ in range(arguments.rounds):
                try:
                    rounds.append(measure_case(hosts, folder, how, act, verdict, watched))
                finally:
                    if cure:
                        cure()
            for index, what in enumerate(("verdict", "gone")):
                values = [values[index] for values in rounds]
                shown = " ".join(f"{value * 1e3:.0f}" for value in values)
                print(f"# {case} {what}: {shown} ms", flush=True)
                table.runs[f"{case}/{what}"] = values
                table.add(
                    f"supervision/{case}/{what}/limit", max(values), limits[index], "<=1", "s"
                )
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
