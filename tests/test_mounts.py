"""file_mounts: folders, files, archives and addresses, here and on other hosts.

The server runs in this process, on a port of its own, and keeps what it was
asked.
"""

import http.server
import io
import os
import signal
import ssl
import subprocess
import tarfile
import threading

import pytest
from control import Control
from testbed import Hosts, needs_root


def archive(files, **options):
    """The bytes of a .tar.gz with these texts by name."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", **options) as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        if target := server.redirects.get(self.path):
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = server.files.get(self.path.split("?")[0])
        tag = f'"{hash(body)}"'
        status = 200
        if body is None:
            status, body = 404, b"nothing here"
        elif server.tags and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        server.seen.append((self.path, status))
        self.send_response(status)
        if server.tags:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(context=None):
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    httpd.files, httpd.seen, httpd.tags = {}, [], True
    httpd.redirects = {}
    scheme = "http"
    if context is not None:
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
        scheme = "https"
    httpd.url = f"{scheme}://127.0.0.1:{httpd.server_port}"
    threading.Thread(target=httpd.serve_forever, args=[0.02], daemon=True).start()
    return httpd


@pytest.fixture
def server():
    httpd = serve()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture
def control(tmp_path):
    control = Control(tmp_path)
    for name in [*control.environment]:
        if name.lower().endswith("_proxy") or name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE"):
            del control.environment[name]
    control.work = tmp_path / "work"
    control.work.mkdir()
    yield control
    control.end_all()


def run(control, command, mounts, *words, **options):
    lines = [f"run: {command}", "file_mounts:"]
    lines += [f"  {name}: {source}" for name, source in mounts.items()]
    control.script("job.yaml", "\n".join(lines) + "\n")
    return control.call(
        "run", "--workdir", control.work, *words, "job.yaml", timeout=120, **options
    )


def last_log(control, rank=0):
    runs = sorted(control.runs_dir.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return (runs[-1] / "ranks" / f"{rank}.log").read_text()


def test_local_folders_files_and_archives(control):
    data = control.folder / "data"
    data.mkdir()
    (data / "x").write_text("folder\n")
    (control.folder / "one.txt").write_text("file\n")
    (control.folder / "a.tar.gz").write_bytes(archive({"deep/y": "archive\n"}))
    mounts = {
        "in": data,
        "sub/one": control.folder / "one.txt",
        "packed": "~/a.tar.gz",  # HOME is the test's folder
    }
    for _ in range(2):
        done = run(control, "cat in/x sub/one packed/deep/y", mounts)
        assert done.returncode == 0, done.stderr
        assert last_log(control) == "folder\nfile\narchive\n"
    assert (control.work / "in").is_symlink()


def test_relative_sources_and_what_is_there_already(control):
    (control.folder / "data").mkdir()
    (control.folder / "data" / "x").write_text("relative\n")
    assert run(control, "cat in/x", {"in": "./data"}).returncode == 0
    assert last_log(control) == "relative\n"
    # The user's own files and links are never replaced.
    (control.work / "mine").write_text("mine\n")
    (control.work / "link").symlink_to("/etc")
    for name in ("mine", "link"):
        done = run(control, "true", {name: "./data"})
        assert done.returncode == 2 and "is there already" in done.stderr, done.stderr
    assert (control.work / "mine").read_text() == "mine\n"
    # What is mounted onto itself is there.
    (control.work / "own").mkdir()
    done = run(control, "test -d own", {"own": control.work / "own"})
    assert done.returncode == 0, done.stderr


def test_an_address_is_fetched_once_and_again_when_it_changed(control, server):
    server.files["/d.tar.gz"] = archive({"x": "first\n"})
    source = f"{server.url}/d.tar.gz"
    assert run(control, "cat d/x", {"d": source}).returncode == 0
    assert last_log(control) == "first\n"
    assert run(control, "cat d/x", {"d": source}).returncode == 0
    assert [status for _, status in server.seen] == [200, 304]
    server.files["/d.tar.gz"] = archive({"x": "second\n"})
    assert run(control, "cat d/x", {"d": source}).returncode == 0
    assert last_log(control) == "second\n"
    assert [status for _, status in server.seen] == [200, 304, 200]


def test_a_server_without_tags_is_asked_every_time(control, server):
    server.tags = False
    server.files["/f"] = b"plain\n"
    for _ in range(2):
        assert run(control, "cat f", {"f": f"{server.url}/f?key=1"}).returncode == 0
        assert last_log(control) == "plain\n"
    assert [status for _, status in server.seen] == [200, 200]


def test_a_server_that_is_gone_leaves_the_copy(control, server):
    server.files["/f"] = b"kept\n"
    source = f"{server.url}/f"
    assert run(control, "cat f", {"f": source}).returncode == 0
    server.shutdown()
    server.server_close()
    done = run(control, "cat f", {"f": source})
    assert done.returncode == 0, done.stderr
    assert last_log(control) == "kept\n"
    assert "the copy that was fetched before is used" in done.stderr


def test_errors_name_the_key_and_the_source(control, server):
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        entry = tarfile.TarInfo("../../out")
        tar.addfile(entry)
    server.files["/evil.tar"] = evil.getvalue()
    server.files["/cut.tar.gz"] = archive({"x": "text" * 1000})[:-20]
    for source, code, words in (
        (f"{server.url}/none.tgz", 2, "404"),
        (f"{server.url}/evil.tar", 2, "../../out"),
        (f"{server.url}/cut.tar.gz", None, "cut.tar.gz"),
        (f"{server.url}/x.zip", 2, ".tar.gz"),
        ("ftp://host/x", 2, "accepted: a path, https://"),
        ("http://127.0.0.1:1/x", 3, "127.0.0.1"),
        ("/nowhere/at/all", 2, "/nowhere/at/all"),
    ):
        done = run(control, "true", {"data": source})
        assert done.returncode == code or (code is None and done.returncode), done.stderr
        assert "file_mounts.data" in done.stderr and words in done.stderr, done.stderr
    assert not control.runs()
    assert not (control.folder / "out").exists()
    # A damaged archive never becomes a version.
    assert not list((control.folder / ".cache/lockstep/mounts").glob("*/[0-9a-f]*"))


def test_a_dry_run_fetches_nothing(control, server):
    done = run(control, "true", {"d": f"{server.url}/d.tgz"}, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert not server.seen and not (control.work / "d").exists()


def test_https_with_certificates_of_ones_own(control, server, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        + ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    httpd = serve(context)
    try:
        httpd.files["/d.tgz"] = archive({"x": "safe\n"})
        source = f"{httpd.url}/d.tgz"
        refused = run(control, "cat d/x", {"d": source})
        assert refused.returncode == 3 and "certificate" in refused.stderr, refused.stderr
        done = run(control, "cat d/x", {"d": source}, env={"SSL_CERT_FILE": str(certificate)})
        assert done.returncode == 0, done.stderr
        assert last_log(control) == "safe\n"
        # Elsewhere by https too, but never in the clear.
        server.files["/d.tgz"] = archive({"x": "anybody's\n"})
        httpd.redirects = {"/same.tgz": source, "/clear.tgz": f"{server.url}/d.tgz"}
        for name, code in (("same", 0), ("clear", 2)):
            done = run(control, "cat d/x", {"d": f"{httpd.url}/{name}.tgz"},
                       env={"SSL_CERT_FILE": str(certificate)})
            assert done.returncode == code, done.stderr
        assert last_log(control) == "safe\n" and not server.seen
    finally:
        httpd.shutdown()
        httpd.server_close()


@needs_root
def test_on_other_hosts(control, server):
    server.files["/d.tar.gz"] = archive({"x": "fetched\n"})
    (control.folder / "data").mkdir()
    (control.folder / "data" / "x").write_text("folder\n")
    (control.folder / "one.txt").write_text("file\n")
    mounts = {
        "in": control.folder / "data",
        "one": control.folder / "one.txt",
        "d": f"{server.url}/d.tar.gz",
        "/tmp/lockstep-absolute": control.folder / "one.txt",
    }
    with Hosts(2) as bed:
        control.environment.update(bed.environment())
        words = ["--hosts", "n1,n2", "--env", f"{control.marker}=1"]
        command = "cat in/x one d/x /tmp/lockstep-absolute"
        for text in ("file\n", "another\n"):
            (control.folder / "one.txt").write_text(text)
            done = run(control, command, mounts, *words)
            assert done.returncode == 0, done.stderr
            for rank in (0, 1):
                expected = f"folder\n{text}fetched\n{text}"
                assert last_log(control, rank) == expected
        # Once for all hosts, and not again while it is the same.
        assert [status for _, status in server.seen] == [200, 304]
        missing = run(control, "true", {"d": f"{server.url}/none.tgz"}, *words)
        assert missing.returncode == 2 and "404" in missing.stderr, missing.stderr
        for alias in bed.names:
            for pid, _ in bed.processes(alias, control.marker):
                os.kill(pid, signal.SIGKILL)
