"""`outputs` while training goes on: the uploader beside a run, against moto
with boto3 as the witness. Uploader and trainer are killed at random: an object is
the old or the new one, whole."""

import hashlib
import json
import os
import random
import signal
import time

import pytest
from control import Control, wait_for
from fault_proxy import FaultProxy
from testbed import Hosts, needs_root
from testbed_s3 import Store

ROUNDS = 100 if os.environ.get("LOCKSTEP_SOAK") else 3
SEED = int(os.environ.get("LOCKSTEP_SEED", "7"))
BUCKET = "results"

# A trainer's way to write: a temporary name, then a rename. Each checkpoint
# tells its own hash; `last` needs several parts, `best` is one piece.
TRAINER = """
import hashlib, os, pathlib, random, time
folder = pathlib.Path(os.environ["LOCKSTEP_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
board = folder.parent / "tensorboard"
board.mkdir(exist_ok=True)
print("begun", flush=True)
step = 0
while not os.path.exists("finish"):
    step += 1
    for name, size in (("last", 9 << 20), ("best", 1 << 18)):
        body = random.Random(step).randbytes(size) + b"%012d" % step
        text = hashlib.sha256(body).hexdigest().encode() + body
        new = folder / f".{name}.tmp-{os.getpid()}-{step}"
        new.write_bytes(text)
        new.rename(folder / f"{name}.safetensors")
    with open(board / "events.out.tfevents.1.host.1", "ab") as out:
        out.write(b"%012d\\n" % step)
    time.sleep(float(os.environ.get("PAUSE", "3")))
"""


def step_of(content):
    """Of a checkpoint; fails when it is not whole."""
    assert hashlib.sha256(content[64:]).hexdigest().encode() == content[:64]
    return int(content[-12:])


@pytest.fixture(scope="module")
def store():
    with Store() as store:
        store.s3 = store.client("s3")
        store.s3.create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        yield store


@pytest.fixture
def control(tmp_path, store):
    control = Control(tmp_path)
    control.environment.update(store.probe().environment)
    control.environment["HOME"] = str(tmp_path)
    control.environment[control.marker] = "1"
    control.environment["LOCKSTEP_STORE_INTERVAL"] = "500ms"
    control.script("train.py", TRAINER)
    yield control
    control.end_all()


def get(store, key):
    try:
        return store.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
    except store.s3.exceptions.NoSuchKey:
        return None


def keys(store, prefix):
    pages = store.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    return [one["Key"] for page in pages for one in page.get("Contents", [])]


def unfinished(store, prefix):
    found = store.s3.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads") or []
    return [one["Key"] for one in found]


def begun(control):
    def look():
        for run in control.runs():
            log = run.path / "ranks/0.log"
            if log.exists() and "begun" in log.read_text():
                return run

    return wait_for(look)


def arrived(store, prefix, name, after=0):
    def look():
        content = get(store, f"{prefix}/checkpoints/{name}.safetensors")
        return content and step_of(content) > after and step_of(content)

    return wait_for(look, 90)


def no_secret(store, path):
    secret = store.key[1].encode()
    for file in path.rglob("*"):
        assert not file.is_file() or secret not in file.read_bytes(), file


def test_best_and_last_arrive_while_training_goes_on(store, control):
    started = control.start("run", f"outputs=s3://{BUCKET}/live", "--name", "live",
                            "--", "python3", "train.py")
    run = begun(control)
    prefix = f"live/{run.path.name}"
    first = arrived(store, prefix, "last")
    assert arrived(store, prefix, "last", after=first) > first  # the next one, too
    arrived(store, prefix, "best")
    board = f"{prefix}/tensorboard/events.out.tfevents.1.host.1"
    wait_for(lambda: get(store, board), 60)
    assert started.poll() is None  # all of that while it runs
    story = json.loads((run.path / "stored.json").read_text())
    assert story["outputs"] == f"s3://{BUCKET}/{prefix}"
    assert "checkpoints/last.safetensors" in story["files"]
    (control.folder / "finish").touch()
    _, words = started.communicate(timeout=90)
    assert started.returncode == 0, words
    # Everything is there at the end, as it is here; no part was left behind.
    for path in run.path.rglob("*"):
        if path.is_file() and path.name not in ("uploader.log", "stored.json"):
            assert get(store, f"{prefix}/{path.relative_to(run.path)}") == path.read_bytes()
    assert not store.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads")
    assert f"[s3://{BUCKET}/{prefix}](<s3://{BUCKET}/{prefix}>)" in (
        run.path / "logbook.md"
    ).read_text()
    no_secret(store, run.path)
    control.assert_nothing_left()


