"""Transfers to and from a store, lockstep against boto3's, in one run.

The store is a small server of ours that keeps objects in memory and checks
nothing (bench/s3_server.cpp), so that clients are measured. One large file up
and down, and a folder of small objects down, as a mount brings it, and up. Sides
run in turn; medians are compared. Both sign over http, which hashes what is
sent; we also check what comes. Beside it stands the speed of a memory copy.
Numbers of the large file are MB/s, of the small ones objects/s.
"""

import contextlib
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import measure

PROBE = str(measure.BUILD / "bin" / "s3_probe")
SERVER = str(measure.BUILD / "bin" / "s3_server")
PEER = str(pathlib.Path(__file__).resolve().parent / "peer_boto3.py")
LIMIT = 600


def environment(url):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        kept.pop(name, None)
    return kept | {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }


@contextlib.contextmanager
def server():
    process = subprocess.Popen(
        [SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Large pages: the server's own cost is shared by both sides.
        env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.stdin.close()
        process.wait()


def run(command, url):
    done = subprocess.run(
        command,
        env=environment(url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise measure.BenchError(f"{words}\n{measure.tail(done.stderr)}")
    return done.stdout


def ours(url, *words):
    """As the program itself times the transfer, as the peer does."""
    words = run([PROBE, *map(str, words)], url).split()
    return float(dict(word.split("=", 1) for word in words)["seconds"])


def theirs(url, *words):
    return float(run([sys.executable, PEER, url, *map(str, words)], url))


def memory_copy(size):
    """Seconds; the best of a few, since it is a limit."""
    source = bytearray(size)
    into = bytearray(size)
    view = memoryview(into)
    times = []
    for _ in range(3):
        begun = time.monotonic()
        view[:] = source
        times.append(time.monotonic() - begun)
    return min(times)


def in_turn(rounds, **sides):
    values = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            values[name].append(side())
    for name, found in values.items():
        print(f"# {name}: {' '.join(f'{v:.3f}' for v in found)} s", flush=True)
    return [statistics.median(values[name]) for name in sides]


def large(table, url, folder, size, rounds, copy):
    source = folder / "large"
    with open(source, "wb") as out:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            out.write(block)
    mine, peer = in_turn(
        rounds,
        lockstep=lambda: ours(url, "up", source, "s3://bench/ours"),
        boto3=lambda: theirs(url, "up", source, "theirs"),
    )
    scale = size / 1e6
    table.add("s3/up", scale / mine, scale / peer, ">=2", unit="MB/s")

    def fetch(side, name):
        into = folder / name
        into.unlink(missing_ok=True)
        taken = side(into)
        assert into.stat().st_size == size
        return taken

    mine, peer = in_turn(
        rounds,
        lockstep=lambda: fetch(
            lambda into: ours(url, "down", "s3://bench/ours", into), "a"
        ),
        boto3=lambda: fetch(
            lambda into: theirs(url, "down", "theirs", into), "b"
        ),
    )
    table.add("s3/down", scale / mine, scale / peer, ">=2", unit="MB/s")
    table.add("s3/down/memory-copy", scale / mine, scale / copy, unit="MB/s")


def small(table, url, folder, count, rounds):
    source = folder / "many"
    for i in range(count):
        path = source / f"class{i % 100:03}" / f"{i:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(4096))
    numbers = iter(range(10**6))

    def up(side):
        return side(next(numbers))

    mine, peer = in_turn(
        rounds,
        lockstep=lambda: up(
            lambda n: ours(url, "up-folder", source, f"s3://bench/o{n}")
        ),
        boto3=lambda: up(lambda n: theirs(url, "up-folder", source, f"t{n}/")),
    )
    table.add("s3/many/up", count / mine, count / peer, ">=5", unit="1/s")

    def down(side):
        into = folder / f"into{next(numbers)}"
        taken = side(into)
        assert sum(1 for p in into.rglob("*.bin")) == count
        shutil.rmtree(into)
        return taken

    mine, peer = in_turn(
        rounds,
        lockstep=lambda: down(lambda into: ours(url, "down-folder", "s3://bench/o0", into)),
        boto3=lambda: down(lambda into: theirs(url, "down-folder", "o0/", into)),
    )
    table.add("s3/many/down", count / mine, count / peer, ">=5", unit="1/s")


def main():
    arguments = measure.parse_arguments(__doc__)
    size = (64 if arguments.quick else 1024) << 20
    count = 500 if arguments.quick else 10000
    wanted = arguments.only or ""
    table = measure.Table("s3")
    # In memory where there is room: disks are not what is compared.
    roomy = shutil.disk_usage("/dev/shm").free > 4 * size
    with tempfile.TemporaryDirectory(dir="/dev/shm" if roomy else None) as name:
        folder = pathlib.Path(name)
        copy = memory_copy(size)
        with server() as url:
            if wanted in "large":
                large(table, url, folder, size, arguments.rounds, copy)
            if wanted in "small":
                small(table, url, folder, count, arguments.rounds)
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
