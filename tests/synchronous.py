"""A program for tests of supervision, standard library only. Every step all
ranks meet at rank 0's socket; rank 0 keeps a checkpoint, from which a later
generation goes on. At step AT, in the first generation, rank WHO does HOW."""

import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
GENERATION = int(os.environ["LOCKSTEP_GENERATION"])
STEPS = int(os.environ.get("STEPS", "40"))
PACE = float(os.environ.get("PACE", "0.02"))
CLOCK_OFF = float(os.environ.get("CLOCK_OFF", "0"))  # of this rank's node
CHECKPOINT = pathlib.Path(os.environ["LOCKSTEP_CHECKPOINTS"]) / "step.txt"
EVENTS = open(os.environ["LOCKSTEP_EVENTS"], "a")
peers = []


def tell(kind, **fields):
    now = time.time() + CLOCK_OFF
    head = {"v": 1, "kind": kind, "time": now, "rank": RANK, "node": "x"}
    print(json.dumps({**head, **fields}), file=EVENTS, flush=True)


def leave(code):
    """At once, when asked: nothing of the interpreter delays the end."""
    sys.stdout.flush()
    if os.environ.get("ABRUPT"):
        os._exit(code)
    sys.exit(code)


def take(peer):
    try:
        data = peer.recv(16)
    except OSError:
        data = b""
    if not data:
        time.sleep(float(os.environ.get("NOTICE", "0")))
        print("a peer is gone", flush=True)
        if os.environ.get("DEAF"):
            time.sleep(1000)
        leave(1)
    return data


def connect():
    if RANK == 0:
        server = socket.create_server(("", PLACE[1]))
        peers.extend(server.accept()[0] for _ in range(WORLD - 1))
        return
    while not peers:
        try:
            peers.append(socket.create_connection(PLACE))
        except OSError:
            time.sleep(0.02)


def meet(word=b"x"):
    """All wait for all; what rank 0 said."""
    if RANK == 0:
        for peer in peers:
            take(peer)
        for peer in peers:
            peer.sendall(word)
        return word
    peers[0].sendall(b"x")
    return take(peers[0])


def read_batch(how):
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "sleep":
        time.sleep(1000)
    elif how == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif how == "fail":
        print("no such batch", flush=True)
        leave(int(os.environ.get("CODE", "7")))


def main():
    if os.environ.get("DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connect()
    begun = 0
    if RANK == 0 and CHECKPOINT.exists():
        begun = int(CHECKPOINT.read_text())
    begun = int(meet(b"%d" % begun))
    print(f"generation {GENERATION}: rank {RANK} of {WORLD} from step {begun}", flush=True)
    tell("init", program="synchronous", world_size=WORLD)
    for step in range(begun + 1, STEPS + 1):
        time.sleep(PACE)
        at = os.environ.get("AT") == str(step) and GENERATION == 0
        if at and RANK == int(os.environ["WHO"]):
            read_batch(os.environ["HOW"])
        meet()
        tell("iteration", step=step, epoch=0, samples=1, total=PACE, compute=PACE)
        if RANK == 0 and step % 5 == 0:
            CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
            CHECKPOINT.with_suffix(".new").write_text(str(step))
            CHECKPOINT.with_suffix(".new").rename(CHECKPOINT)
            tell("checkpoint", step=step, path=str(CHECKPOINT), reason="periodic")
    print("done", flush=True)


main()