def test_the_uploader_gives_way_and_keys_stay_hidden(store, control):
    started = control.start("run", f"outputs=s3://{BUCKET}/meek", "--",
                            "python3", "train.py")
    run = begun(control)
    pid = wait_for(lambda: uploaders(control))[0]
    wait_for(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)
    secret = store.key[1].encode()
    with open(f"/proc/{pid}/cmdline", "rb") as words:
        assert secret not in words.read()
    arrived(store, f"meek/{run.path.name}", "best")
    (control.folder / "finish").touch()
    assert started.wait(60) == 0


def test_a_store_that_is_gone_stops_nobody(store, control):
    """Refused while the run goes on: told in uploader.log, stored later."""
    started = control.start("run", f"outputs=s3://{BUCKET}/later", "--",
                            "python3", "train.py")
    run = begun(control)
    arrived(store, f"later/{run.path.name}", "best")
    store.proxy.chaos = lambda request: {"kind": "status", "status": 403} if (
        request.method in ("PUT", "POST")) else None
    log = run.path / "uploader.log"
    try:
        wait_for(lambda: log.exists() and "s3:PutObject" in log.read_text(), 60)
    finally:
        store.proxy.clear()
    assert started.poll() is None
    (control.folder / "finish").touch()
    assert started.wait(90) == 0
    last = get(store, f"later/{run.path.name}/checkpoints/last.safetensors")
    assert last == (run.path / "checkpoints/last.safetensors").read_bytes()


def test_detached_it_stores_by_itself(store, control):
    done = control.call("run", "--detach", f"outputs=s3://{BUCKET}/left", "--",
                        "python3", "train.py")
    assert done.returncode == 0, done.stderr
    run = begun(control)
    prefix = f"left/{run.path.name}"
    arrived(store, prefix, "last")
    (control.folder / "finish").touch()
    control.assert_nothing_left(90)
    state = json.loads(get(store, f"{prefix}/state.json"))
    assert state["state"] == "done" and state["outputs"] == f"s3://{BUCKET}/{prefix}"
    last = get(store, f"{prefix}/checkpoints/last.safetensors")
    assert last == (run.path / "checkpoints/last.safetensors").read_bytes()
    assert f"s3://{BUCKET}/{prefix}" in (run.path / "logbook.md").read_text()
    no_secret(store, run.path)


def test_an_audit_finds_uploads_that_nobody_completes(store, control):
    """Of machines that are gone, below the runs that this one knows, and below
    places that are named. moto says of each that it began in 2010."""
    started = control.start("run", f"outputs=s3://{BUCKET}/old", "--",
                            "python3", "train.py", env={"PAUSE": "60"})
    run = begun(control)
    own, strange = f"old/{run.path.name}/checkpoints/lost", "elsewhere/lost"
    for key in (own, strange, f"old/{run.path.name}2/lost"):
        store.s3.create_multipart_upload(Bucket=BUCKET, Key=key)

    def audit(*words):
        done = control.call("audit", "--output", "json", *words, timeout=60)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)["resources"]
        return {one["name"]: one for one in told if one["kind"] == "upload"}

    name = f"s3://{BUCKET}/{own}"
    told = audit("--fix")
    assert told[name]["owned_by"] == "its run" and not told[name]["ended"]
    (control.folder / "finish").touch()
    for pid in trainers(control):
        os.kill(pid, signal.SIGKILL)
    started.wait(90)
    told = audit()
    assert list(told) == [name] and told[name]["owned_by"] == "nobody"
    assert own in unfinished(store, "old/")
    assert audit("--fix", "--stale", "9000d")[name]["owned_by"] == "its maker"
    told = audit("--fix")
    assert told[name]["ended"] and own not in unfinished(store, "old/")
    assert len(unfinished(store, "old/")) == 1  # of a run that nobody here knows
    table = control.call("audit", "--outputs", f"s3://{BUCKET}/elsewhere,s3://{BUCKET}/old")
    assert table.returncode == 0 and f"s3://{BUCKET}/{strange}" in table.stdout
    audit("--fix", "--outputs", f"s3://{BUCKET}")
    assert unfinished(store, "old/") == unfinished(store, "elsewhere/") == []
    wrong = control.call("audit", "--outputs", "bucket")
    assert wrong.returncode == 2 and "--outputs" in wrong.stderr
    wrong = control.call("audit", "--stale", "soon")
    assert wrong.returncode == 2 and "--stale" in wrong.stderr
    refused = control.call("audit", "--outputs", "s3://no-such-bucket-here")
    assert refused.returncode != 0 and "NoSuchBucket" in refused.stderr


