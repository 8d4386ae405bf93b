"""The S3 client against moto, which checks signatures and permissions, with
the AWS SDK for Python as the witness of what was stored and signed, and a
proxy in between that fails when told."""

import calendar
import hashlib
import http.server
import io
import json
import os
import random
import subprocess
import tarfile
import threading
import time
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from control import Control
from fault_proxy import INTERNAL, SLOW_DOWN, FaultProxy
from testbed_s3 import ALL, REGION, Probe, Store

MIB = 1 << 20
PART = 5 * MIB  # the least that S3 takes
SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))


@pytest.fixture(scope="module")
def store():
    with Store() as store:
        store.client("s3").create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        yield store


@pytest.fixture(scope="module")
def witness(store):
    return store.client("s3")


@pytest.fixture
def proxy(store):
    store.proxy.clear()
    yield store.proxy
    store.proxy.clear()


@pytest.fixture
def s3(store, proxy, tmp_path):
    options = ["--part", PART, "--state", tmp_path / "state", "--stall", "20"]
    return store.probe(options=options)


@pytest.fixture
def name(request):
    """A key of this test alone."""
    return request.node.name.replace("[", "-").replace("]", "")


def stored(witness, key, bucket="bucket"):
    return witness.get_object(Bucket=bucket, Key=key)["Body"].read()


def blob(size, seed=0):
    return random.Random(seed).randbytes(size)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


# Signatures.


