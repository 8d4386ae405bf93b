"""Downloads against a server that misbehaves on purpose, and `data get`.

The server runs in this process on a port of its own; each path is one fault.
What was asked for is kept, so that tests see ranges and retries, not only the
outcome.
"""

import gzip
import hashlib
import http.server
import io
import os
import pathlib
import subprocess
import tarfile
import threading

import pytest

BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", "build"))
PROBE = BUILD / "bin" / "fetch_probe"
LOCKSTEP = BUILD / "bin" / "lockstep"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
BODY = bytes(range(256)) * 4096  # 1 MiB
SHA256 = "sha256:" + hashlib.sha256(BODY).hexdigest()
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def reply(self, status, body=b"", length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(length or len(body)))
        self.end_headers()
        self.wfile.write(body)

    def reply_range(self, etag='"one"', cut=None):
        """The body from where the client asked, perhaps cut short."""
        wanted = self.headers.get("Range")
        same = self.headers.get("If-Range", etag) == etag
        start = int(wanted[6:-1]) if wanted and same else 0
        body = BODY[start:]
        headers = {"ETag": etag}
        if start:
            headers["Content-Range"] = (
                f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"
            )
        self.reply(
            206 if start else 200, body[:cut], length=len(body), **headers
        )
        if cut is not None:
            self.close_connection = True

    def do_GET(self):
        server = self.server
        path = self.path
        if path.startswith("http://"):  # we are the proxy
            path = "/" + path.split("/", 3)[3]
        server.seen.append((self.path, dict(self.headers)))
        count = server.counts[path] = server.counts.get(path, 0) + 1
        if path in server.files:
            self.reply(200, server.files[path])
        elif path == "/good":
            self.reply_range()
        elif path == "/cut-once":
            self.reply_range(cut=300_000 if count == 1 else None)
        elif path == "/cut-always":
            self.reply_range(cut=1000)
        elif path == "/changed":
            # Between the two halves the file became another one.
            if count == 1:
                self.reply(200, b"x" * 1000, length=len(BODY), ETag='"old"')
                self.close_connection = True
            else:
                self.reply_range()
        elif path == "/no-validator":
            if count == 1:
                self.reply(200, BODY[:1000], length=len(BODY))
                self.close_connection = True
            else:
                self.reply(200, BODY)
        elif path == "/busy-twice":
            if count <= 2:
                self.reply(503, b"busy", Retry_After="0")
            else:
                self.reply_range()
        elif path == "/broken":
            self.reply(500, b"no")
        elif path == "/forbidden":
            self.reply(403, b"no")
        elif path == "/moved":
            self.reply(302, b"elsewhere", Location="/good")
        elif path == "/loop":
            self.reply(302, b"", Location="/loop")
        elif path == "/to-file":
            self.reply(302, b"", Location="file:///etc/passwd")
        elif path == "/stall":
            self.reply(200, BODY[:1000], length=len(BODY))
            server.ended.wait(20)
            self.close_connection = True
        else:
            self.reply(404, b"nothing here")


@pytest.fixture
def server():
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.seen = []
    httpd.counts = {}
    httpd.files = {}
    httpd.ended = threading.Event()
    thread = threading.Thread(
        target=httpd.serve_forever, args=[0.02], daemon=True
    )
    thread.start()
    httpd.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    yield httpd
    httpd.ended.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def environment(**more):
    env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    return env | more


def probe(*arguments, **env):
    return subprocess.run(
        [PROBE, *map(str, arguments)],
        env=environment(**env),
        text=True,
        capture_output=True,
        timeout=60,
    )


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


def test_whole_file(server, tmp_path):
    to = tmp_path / "new" / "file"
    done = probe("download", server.url + "/good", to, SHA256)
    assert done.returncode == 0, done.stderr
    assert to.read_bytes() == BODY
    assert done.stdout == f"bytes={len(BODY)} resumed=0 attempts=1\n"
    assert leftovers(to.parent) == ["file"]
    assert server.seen[0][1]["User-Agent"].startswith("lockstep/")


def test_cut_connection_resumes_where_it_stopped(server, tmp_path):
    to = tmp_path / "file"
    done = probe("download", server.url + "/cut-once", to, MD5)
    assert done.returncode == 0, done.stderr
    assert to.read_bytes() == BODY
    assert done.stdout == f"bytes={len(BODY)} resumed=300000 attempts=2\n"
    assert server.seen[1][1]["Range"] == "bytes=300000-"
    assert server.seen[1][1]["If-Range"] == '"one"'
    assert "trying again" in done.stderr