def uploaders(control):
    return [pid for pid, words in control.left() if words.endswith(b"\0uploader\0")]


def trainers(control):
    return [
        pid
        for pid, words in control.left()
        if words.endswith(b"\0train.py\0") and b"lockstep" not in words
    ]


def test_kill_uploader_and_trainer_at_random(store, control):
    """Objects are the old or the new ones, whole, after every kill; and what is
    written after the kills arrives."""
    chance = random.Random(SEED)
    started = control.start(
        "run", f"outputs=s3://{BUCKET}/killed", "--retries", str(2 * ROUNDS), "--",
        "python3", "train.py", env={"PAUSE": "0.4"})
    run = begun(control)
    prefix = f"killed/{run.path.name}"
    arrived(store, prefix, "last")
    kills = 0
    for number in range(ROUNDS):
        time.sleep(chance.uniform(0, 2.5))
        find = trainers if number % 3 == 2 else uploaders
        for pid in wait_for(lambda: find(control), 60):
            os.kill(pid, signal.SIGKILL)
            kills += 1
        for name in ("last", "best"):
            content = get(store, f"{prefix}/checkpoints/{name}.safetensors")
            assert content is None or step_of(content), (SEED, number, name)
    assert kills >= ROUNDS
    arrived(store, prefix, "last")
    (control.folder / "finish").touch()
    _, words = started.communicate(timeout=120)
    assert started.returncode == 0, words
    last = get(store, f"{prefix}/checkpoints/last.safetensors")
    assert last == (run.path / "checkpoints/last.safetensors").read_bytes()
    # What the dead ones had begun was ended by the next.
    assert unfinished(store, prefix) == []


@needs_root
def test_on_other_hosts_the_node_itself_stores(store, control):
    """From the machine that has the checkpoints, while the ranks run; then
    all of it, though nobody watches."""
    with Hosts(2) as hosts:
        bridge = str(hosts.subnet[1])
        with FaultProxy(store.port, listen=bridge) as proxy:
            control.environment.update(hosts.environment())
            control.environment["AWS_ENDPOINT_URL"] = proxy.url
            work = control.folder / "work"
            work.mkdir()
            (work / "train.py").write_text(TRAINER)
            done = control.call(
                "run", "--detach", "--hosts", ",".join(hosts.names), "--workdir", work,
                f"outputs=s3://{BUCKET}/far", "--env", f"{control.marker}=1",
                "--", "sh", "-c",
                '[ "$RANK" = 0 ] || exec sleep 5; (sleep 8; touch finish) & exec python3 train.py',
                timeout=120)
            assert done.returncode == 0, done.stderr
            prefix = f"far/{done.stdout.strip()}"
            arrived(store, prefix, "last")
            assert hosts.processes(hosts.names[0], "uploader")
            wait_for(lambda: f"{prefix}/logbook.md" in keys(store, prefix), 90)
            wait_for(
                lambda: json.loads(get(store, f"{prefix}/state.json"))["state"] == "done", 60)
            for alias in hosts.names:
                wait_for(lambda: not hosts.processes(alias, control.marker), 60)