@pytest.mark.parametrize(
    "service, path, query",
    [
        ("s3", "/", []),
        ("s3", "/bucket/a b+c/%41~*'()!", []),
        ("s3", "/bucket/a/../b//c", [("uploads", "")]),
        ("s3", "/bucket", [("prefix", "a/b c"), ("list-type", "2"), ("a", "=&")]),
        ("ec2", "/", [("Action", "DescribeInstances"), ("Filter.10", "x")]),
        ("ec2", "/", [("B", "1"), ("A", "2"), ("A", "1"), ("AA", "\u00e9")]),
    ],
)
def test_signs_as_botocore_does(service, path, query):
    moment = "20260102T030405Z"
    seconds = calendar.timegm(time.strptime(moment, "%Y%m%dT%H%M%SZ"))
    probe = Probe("http://127.0.0.1:1", "x", "none at all")
    words = ["GET", "host.example", path, service, REGION, seconds]
    ours = probe.fine("sign", *words, *[f"{k}={v}" for k, v in query]).strip()
    keys = botocore.credentials.Credentials(
        "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    )
    kind = botocore.auth.S3SigV4Auth if service == "s3" else botocore.auth.SigV4Auth
    auth = kind(keys, service, REGION)
    url = "http://host.example" + urllib.parse.quote(path, safe="/~")
    if query:
        url += "?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote, safe="")
    request = botocore.awsrequest.AWSRequest("GET", url)
    request.context["timestamp"] = moment
    request.headers["X-Amz-Date"] = moment
    if service == "s3":
        request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(b"").hexdigest()
    canonical = auth.canonical_request(request)
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    assert ours.endswith("Signature=" + signature), canonical


# Objects.


@pytest.mark.parametrize("key", ["plain", "a b+c/d", "\u00e9/\u4e2d", "x=1&y?z#", "a%2Fb"])
def test_put_and_get(s3, witness, key):
    etag = s3.fine("put", f"s3://bucket/put/{key}", "hello").strip()
    assert etag == hashlib.md5(b"hello").hexdigest()
    assert stored(witness, f"put/{key}") == b"hello"
    assert s3.fine("get", f"s3://bucket/put/{key}") == "hello"
    assert s3.fine("head", f"s3://bucket/put/{key}") == f"5 {etag}\n"
    assert f"5 {etag} put/{key}\n" in s3.fine("list", "s3://bucket/put/")
    s3.fine("rm", f"s3://bucket/put/{key}")
    s3.fine("rm", f"s3://bucket/put/{key}")
    gone = s3("get", f"s3://bucket/put/{key}")
    assert gone.returncode == 1 and gone.stderr.startswith("not found: s3:GetObject")


def test_what_others_stored_is_read(s3, witness, name):
    witness.put_object(Bucket="bucket", Key=name, Body=b"by boto3")
    assert s3.fine("get", f"s3://bucket/{name}") == "by boto3"


def test_an_empty_object(s3, witness, name, tmp_path):
    file = write(tmp_path / "empty", b"")
    assert s3.transfer("up", file, f"s3://bucket/{name}")["bytes"] == 0
    s3.fine("down", f"s3://bucket/{name}", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b""


def test_put_on_a_condition(s3, witness, name):
    address = f"s3://bucket/{name}"
    etag = s3.fine("put", address, "one", "absent").strip()
    again = s3("put", address, "two", "absent")
    assert again.returncode == 1 and again.stderr.startswith("exists: s3:PutObject")
    assert "PreconditionFailed" in again.stderr
    assert stored(witness, name) == b"one"
    s3.fine("put", address, "two", f"etag={etag}")
    assert s3("put", address, "three", f"etag={etag}").returncode == 1
    assert stored(witness, name) == b"two"


def test_a_condition_whose_answer_was_lost(s3, proxy, witness, name):
    proxy.inject("after", match=lambda r: r.method == "PUT")
    s3.fine("put", f"s3://bucket/{name}", "mine", "absent")
    assert stored(witness, name) == b"mine"


# What goes wrong.


def test_a_bucket_that_is_not_there(s3, tmp_path):
    file = write(tmp_path / "file", b"x")
    for words in (
        ["get", "s3://no-such-bucket/x"],
        ["list", "s3://no-such-bucket/"],
        ["up", file, "s3://no-such-bucket/x"],
    ):
        done = s3(*words)
        assert done.returncode == 1
        assert done.stderr.startswith("not found: ")
        assert "no-such-bucket" in done.stderr
        assert "NoSuchBucket" in done.stderr and "check the name" in done.stderr


def test_a_wrong_secret_and_an_unknown_key(store, proxy):
    wrong = store.probe(key=(store.key[0], "wrong" * 8))("get", "s3://bucket/x")
    assert wrong.returncode == 1
    assert "SignatureDoesNotMatch" in wrong.stderr and "check the access key" in wrong.stderr
    unknown = store.probe(key=("AKIANOBODY", "s" * 40))("get", "s3://bucket/x")
    assert unknown.returncode == 1
    assert "InvalidAccessKeyId" in unknown.stderr
    assert proxy.count("GET") == 2  # nothing is tried again


def test_a_missing_permission_is_named(store, proxy, tmp_path):
    allow = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}
    reader = store.probe(key=store.new_user(store.client("iam"), "reader", [allow]))
    done = reader("put", "s3://bucket/x", "text")
    assert done.returncode == 1
    assert done.stderr.startswith("permission: s3:PutObject s3://bucket/x: ")
    assert "allow s3:PutObject" in done.stderr


def test_nobody_there():
    done = Probe("http://127.0.0.1:1", "k", "secret12")("get", "s3://bucket/x")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("unavailable: s3:GetObject")
    assert "tried 4 times" in done.stderr


def test_addresses_that_are_none(s3):
    for address in ("bucket/x", "s3://", "s3://UPPER/x", "s3://a_b/x", "s3://ab/x"):
        done = s3("get", address)
        assert done.returncode == 1
        assert done.stderr.startswith("invalid input: ")
        assert "s3://BUCKET/KEY" in done.stderr


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "status", "status": 503, "body": SLOW_DOWN},
        {"kind": "status", "status": 500, "body": INTERNAL},
        {"kind": "status", "status": 502, "body": b"<html>Bad Gateway"},
        {"kind": "status", "status": 429},
        {"kind": "before"},
        {"kind": "after"},
        {"kind": "truncate"},
        {"kind": "flip", "times": 1},
        {"kind": "delay", "seconds": 0.2},
    ],
    ids=lambda fault: f"{fault['kind']}{fault.get('status', '')}",
)
def test_faults_that_pass(s3, proxy, witness, name, fault):
    address = f"s3://bucket/{name}"
    s3.fine("put", address, "text" * 100)
    fault = {"times": 2, **fault}
    proxy.inject(match=lambda r: r.method == "GET", **fault)
    assert s3.fine("get", address) == "text" * 100
    if fault["kind"] not in ("flip", "truncate"):
        proxy.inject(match=lambda r: r.method == "PUT", **fault)
        s3.fine("put", address, "new" * 100)
        assert stored(witness, name) == b"new" * 100


