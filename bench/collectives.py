"""All-reduce: lockstep's `host` against its limit, Gloo and Open MPI, in one run.

The limit is what the memory allows: processes that sum shared buffers in place,
each its part, with spin barriers (a core each) or futex waits (more ranks than
cores) and nothing else; it alternates with ours inside the same processes.
Over TCP every rank is a host of its own, on loopback, and over a link of
1 Gbit/s between two network namespaces (needs root): there an all-reduce of B
bytes between two hosts sends exactly B bytes of payload each way (half of it
reduced, half of it gathered), so the share of the line is 8 B / time / 1e9; TCP,
IP and Ethernet headers take 66 of 1514 bytes, so 95.6% is all there is.

Prints `name ours peer ratio required verdict`, microseconds (medians of
rounds); writes $LOCKSTEP_BUILD/bench/collectives.json. --realtime gives all
sides a fixed priority, for a machine that is busy with something else.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", HERE.parent / "build"))
SIZES = [4 << 10, 1 << 20, 25 << 20, 100 << 20]
NAMES = {4 << 10: "4KB", 1 << 20: "1MB", 25 << 20: "25MB", 100 << 20: "100MB"}
LINK_SIZE = 50 << 20
ROUNDS = 5  # of the ring and Gloo
LIMIT = 300  # seconds one part may take


class Bench:
    def __init__(self, options):
        self.sizes = SIZES[:3] if options.quick else SIZES
        self.prefix = ["chrt", "-f", "10"] if options.realtime else []
        self.lines = []
        self.missed = False

    def program(self, name):
        path = BUILD / "bin" / name
        if not path.exists():
            sys.exit(f"collectives: {path} is not there; run 'make build'")
        return str(path)

    def run(self, command, **options):
        done = subprocess.run(
            self.prefix + command,
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT,
            check=True,
            **options,
        )
        return parse(done.stdout)

    def ours(self, kind, ranks):
        sizes = ",".join(map(str, self.sizes))
        return self.run(
            [self.program("collective_bench"), kind, str(ranks), "--sizes", sizes]
        )

    def mpi(self, ranks):
        if not shutil.which("mpirun") or not (BUILD / "bin/mpi_allreduce").exists():
            return {}
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
        command += ["-np", str(ranks), self.program("mpi_allreduce")]
        return self.run(command + [str(size) for size in self.sizes])

    def gloo(self, ranks):
        with tempfile.TemporaryDirectory() as folder:
            sizes = [str(size) for size in self.sizes]
            script = [sys.executable, str(HERE / "peer_gloo.py")]
            processes = [
                subprocess.Popen(
                    self.prefix
                    + script
                    + [str(rank), str(ranks), f"{folder}/store"]
                    + sizes,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
                )
                for rank in range(ranks)
            ]
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit("collectives: the Gloo peer failed")
        return parse(outputs[0])

    def line(self, name, ours, peer, ratio, required=None, most=None, unit="us"):
        good = (required is None or ratio >= required) and (
            most is None or ratio <= most
        )
        bound = "-"
        if required is not None:
            bound = f">={required:g}"
        elif most is not None:
            bound = f"<={most:g}"
        verdict = "info" if bound == "-" else "ok" if good else "MISSED"
        self.missed |= not good
        print(
            f"{name:26} {ours:>11.2f} {peer:>11.2f} {ratio:>9.3f} {bound:>7} "
            f"{verdict} [{unit}]",
            flush=True,
        )
        self.lines.append(
            {
                "name": name,
                "ours": ours,
                "peer": peer,
                "ratio": ratio,
                "required": bound,
                "verdict": verdict,
            }
        )

    def shared(self, ranks, gloo):
        ours = self.ours("shared", ranks)
        mpi = self.mpi(ranks)
        for size in self.sizes:
            time = ours[size]["ours_us"]
            limit = ours[size]["limit_us"]
            name = f"host_{ranks}x{NAMES[size]}"
            self.line(f"{name}/limit", time, limit, time / limit, most=1.5)
            self.line(f"gloo/{name}", time, gloo[size]["us"], gloo[size]["us"] / time)
            if mpi:
                self.line(f"mpi/{name}", time, mpi[size]["us"], mpi[size]["us"] / time)

    def ring(self, ranks):
        """In turns with Gloo: a machine of virtual processors has other speeds from
        one second to the next, as they share a core or not."""
        rounds = [(self.ours("ring", ranks), self.gloo(ranks)) for _ in range(ROUNDS)]
        for size in self.sizes:
            pairs = [(ours[size]["ours_us"], gloo[size]["us"]) for ours, gloo in rounds]
            ratios = [peer / time for time, peer in pairs]
            middle = statistics.median_low(ratios)
            time, peer = pairs[ratios.index(middle)]
            required = 3 if size <= 1 << 20 else 1.1
            self.line(
                f"gloo/ring_{ranks}x{NAMES[size]}", time, peer, middle, required=required
            )

    def link(self):
        try:
            with Link() as link:
                microseconds = link.measure(
                    self.program("collective_bench"), self.prefix
                )
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"ring_1Gbit: not measured, needs root, ip and tc: {error}")
            return
        line_rate = LINK_SIZE * 8 / 1e9 * 1e6
        share = line_rate / microseconds
        self.line("ring_2x50MB/1Gbit", microseconds, line_rate, share, required=0.9)


class Link:
    """Two namespaces joined by a veth that carries 1 Gbit/s each way."""

    def __init__(self):
        self.names = [f"lsbench{os.getpid()}{end}" for end in "ab"]
        self.addresses = ["10.98.0.1", "10.98.0.2"]

    def __enter__(self):
        try:
            for name in self.names:
                call("ip", "netns", "add", name)
            a, b = self.names
            call(
                *f"ip -n {a} link add eth0 type veth peer name eth0 netns {b}".split()
            )
            for name, address in zip(self.names, self.addresses):
                call(*f"ip -n {name} addr add {address}/24 dev eth0".split())
                call(*f"ip -n {name} link set eth0 up".split())
                call(*f"ip -n {name} link set lo up".split())
                shape = "root tbf rate 1gbit burst 128kb latency 50ms"
                call(*f"tc -n {name} qdisc add dev eth0 {shape}".split())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        subprocess.run(
            ["ip", "-n", self.names[0], "link", "del", "eth0"], capture_output=True
        )
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def measure(self, program, prefix=()):
        processes = [
            subprocess.Popen(
                [*prefix, "nsenter", f"--net=/var/run/netns/{name}"]
                + [program, "rank", str(rank)]
                + ["2", f"{self.addresses[0]}:29777", self.addresses[rank]]
                + ["--sizes", str(LINK_SIZE)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, name in enumerate(self.names)
        ]
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise OSError("a rank failed")
        return parse(outputs[0])[LINK_SIZE]["ours_us"]


def call(*command):
    subprocess.run(command, check=True, capture_output=True)


def parse(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["bytes"]: line for line in lines}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without 100 MB")
    parser.add_argument("--realtime", action="store_true", help="under chrt -f 10")
    bench = Bench(parser.parse_known_args()[0])
    load = os.getloadavg()[0]
    print(f"# all-reduce of fp32; load before: {load:.2f} on {os.cpu_count()} cores")
    for ranks in (2, 4):
        gloo = bench.gloo(ranks)
        bench.shared(ranks, gloo)
        if ranks == 2:
            bench.ring(ranks)
    bench.link()
    path = BUILD / "bench" / "collectives.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"name": "collectives", "load": load, "lines": bench.lines}, indent=1
        )
        + "\n"
    )
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