def test_a_later_call_resumes(server, tmp_path):
    to = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(BODY[:5000])
    url = server.url + "/good"
    (tmp_path / "file.part.mark").write_text(url + '\n"one"\n')
    done = probe("download", url, to)
    assert done.stdout == f"bytes={len(BODY)} resumed=5000 attempts=1\n"
    assert to.read_bytes() == BODY
    assert leftovers(tmp_path) == ["file"]


def test_part_of_another_address_is_not_used(server, tmp_path):
    to = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(b"z" * 5000)
    (tmp_path / "file.part.mark").write_text('http://other/\n"one"\n')
    done = probe("download", server.url + "/good", to)
    assert "resumed=0" in done.stdout
    assert to.read_bytes() == BODY


def test_file_that_changed_meanwhile_starts_anew(server, tmp_path):
    to = tmp_path / "file"
    done = probe("download", server.url + "/changed", to)
    assert done.returncode == 0, done.stderr
    assert "resumed=0 attempts=2" in done.stdout
    assert to.read_bytes() == BODY


def test_without_validator_or_checksum_starts_anew(server, tmp_path):
    to = tmp_path / "file"
    done = probe("download", server.url + "/no-validator", to)
    assert done.returncode == 0, done.stderr
    assert "Range" not in server.seen[1][1]
    assert to.read_bytes() == BODY


def test_halves_that_do_not_fit_start_anew(server, tmp_path):
    to = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(b"z" * 5000)
    url = server.url + "/good"
    (tmp_path / "file.part.mark").write_text(url + '\n"one"\n')
    done = probe("download", url, to, SHA256)
    assert done.returncode == 0, done.stderr
    assert "resumed=0 attempts=2" in done.stdout
    assert to.read_bytes() == BODY


def test_part_longer_than_the_file_starts_anew(server, tmp_path):
    to = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(BODY + b"zzz")
    url = server.url + "/good"
    (tmp_path / "file.part.mark").write_text(url + '\n"one"\n')
    done = probe("download", url, to, SHA256)
    assert done.returncode == 0, done.stderr
    assert to.read_bytes() == BODY


def test_always_cut_gives_up_and_keeps_what_came(server, tmp_path):
    to = tmp_path / "file"
    done = probe("download", server.url + "/cut-always", to, SHA256)
    assert done.returncode == 1
    assert server.counts["/cut-always"] == 5
    assert not to.exists()
    assert (tmp_path / "file.part").read_bytes() == BODY[:5000]
    again = probe("download", server.url + "/good", to, SHA256)
    assert again.returncode == 0 and to.read_bytes() == BODY


def test_server_error_then_success(server, tmp_path):
    done = probe("download", server.url + "/busy-twice", tmp_path / "file")
    assert done.returncode == 0, done.stderr
    assert "attempts=3" in done.stdout
    assert "answered 503; trying again" in done.stderr


@pytest.mark.parametrize(
    "path, attempts, said",
    [
        ("/broken", 5, "unavailable: {url}: the server answered 500"),
        ("/absent", 1, "not found: {url}: the server answered 404"),
        ("/forbidden", 1, "permission: {url}: the server answered 403"),
        ("/loop", 11, "redirects"),
        ("/to-file", 1, "file"),
    ],
)
def test_errors_are_tried_by_their_class(
    server, tmp_path, path, attempts, said
):
    done = probe("download", server.url + path, tmp_path / "file")
    assert done.returncode == 1
    assert server.counts[path] == attempts
    assert said.format(url=server.url + path) in done.stderr
    assert not (tmp_path / "file").exists()


def test_wrong_checksum_leaves_nothing(server, tmp_path):
    wrong = "sha256:" + "0" * 64
    done = probe("download", server.url + "/good", tmp_path / "file", wrong)
    assert done.returncode == 1
    assert done.stderr.startswith("corrupt: ")
    assert SHA256 in done.stderr and wrong in done.stderr
    assert server.counts["/good"] == 1
    assert leftovers(tmp_path) == []