def test_a_server_that_stays_busy(s3, proxy):
    proxy.inject("status", times=99, status=503, body=SLOW_DOWN)
    done = s3("get", "s3://bucket/x", options=["--retries", 3])
    assert done.returncode == 1
    assert len(proxy.seen) == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("unavailable: tried 3 times: s3:GetObject s3://bucket/x: ")
    assert "Please reduce your request rate. (SlowDown, 503, request f1)" in last


def test_a_list_that_is_cut(s3, proxy, witness):
    witness.put_object(Bucket="bucket", Key="cut/one", Body=b"1")
    proxy.inject("truncate", times=2)
    assert "cut/one" in s3.fine("list", "s3://bucket/cut/")


def test_over_https_the_store_checks_the_md5(store, witness, name, tmp_path):
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    with FaultProxy(store.port, tls=(certificate, key)) as proxy:
        probe = store.probe(url=proxy.url, options=["--part", PART])
        strange = probe("put", f"s3://bucket/{name}", "text")
        assert strange.returncode == 1 and "AWS_CA_BUNDLE" in strange.stderr
        probe.environment["AWS_CA_BUNDLE"] = str(certificate)
        content = blob(PART + 1, seed=40)
        probe.fine("up", write(tmp_path / "file", content), f"s3://bucket/{name}")
        assert stored(witness, name) == content
        puts = [r for r in proxy.seen if r.method == "PUT"]
        assert len(puts) == 2
        for put in puts:
            assert put.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
            assert put.headers["content-md5"]


# Large files.


def test_a_large_file_in_parts(s3, proxy, witness, name, tmp_path):
    content = blob(2 * PART + 12345)
    file = write(tmp_path / "file", content)
    done = s3.transfer("up", file, f"s3://bucket/{name}")
    assert done["moved"] == done["bytes"] == len(content)
    assert done["etag"].endswith("-3")
    assert stored(witness, name) == content
    assert proxy.count("PUT", "partNumber") == 3
    assert witness.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []
    back = tmp_path / "new" / "back"
    proxy.clear()
    assert s3.transfer("down", f"s3://bucket/{name}", back)["moved"] == len(content)
    assert back.read_bytes() == content
    assert leftovers(back.parent) == ["back"]
    ranges = {r.headers.get("range") for r in proxy.seen if r.method == "GET"}
    assert f"bytes={PART}-{2 * PART - 1}" in ranges and len(ranges) == 3


def test_a_broken_upload_goes_on(s3, proxy, witness, name, tmp_path):
    content = blob(4 * PART, seed=1)
    file = write(tmp_path / "file", content)
    s3.options += ["--workers", "1"]
    proxy.inject("before", times=99, match=lambda r: "partNumber=3" in r.path)
    broken = s3("up", file, f"s3://bucket/{name}", options=["--retries", 2])
    assert broken.returncode == 1 and "unavailable" in broken.stderr
    assert witness.list_objects_v2(Bucket="bucket", Prefix=name)["KeyCount"] == 0
    proxy.clear()
    done = s3.transfer("up", file, f"s3://bucket/{name}")
    assert done["moved"] == 2 * PART  # only what was missing
    assert proxy.count("PUT", "partNumber") == 2
    assert stored(witness, name) == content
    assert leftovers(tmp_path / "state" / "uploads") == []


