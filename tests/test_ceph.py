"""The S3 client before Ceph's radosgw, which judges signatures, times, parts,
ranges and conditions by rules of its own; boto3 is the witness."""

import hashlib
import random
import time

import pytest

import testbed_ceph
from fault_proxy import FaultProxy

MIB = 1 << 20
PART = 5 * MIB


@pytest.fixture(scope="module")
def ceph():
    with testbed_ceph.Ceph() as ceph:
        ceph.client().create_bucket(Bucket="bucket")
        yield ceph


@pytest.fixture(scope="module")
def witness(ceph):
    return ceph.client()


@pytest.fixture
def s3(ceph, tmp_path):
    return ceph.probe(["--part", PART, "--state", tmp_path / "state"])


def stored(witness, key):
    return witness.get_object(Bucket="bucket", Key=key)["Body"].read()


@pytest.mark.parametrize(
    "key", ["plain", "a b+c/d", "\u00e9/\u4e2d", "x=1&y?z#", "a%2Fb", "a..b/c", "a//b", "~*'()!"]
)
def test_keys_of_all_kinds(s3, witness, key):
    etag = s3.fine("put", f"s3://bucket/k/{key}", "hello").strip()
    assert etag == hashlib.md5(b"hello").hexdigest()
    assert stored(witness, f"k/{key}") == b"hello"
    assert s3.fine("get", f"s3://bucket/k/{key}") == "hello"
    assert f"5 {etag} k/{key}\n" in s3.fine("list", "s3://bucket/k/")
    s3.fine("rm", f"s3://bucket/k/{key}")
    assert s3("head", f"s3://bucket/k/{key}").stderr.startswith("not found: ")


def test_a_key_that_no_folder_holds_is_refused(s3):
    done = s3("put", "s3://bucket/k/a/../b", "hello")
    assert done.returncode == 1 and done.stderr.startswith("invalid input: ")


def test_a_wrong_secret(ceph):
    done = ceph.probe(secret="wrong" * 8)("get", "s3://bucket/x")
    assert done.returncode == 1
    assert done.stderr.startswith("permission: s3:GetObject s3://bucket/x: ")
    assert "SignatureDoesNotMatch" in done.stderr


@pytest.mark.parametrize("wrong", [7200, -7200])
def test_a_clock_that_is_wrong(s3, wrong):
    s3.fine("put", "s3://bucket/clock", "text", options=["--clock", wrong])
    done = s3("get", "s3://bucket/clock", options=["--clock", wrong])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "text"
    assert "this machine's clock is" in done.stderr


def test_a_bucket_that_is_not_there(s3):
    done = s3("list", "s3://no-such-bucket/")
    assert done.returncode == 1 and "NoSuchBucket" in done.stderr


def test_conditions(s3, witness):
    etag = s3.fine("put", "s3://bucket/condition", "one", "absent").strip()
    again = s3("put", "s3://bucket/condition", "two", "absent")
    assert again.returncode == 1 and again.stderr.startswith("exists: ")
    s3.fine("put", "s3://bucket/condition", "two", f"etag={etag}")
    assert s3("put", "s3://bucket/condition", "three", f"etag={etag}").returncode == 1
    assert stored(witness, "condition") == b"two"


def test_parts_and_ranges(s3, witness, tmp_path):
    content = random.Random(1).randbytes(3 * PART + 77)
    (tmp_path / "file").write_bytes(content)
    done = s3.transfer("up", tmp_path / "file", "s3://bucket/large")
    assert done["etag"].endswith("-4")
    assert stored(witness, "large") == content
    s3.fine("down", "s3://bucket/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    # Parts of another size than ours, by another program, under our checks.
    witness.upload_file(str(tmp_path / "file"), "bucket", "theirs")
    s3.fine("down", "s3://bucket/theirs", tmp_path / "theirs")
    assert (tmp_path / "theirs").read_bytes() == content
    again = s3("up", tmp_path / "file", "s3://bucket/large", "absent")
    assert again.returncode == 1 and again.stderr.startswith("exists: ")


def test_a_broken_upload_goes_on(s3, witness, ceph, tmp_path):
    content = random.Random(2).randbytes(3 * PART)
    (tmp_path / "file").write_bytes(content)
    with FaultProxy(ceph.port) as proxy:
        s3.environment["AWS_ENDPOINT_URL"] = proxy.url
        s3.options += ["--workers", "1"]
        proxy.inject("before", times=99, match=lambda r: "partNumber=3" in r.path)
        words = ["up", tmp_path / "file", "s3://bucket/broken"]
        assert s3(*words, options=["--retries", 2]).returncode == 1
        proxy.clear()
        assert s3.transfer(*words)["moved"] == PART
        assert proxy.count("PUT", "partNumber") == 1
    assert stored(witness, "broken") == content


def unfinished(witness, key):
    found = witness.list_multipart_uploads(Bucket="bucket", Prefix=key).get("Uploads", [])
    return [one["UploadId"] for one in found]


def test_uploads_that_nobody_completes_are_ended(s3, witness, tmp_path):
    """Younger ones of another machine are left; old ones are not."""
    (tmp_path / "file").write_bytes(random.Random(3).randbytes(PART + 1))
    key = "stale \u00e9+"
    upload = witness.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
    words = ["up", tmp_path / "file", f"s3://bucket/{key}"]
    listed = s3.fine("uploads", f"s3://bucket/{key}").split(" ", 2)
    assert listed[1:] == [upload, key + "\n"]
    assert abs(int(listed[0]) - time.time()) < 60
    s3.fine(*words)
    assert unfinished(witness, key) == [upload]
    time.sleep(2.5)  # ages are of whole seconds, on both sides
    s3.fine(*words, options=["--stale", 1])
    assert unfinished(witness, key) == []


def test_uploads_of_the_dead_are_ended(s3, witness, ceph, tmp_path):
    """Killed after the store began an upload and before its id was noted."""
    (tmp_path / "file").write_bytes(random.Random(4).randbytes(PART + 1))
    words = ["up", tmp_path / "file", "s3://bucket/dead"]
    with FaultProxy(ceph.port) as proxy:
        s3.environment["AWS_ENDPOINT_URL"] = proxy.url
        proxy.inject("after", times=9, match=lambda r: "uploads" in r.path and r.method == "POST")
        assert s3(*words, options=["--retries", 1]).returncode == 1
        assert len(unfinished(witness, "dead")) == 1
        proxy.clear()
        s3.fine(*words)
    assert unfinished(witness, "dead") == []


def test_a_folder_of_more_than_a_page(s3, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    for i in range(1010):
        (source / f"{i:05}").write_bytes(b"%d" % i)
    assert s3.transfer("up-folder", source, "s3://bucket/many")["files"] == 1010
    done = s3.transfer("down-folder", "s3://bucket/many", back)
    assert done["files"] == 1010 and done["skipped"] == 0
    for i in range(1010):
        assert (back / f"{i:05}").read_bytes() == b"%d" % i