def test_old_file_survives_a_failure(server, tmp_path):
    (tmp_path / "file").write_text("old")
    probe("download", server.url + "/absent", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"


def test_redirect_is_followed(server, tmp_path):
    done = probe("download", server.url + "/moved", tmp_path / "file", SHA256)
    assert done.returncode == 0, done.stderr


def test_stalled_transfer_is_given_up(server, tmp_path):
    done = probe("download", server.url + "/stall", tmp_path / "file", "-", 1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("timeout: ")


def test_nobody_there(tmp_path):
    done = probe("download", "http://127.0.0.1:1/x", tmp_path / "file")
    assert done.returncode == 1
    assert "unavailable: http://127.0.0.1:1/x" in done.stderr
    assert done.stderr.count("trying again") == 1


def test_address_that_is_none(tmp_path):
    for url in ("ftp://127.0.0.1/x", "http://", "nonsense://x"):
        done = probe("download", url, tmp_path / "file")
        assert done.returncode == 1
        assert "trying again" not in done.stderr


def test_unwritable_target(server, tmp_path):
    (tmp_path / "file").write_text("x")
    done = probe("download", server.url + "/good", tmp_path / "file" / "x")
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr


def test_disk_full(server, tmp_path):
    (tmp_path / "file.part").symlink_to("/dev/full")
    done = probe("download", server.url + "/good", tmp_path / "file")
    assert done.returncode == 1
    assert done.stderr.startswith("no space: cannot write ")
    assert server.counts["/good"] == 1


def test_proxy_is_honoured(server, tmp_path):
    done = probe(
        "download",
        "http://example.invalid/good",
        tmp_path / "file",
        SHA256,
        http_proxy=server.url,
    )
    assert done.returncode == 0, done.stderr
    assert server.seen[0][0] == "http://example.invalid/good"


def test_python_archives_unpack(tmp_path):
    """tarfile's own formats, long and odd names included."""
    names = ["a", "d/b", "d" * 120 + "/" + "f" * 90, "\u00e9/x"]
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        archive = tmp_path / f"{form}.tar.gz"
        with tarfile.open(archive, "w:gz", format=form) as tar:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = len(name)
                tar.addfile(info, io.BytesIO(b"x" * len(name)))
        into = tmp_path / str(form)
        done = probe("unpack", archive, into)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == names
        for name in names:
            assert (into / name).read_bytes() == b"x" * len(name)


def get(*arguments, **env):
    return subprocess.run(
        [LOCKSTEP, "data", "get", *map(str, arguments)],
        env=environment(**env),
        text=True,
        capture_output=True,
        timeout=120,
    )


needs_fashion = pytest.mark.skipif(
    not FASHION.exists(), reason="package dataset-fashion-mnist is absent"
)


@pytest.fixture
def mirror(server):
    for path in FASHION.glob("*.gz"):
        server.files["/m/" + path.name] = path.read_bytes()
    return server


@needs_fashion
def test_data_get_from_a_mirror(mirror, tmp_path):
    done = get("fashion_mnist", "--from", mirror.url + "/m", "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    for path in FASHION.glob("*.gz"):
        assert (tmp_path / path.stem).read_bytes() == gzip.decompress(
            path.read_bytes()
        )
    requests = len(mirror.seen)
    again = get("fashion_mnist", "--from", mirror.url + "/m", "--to", tmp_path)
    assert again.returncode == 0, again.stderr
    assert len(mirror.seen) == requests  # it was there and complete


@needs_fashion
def test_data_get_into_the_cache(mirror, tmp_path):
    done = get(
        "fashion_mnist",
        "--from",
        mirror.url + "/m/",
        LOCKSTEP_DATA=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "fashion_mnist" / "t10k-labels-idx1-ubyte").exists()


@needs_fashion
def test_data_get_refuses_other_content(mirror, tmp_path):
    mirror.files["/m/t10k-labels-idx1-ubyte.gz"] = gzip.compress(b"x" * 10008)
    done = get("fashion_mnist", "--from", mirror.url + "/m", "--to", tmp_path)
    assert done.returncode == 3
    assert "t10k-labels-idx1-ubyte is not the file it should be" in done.stderr
    assert not (tmp_path / "train-images-idx3-ubyte").exists()


@needs_fashion
def test_data_get_names_a_truncated_archive(mirror, tmp_path):
    name = "/m/train-images-idx3-ubyte.gz"
    mirror.files[name] = mirror.files[name][:100_000]
    done = get("fashion_mnist", "--from", mirror.url + "/m", "--to", tmp_path)
    assert done.returncode == 3
    assert "train-images-idx3-ubyte.gz: it ends in the middle" in done.stderr


def test_data_get_with_a_wrong_name(tmp_path):
    done = get("cifar100", "--to", tmp_path)
    assert done.returncode == 2
    assert "cifar10" in done.stderr