def test_a_broken_upload_of_another_content_is_taken_away(
    s3, proxy, witness, name, tmp_path
):
    file = write(tmp_path / "file", blob(2 * PART, seed=2))
    proxy.inject("before", times=99, match=lambda r: "partNumber=2" in r.path)
    assert s3("up", file, f"s3://bucket/{name}", options=["--retries", 1]).returncode
    proxy.clear()
    uploads = witness.list_multipart_uploads(Bucket="bucket")["Uploads"]
    assert [u["Key"] for u in uploads] == [name]
    content = blob(2 * PART, seed=3)
    file.write_bytes(content)
    assert s3.transfer("up", file, f"s3://bucket/{name}")["moved"] == 2 * PART
    assert stored(witness, name) == content
    assert witness.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []


def unfinished(witness, key):
    found = witness.list_multipart_uploads(Bucket="bucket").get("Uploads", [])
    return [one["UploadId"] for one in found if one["Key"] == key]


def test_uploads_that_nobody_completes_are_ended(s3, witness, name, tmp_path):
    """moto says of each that it began in 2010."""
    for key in (name, name + "x"):
        witness.create_multipart_upload(Bucket="bucket", Key=key)
    assert len(s3.fine("uploads", f"s3://bucket/{name}").splitlines()) == 2
    content = blob(PART + 1, seed=50)
    file = write(tmp_path / "file", content)
    s3.fine("up", file, f"s3://bucket/{name}", options=["--stale", 0])
    assert len(unfinished(witness, name)) == 1  # told to leave them
    s3.fine("up", file, f"s3://bucket/{name}")
    assert unfinished(witness, name) == []
    assert stored(witness, name) == content
    left = unfinished(witness, name + "x")
    assert len(left) == 1  # of another key
    s3.fine("abort", f"s3://bucket/{name}x", left[0])
    s3.fine("abort", f"s3://bucket/{name}x", left[0])
    assert unfinished(witness, name + "x") == []


def test_an_upload_whose_begin_was_not_heard_is_ended(
    s3, proxy, witness, name, tmp_path
):
    file = write(tmp_path / "file", blob(PART + 1, seed=51))
    proxy.inject("after", match=lambda r: r.method == "POST" and "uploads" in r.path)
    s3.fine("up", file, f"s3://bucket/{name}")
    assert proxy.count("POST", "uploads") == 2
    assert unfinished(witness, name) == []


def test_a_store_that_hides_its_uploads_is_stored_to(store, s3, witness, name, tmp_path):
    allow = {
        "Effect": "Allow",
        "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
        "Resource": "*",
    }
    key = store.new_user(store.client("iam"), name, [allow])
    writer = store.probe(key=key, options=["--part", PART])
    content = blob(PART + 1, seed=52)
    done = writer("up", write(tmp_path / "file", content), f"s3://bucket/{name}")
    assert done.returncode == 0, done.stderr
    assert "s3:ListBucketMultipartUploads" in done.stderr
    assert stored(witness, name) == content


def test_an_upload_that_is_refused_leaves_no_parts(s3, proxy, witness, name, tmp_path):
    file = write(tmp_path / "file", blob(2 * PART, seed=4))
    refusal = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    proxy.inject(
        "status", status=403, body=refusal, match=lambda r: "partNumber=2" in r.path
    )
    done = s3("up", file, f"s3://bucket/{name}")
    assert done.returncode == 1 and "permission: " in done.stderr
    assert witness.list_multipart_uploads(Bucket="bucket").get("Uploads", []) == []


def test_the_end_of_an_upload_whose_answer_was_lost(s3, proxy, witness, name, tmp_path):
    content = blob(2 * PART, seed=5)
    file = write(tmp_path / "file", content)
    proxy.inject("after", match=lambda r: r.method == "POST" and "uploadId" in r.path)
    s3.fine("up", file, f"s3://bucket/{name}")
    assert stored(witness, name) == content


def test_an_error_inside_a_200(s3, proxy, witness, name, tmp_path):
    content = blob(PART + 1, seed=6)
    file = write(tmp_path / "file", content)
    proxy.inject(
        "status",
        status=200,
        body=INTERNAL,
        match=lambda r: r.method == "POST" and "uploadId" in r.path,
    )
    s3.fine("up", file, f"s3://bucket/{name}")
    assert stored(witness, name) == content


def test_a_large_file_on_a_condition(s3, proxy, name, tmp_path):
    file = write(tmp_path / "file", blob(PART + 1, seed=7))
    s3.fine("up", file, f"s3://bucket/{name}", "absent")
    proxy.clear()
    again = s3("up", file, f"s3://bucket/{name}", "absent")
    assert again.returncode == 1 and again.stderr.startswith("exists: ")
    assert proxy.count("PUT") == 0  # nothing moved in vain


def test_a_broken_download_goes_on(s3, proxy, name, tmp_path):
    content = blob(4 * PART, seed=8)
    s3.fine("up", write(tmp_path / "file", content), f"s3://bucket/{name}")
    s3.options += ["--workers", "1"]
    third = f"bytes={2 * PART}-"
    proxy.inject(
        "truncate", times=99, match=lambda r: r.headers.get("range", "").startswith(third)
    )
    back = write(tmp_path / "into" / "back", b"old")
    broken = s3("down", f"s3://bucket/{name}", back, options=["--retries", 2])
    assert broken.returncode == 1
    assert back.read_bytes() == b"old"
    proxy.clear()
    assert s3.transfer("down", f"s3://bucket/{name}", back)["moved"] == 2 * PART
    assert proxy.count("GET") == 2
    assert back.read_bytes() == content
    assert leftovers(back.parent) == ["back"]


def test_an_object_that_changes_meanwhile(s3, proxy, witness, name, tmp_path):
    s3.fine("up", write(tmp_path / "file", blob(3 * PART, 9)), f"s3://bucket/{name}")
    new = blob(3 * PART, seed=10)
    write(tmp_path / "new", new)
    third = f"bytes={2 * PART}-"

    def replace(request):
        if request.headers.get("range", "").startswith(third):
            proxy.gate = None
            witness.upload_file(str(tmp_path / "new"), "bucket", name)

    proxy.gate = replace
    s3.options += ["--workers", "1"]
    s3.fine("down", f"s3://bucket/{name}", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == new


def test_bytes_that_changed_on_the_way(s3, proxy, name, tmp_path):
    content = blob(2 * PART, seed=11)
    s3.fine("up", write(tmp_path / "file", content), f"s3://bucket/{name}")
    proxy.inject("flip", match=lambda r: "range" in r.headers)
    back = tmp_path / "into" / "back"
    done = s3("down", f"s3://bucket/{name}", back)
    assert done.returncode == 1
    assert "corrupt: " in done.stderr and "checksum" in done.stderr
    assert not back.exists() and leftovers(back.parent) == []


def test_halves_that_do_not_fit_start_anew(s3, proxy, name, tmp_path):
    content = blob(3 * PART, seed=12)
    s3.fine("up", write(tmp_path / "file", content), f"s3://bucket/{name}")
    back = tmp_path / "into" / "back"
    proxy.inject("before", times=99, match=lambda r: f"bytes={2*PART}-" in str(r.headers))
    s3.options += ["--workers", "1"]
    assert s3("down", f"s3://bucket/{name}", back, options=["--retries", 1]).returncode
    proxy.clear()
    with open(f"{back}.part", "r+b") as part:
        part.write(b"xxxx")
    s3.fine("down", f"s3://bucket/{name}", back)
    assert back.read_bytes() == content


@pytest.mark.parametrize("verb", ["up", "down"])
def test_killed_at_any_moment(s3, proxy, witness, name, tmp_path, verb):
    """What is there afterwards is the old or the new one, whole."""
    old, new = blob(PART + 7, 20), blob(2 * PART + 9, 21)
    old_file, new_file = write(tmp_path / "o", old), write(tmp_path / "n", new)
    address, back = f"s3://bucket/{name}", tmp_path / "back"
    witness.put_object(Bucket="bucket", Key=name, Body=old if verb == "up" else new)
    back.write_bytes(old)
    words = ["up", new_file, address] if verb == "up" else ["down", address, back]
    began = time.monotonic()
    assert s3(*words).returncode == 0
    whole = time.monotonic() - began
    finished = 0
    for turn in range(100 if SOAK else 5):
        if verb == "up":
            witness.put_object(Bucket="bucket", Key=name, Body=old)
        else:
            back.write_bytes(old)
        process = s3.start(*words)
        try:
            process.wait(random.Random(turn).uniform(0, whole))
            finished += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        found = stored(witness, name) if verb == "up" else back.read_bytes()
        assert found in (old, new), turn
    s3.fine(*words)
    assert unfinished(witness, name) == []  # whatever the dead ones had begun
    assert (stored(witness, name) if verb == "up" else back.read_bytes()) == new


# Folders.


def make_tree(folder, count=30):
    for i in range(count):
        write(folder / f"d{i % 3}" / f"f {i}+.txt", b"%d" % i * i)
    write(folder / "large", blob(PART + 3, seed=30))


def tree(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_folders_there_and_back(s3, proxy, witness, name, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    make_tree(source)
    (source / "link").symlink_to(source / "d0" / "f 0+.txt")
    done = s3.transfer("up-folder", source, f"s3://bucket/{name}")
    assert done["files"] == 32 and done["skipped"] == 0
    again = s3.transfer("up-folder", source, f"s3://bucket/{name}")
    assert again["skipped"] == 32 and again["moved"] == 0
    write(source / "d1" / "f 1+.txt", b"changed")
    assert s3.transfer("up-folder", source, f"s3://bucket/{name}")["moved"] == 7

    done = s3.transfer("down-folder", f"s3://bucket/{name}", f"{back}/")
    assert tree(back) == tree(source)
    assert done["moved"] == done["bytes"]
    assert leftovers(tmp_path) == ["back", "back.fetched", "source", "state"]
    proxy.clear()
    again = s3.transfer("down-folder", f"s3://bucket/{name}", back)
    assert again["skipped"] == 32 and len(proxy.seen) == 1  # the list

    # In the store, one changes and one goes; here, one is spoilt.
    witness.put_object(Bucket="bucket", Key=f"{name}/d2/f 2+.txt", Body=b"new")
    witness.delete_object(Bucket="bucket", Key=f"{name}/d0/f 3+.txt")
    (back / "d1" / "f 4+.txt").write_bytes(b"spoilt")
    proxy.clear()
    s3.fine("down-folder", f"s3://bucket/{name}", back)
    assert proxy.count("GET") == 3
    wanted = tree(source) | {"d2/f 2+.txt": b"new"}
    del wanted["d0/f 3+.txt"]
    assert tree(back) == wanted


def test_a_broken_folder_goes_on(s3, proxy, name, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    make_tree(source)
    s3.fine("up-folder", source, f"s3://bucket/{name}")
    s3.options += ["--workers", "1"]
    proxy.inject("before", times=99, match=lambda r: "/d1/" in r.path)
    assert s3("down-folder", f"s3://bucket/{name}", back, options=["--retries", 1]).returncode
    proxy.clear()
    done = s3.transfer("down-folder", f"s3://bucket/{name}", back)
    assert done["skipped"] == 10
    assert tree(back) == tree(source)


def test_keys_that_leave_the_folder_are_refused(s3, witness, name, tmp_path):
    witness.put_object(Bucket="bucket", Key=f"{name}/fine", Body=b"x")
    for key in ("a//b", "./x"):
        witness.put_object(Bucket="bucket", Key=f"{name}/{key}", Body=b"x")
        done = s3("down-folder", f"s3://bucket/{name}", tmp_path / "back")
        assert done.returncode == 1 and done.stderr.startswith("invalid input: ")
        assert not (tmp_path / "back").exists()
        witness.delete_object(Bucket="bucket", Key=f"{name}/{key}")


def test_nothing_there(s3, tmp_path):
    done = s3("down-folder", "s3://bucket/no/such/place", tmp_path / "back")
    assert done.returncode == 1
    assert "there is nothing below s3://bucket/no/such/place" in done.stderr


def test_a_folder_through_many_faults(s3, proxy, name, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    make_tree(source)
    dice = random.Random(1)
    kinds = [
        {"kind": "before"},
        {"kind": "after"},
        {"kind": "truncate"},
        {"kind": "status", "status": 503, "body": SLOW_DOWN},
        {"kind": "status", "status": 500, "body": INTERNAL},
    ]
    lock = threading.Lock()

    def chaos(request):
        with lock:
            return dice.choice(kinds) if dice.random() < 0.2 else None

    proxy.chaos = chaos
    s3.fine("up-folder", source, f"s3://bucket/{name}", options=["--retries", 20])
    s3.fine("down-folder", f"s3://bucket/{name}", back, options=["--retries", 20])
    assert tree(back) == tree(source)


# Credentials.


def test_a_role_that_is_assumed(store, proxy, tmp_path):
    iam = store.client("iam")
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    role = iam.create_role(
        RoleName="worker",
        AssumeRolePolicyDocument=json.dumps(
            {"Version": "2012-10-17", "Statement": [trust]}
        ),
    )["Role"]["Arn"]
    document = {"Version": "2012-10-17", "Statement": [ALL]}
    iam.put_role_policy(
        RoleName="worker", PolicyName="all", PolicyDocument=json.dumps(document)
    )
    keys = f"aws_access_key_id = {store.key[0]}\naws_secret_access_key = {store.key[1]}\n"
    write(tmp_path / "credentials", f"[base]\n{keys}".encode()).chmod(0o600)
    write(
        tmp_path / "config",
        f"[profile work]\nrole_arn = {role}\nsource_profile = base\n".encode(),
    )
    probe = store.probe()
    probe.environment.pop("AWS_ACCESS_KEY_ID")
    env = {
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_PROFILE": "work",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
    }
    who = probe.fine("who", env=env)
    assert who.endswith(f"role {role}\n") and not who.startswith(store.key[0])
    assert probe.fine("put", "s3://bucket/by-role", "x", env=env)
    (tmp_path / "credentials").chmod(0o644)
    refused = probe("who", env=env)
    assert refused.returncode == 1
    assert f"chmod 600 {tmp_path}/credentials" in refused.stderr


def test_the_role_of_an_instance(store, proxy):
    class Metadata(http.server.BaseHTTPRequestHandler):
        def reply(self, text, status=200):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_PUT(self):
            assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) > 0
            self.reply("TOKEN")

        def do_GET(self):
            if self.headers.get("X-aws-ec2-metadata-token") != "TOKEN":
                self.reply("", 401)
            elif self.path.endswith("/security-credentials/"):
                self.reply("node-role")
            elif self.path.endswith("/security-credentials/node-role"):
                document = {
                    "Code": "Success",
                    "AccessKeyId": store.key[0],
                    "SecretAccessKey": store.key[1],
                    "Token": "",
                    "Expiration": "2099-01-01T00:00:00Z",
                }
                self.reply(json.dumps(document))
            else:
                self.reply("", 404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        probe = store.probe()
        env = {
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
            "http_proxy": "http://127.0.0.1:1",  # never for metadata
            "no_proxy": "",
        }
        assert probe.fine("who", env=env) == (
            f"{store.key[0]} role node-role of this instance\n"
        )
    finally:
        server.shutdown()
        server.server_close()


def test_no_credentials_says_where_it_looked(store, tmp_path):
    probe = store.probe()
    env = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    done = probe("get", "s3://bucket/x", env=env)
    assert done.returncode == 1
    for place in ("AWS_ACCESS_KEY_ID (not set)", "/nonexistent/credentials", "aws configure"):
        assert place in done.stderr


# Mounts.


@pytest.fixture
def control(store, proxy, tmp_path):
    control = Control(tmp_path)
    control.environment.update(store.probe().environment)
    control.environment["HOME"] = str(tmp_path)
    control.environment["LOCKSTEP_HOME"] = str(tmp_path / "home")
    return control


def test_a_run_mounts_from_the_store(control, proxy, witness, tmp_path):
    """An object, an archive that is unpacked, and a folder of objects."""
    archive = tmp_path / "set.tar.gz"
    with tarfile.open(archive, "w:gz") as out:
        out.add(write(tmp_path / "inside", b"packed\n"), "deep/inside")
    witness.upload_file(str(archive), "bucket", "mounts/set.tar.gz")
    witness.put_object(Bucket="bucket", Key="mounts/one.txt", Body=b"single\n")
    for i in range(3):
        witness.put_object(Bucket="bucket", Key=f"mounts/tree/d/{i}", Body=b"%d\n" % i)
    (tmp_path / "work").mkdir()
    (tmp_path / "job.yaml").write_text(
        "workdir: work\n"
        "run: cat one set/deep/inside tree/d/0 tree/d/1 tree/d/2 > $LOCKSTEP_RUN_DIR/seen\n"
        "file_mounts:\n  one: s3://bucket/mounts/one.txt\n"
        "  set: s3://bucket/mounts/set.tar.gz\n  tree: s3://bucket/mounts/tree\n"
    )

    def seen():
        result = control.call("run", "job.yaml", timeout=120)
        assert result.returncode == 0, result.stderr
        runs = sorted(tmp_path.rglob("seen"), key=lambda p: p.stat().st_mtime)
        return runs[-1].read_text().split()

    assert seen() == ["single", "packed", "0", "1", "2"]
    proxy.clear()
    assert seen() == ["single", "packed", "0", "1", "2"]
    assert proxy.count("GET", "mounts/") == 0  # nothing is fetched twice
    witness.put_object(Bucket="bucket", Key="mounts/tree/d/1", Body=b"new\n")
    witness.put_object(Bucket="bucket", Key="mounts/one.txt", Body=b"changed\n")
    assert seen() == ["changed", "packed", "0", "new", "2"]


def test_a_mount_of_a_key_with_odd_letters(control, witness, tmp_path):
    """'#' and '?' belong to the name, so that an archive is seen as one."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as out:
        out.add(write(tmp_path / "inside", b"packed\n"), "inside")
    for key in ("odd/run #2?.tar.gz", "odd/\u00fc+%20.tar.gz"):
        witness.put_object(Bucket="bucket", Key=key, Body=stream.getvalue())
    (tmp_path / "work").mkdir()
    (tmp_path / "job.yaml").write_text(
        "workdir: work\nrun: cat a/inside b/inside\nfile_mounts:\n"
        "  a: 's3://bucket/odd/run #2?.tar.gz'\n  b: 's3://bucket/odd/\u00fc+%20.tar.gz'\n"
    )
    done = control.call("run", "job.yaml", timeout=120)
    assert done.returncode == 0, done.stderr
    assert control.run().log(0) == "packed\npacked\n"


def test_a_mount_that_is_not_there(control, tmp_path):
    (tmp_path / "job.yaml").write_text(
        "run: 'true'\nfile_mounts: {data: 's3://bucket/no/such/thing'}\n"
    )
    result = control.call("run", "job.yaml", timeout=120)
    assert result.returncode != 0
    assert "file_mounts.data" in result.stderr
    assert "there is nothing below s3://bucket/no/such/thing" in result.stderr
