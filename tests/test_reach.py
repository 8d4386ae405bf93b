"""Hosts reached over a real sshd: what travels, and what is told when it
cannot; `lockstep doctor --hosts`."""

import json
import os
import pathlib
import pty
import select
import shutil
import subprocess
import time

import pytest

import control
from testbed import Hosts, home_folder, needs_root

pytestmark = needs_root
PROBE = str(control.BUILD / "bin" / "reach_probe")


@pytest.fixture(scope="module")
def hosts():
    with Hosts(3) as made:
        yield made


@pytest.fixture
def near(hosts, tmp_path):
    near = Near(hosts, tmp_path)
    yield near
    near.close()


class Near:
    """The user's side, with a home and ssh options of its own."""

    def __init__(self, hosts, folder):
        self.hosts = hosts
        self.control = control.Control(folder)
        self.folder = folder
        self.options = f"-F {hosts.ssh_config}"
        # Sockets of ssh need a short path; pytest's are long.
        self.sockets = pathlib.Path(f"/tmp/lkr-{os.getpid()}")
        self.sockets.mkdir(mode=0o700, exist_ok=True)
        self.environment = {"XDG_RUNTIME_DIR": str(self.sockets)}

    def close(self):
        """Ends the shared connections that this test made."""
        folder = self.sockets / "lockstep"
        for socket in folder.glob("*") if folder.exists() else []:
            subprocess.run(
                ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"],
                capture_output=True,
                timeout=control.PATIENCE,
            )
        shutil.rmtree(self.sockets, ignore_errors=True)

    def call(self, *words, options="", env=None):
        return self.control.call(
            *words,
            env={
                **self.environment,
                "LOCKSTEP_SSH_OPTIONS": f"{options} {self.options}",
                **(env or {}),
            },
            timeout=180,
        )

    def doctor(self, *words, **options):
        """{(host, what): finding}, exit code."""
        result = self.call("--output", "json", "doctor", *words, **options)
        assert result.stdout, result.stderr
        found = json.loads(result.stdout)
        return {(one["host"], one["what"]): one for one in found}, result.returncode

    def probe(self, *words, options=""):
        result = subprocess.run(
            [PROBE, control.LOCKSTEP, *map(str, words)],
            env={
                **self.control.environment,
                **self.environment,
                "LOCKSTEP_SSH_OPTIONS": f"{options} {self.options}",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def forget(self, *names):
        """As if lockstep had never been there."""
        for name in names:
            self.hosts.run(name, "rm -rf ~/.cache/lockstep")


def refused(near, host, options=""):
    """The finding about a host that cannot be used."""
    found, code = near.doctor("--hosts", host, options=options)
    assert code == 3
    finding = found[host, "reach"]
    assert finding["state"] == "broken"
    assert host.split("@")[-1] in finding["detail"]
    assert finding["fix"], finding
    return finding


def test_sends_itself_once_to_all_side_by_side(near):
    near.forget("n1", "n2", "n3")
    first = near.probe("n1", "n2", "n3")
    assert [first[name]["sent"] for name in ("n1", "n2", "n3")] == [True] * 3, first
    again = near.probe("n1", "n2", "n3")
    assert [again[name]["sent"] for name in ("n1", "n2", "n3")] == [False] * 3
    print(f"first {first['seconds']:.2f} s, again {again['seconds']:.2f} s")
    size = near.hosts.run("n1", "stat -c %s ~/.cache/lockstep/bin/*/lockstep")
    assert int(size) == os.path.getsize(control.LOCKSTEP)


def test_one_connection_serves_all_calls(near):
    near.probe("n1")
    before = near.hosts.log("n1/sshd.log").count("Accepted publickey")
    near.probe("n1")
    assert near.hosts.log("n1/sshd.log").count("Accepted publickey") == before


def test_a_folder_travels_and_is_set_up_once(near):
    work = near.folder / "work"
    (work / "deep").mkdir(parents=True)
    (work / "train.py").write_text("print(1)")
    (work / "deep" / "data.bin").write_bytes(os.urandom(3 << 20))
    (work / "junk.tmp").write_text("x")
    (work / ".lockstepignore").write_text("*.tmp\n")
    words = ["--folder", work, "--setup", "echo in $PWD; echo x >>marks", "n1", "n2"]
    first = near.probe(*words)
    for name in ("n1", "n2"):
        there = first[name]["folder"]
        assert first[name]["files"] == 3
        assert first[name]["log"] == f"in {there}\n"
        assert near.hosts.run(name, f"ls -A {there}").split() == [
            ".lockstepignore", "deep", "marks", "train.py"]
    (work / "train.py").write_text("print(2)")
    again = near.probe(*words)
    assert again["n1"]["files"] == 1
    assert near.hosts.run("n1", f"cat {first['n1']['folder']}/train.py") == "print(2)"
    assert again["n1"]["log"]  # another content
    third = near.probe(*words)
    assert third["n1"]["files"] == 0
    assert third["n1"]["log"] == ""
    assert near.hosts.run("n1", f"cat {first['n1']['folder']}/marks") == "x\nx\n"


def test_a_program_travels_with_its_libraries(near):
    folder = near.folder / "near only"
    folder.mkdir()
    program = shutil.copy("/usr/bin/curl", folder / "curl")
    sent = near.probe("--program", program, "n1")["n1"]
    path = sent["program"]
    # Hosts of the test bed see our files; a library is found where it lies.
    listed = near.hosts.run("n1", f"ls -A {path.rsplit('/', 1)[0]}").split()
    assert listed == ["bin", "curl", "lib"]
    assert "curl" in near.hosts.run("n1", f"{path} --version")
    assert near.probe("--program", program, "n1")["n1"]["blobs"] == 0


def test_ssh_options_of_the_job_serve_all_verbs(near):
    work = near.folder / "work"
    work.mkdir()
    options = ["-F", str(near.hosts.ssh_config)]
    job = {"name": "opts", "workdir": str(work), "run": "echo from $(hostname)",
           "resources": {"hosts": ["n1", "n2"], "ssh_options": options}}
    (near.folder / "job.yaml").write_text(json.dumps(job))
    result = near.control.call("run", "job.yaml", env=near.environment, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "from node1" in result.stderr
    state = near.control.run().state()
    assert state["ssh_options"] == options
    (near.folder / "job.yaml").write_text(json.dumps({**job, "run": "sleep 600"}))
    result = near.control.call(
        "run", "--detach", "--name", "long", "job.yaml", env=near.environment, timeout=120
    )
    assert result.returncode == 0, result.stderr
    listed = near.control.call("--output", "json", "ps", env=near.environment)
    assert [one["state"] for one in json.loads(listed.stdout)].count("running") == 1, listed.stdout
    stopped = near.control.call("stop", "--now", "long", env=near.environment, timeout=120)
    assert stopped.returncode == 0, stopped.stderr


def test_unknown_host(near):
    finding = refused(near, "no-such-host.invalid")
    assert "Could not resolve hostname" in finding["detail"]


def test_refused_key(near, tmp_path):
    key = tmp_path / "another"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    finding = refused(near, "n1", options=f"-o IdentityFile={key} -o IdentityAgent=none "
                      f"-F {without(near, 'IdentityFile')}")
    assert "Permission denied" in finding["detail"]
    assert "ssh-copy-id n1" in finding["fix"]


def without(near, word):
    """The hosts' ssh configuration without lines of this option."""
    path = near.folder / "ssh_config"
    lines = near.hosts.ssh_config.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if word not in line))
    near.options = ""
    return path


def test_a_passphrase_is_asked_for_on_the_terminal(near):
    key = near.folder / "locked"
    shutil.copy(near.hosts.key, key)
    key.chmod(0o600)
    words = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", key]
    subprocess.run(words, check=True)
    config = without(near, "IdentityFile")
    environment = {
        **near.control.environment,
        **near.environment,
        "LOCKSTEP_SSH_OPTIONS": f"-o IdentityFile={key} -o IdentityAgent=none -F {config}",
    }
    pid, terminal = pty.fork()
    if pid == 0:
        words = [control.LOCKSTEP, "doctor", "--hosts", "n1"]
        os.execve(control.LOCKSTEP, words, environment)
    seen = b""
    try:
        while b"passphrase for key" not in seen:
            seen += read_terminal(terminal)
        os.write(terminal, b"open sesame\n")
        while piece := read_terminal(terminal):
            seen += piece
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert b"ssh in" in seen


def read_terminal(terminal):
    """b"" when its other side is closed."""
    ready, _, _ = select.select([terminal], [], [], control.PATIENCE)
    assert ready, "the terminal stays silent"
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_wrong_user(near):
    finding = refused(near, "nobody-here@n1")
    assert "Permission denied" in finding["detail"]
    assert "user@host" in finding["fix"]


def test_changed_and_unknown_host_keys(near, tmp_path):
    key = tmp_path / "host"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = " ".join((tmp_path / "host.pub").read_text().split()[:2])
    known = tmp_path / "known"
    known.write_text(f"{near.hosts.address('n1')} {public}\n")
    finding = refused(near, "n1", options=f"-o UserKnownHostsFile={known}")
    assert "HAS CHANGED" in finding["detail"]
    assert "ssh-keygen -R n1" in finding["fix"]
    known.write_text("")
    finding = refused(near, "n1", options=f"-o UserKnownHostsFile={known}")
    assert "not known here" in finding["detail"]


def test_nobody_listens(near):
    finding = refused(near, "n1", options="-p 2222")
    assert "Connection refused" in finding["detail"]


def test_no_answer(near):
    near.hosts.drop("n3", "-p", "tcp", "--dport", "22")
    try:
        began = time.monotonic()
        finding = refused(near, "n3", options="-o ConnectTimeout=1")
        assert "timed out" in finding["detail"]
        assert time.monotonic() - began < 15
    finally:
        near.hosts.drop_nothing("n3")


class Mounted:
    """Something else in the place of the host's ~/.cache, or of a file."""

    def __init__(self, hosts, name, place, *words):
        self.hosts, self.name, self.place = hosts, name, place
        hosts.run(name, f"mkdir -p $(dirname {place})")
        hosts.run(name, f"[ -e {place} ] || mkdir {place}")
        hosts.run(name, f"mount {' '.join(words)} {place}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hosts.run(self.name, f"umount {self.place}")


def test_no_space(near):
    home = home_folder() / ".cache"
    with Mounted(near.hosts, "n1", home, "-t tmpfs -o size=1m none"):
        finding = refused(near, "n1")
        assert "No space left on device" in finding["detail"]
        assert "LOCKSTEP_FAR_HOME" in finding["fix"]
        # Nothing half is left that looks whole, and the way out works.
        assert near.hosts.run("n1", "ls ~/.cache/lockstep/bin/*").strip() == ""
        found, code = near.doctor("--hosts", "n1", env={"LOCKSTEP_FAR_HOME": "/tmp/elsewhere"})
        assert code == 0, found
        assert "/tmp/elsewhere" in found["n1", "disk"]["detail"]


def test_no_space_for_a_folder(near):
    near.probe("n1")
    work = near.folder / "work"
    work.mkdir()
    (work / "big").write_bytes(os.urandom(9 << 20))
    place = home_folder() / ".cache/lockstep/incoming"
    with Mounted(near.hosts, "n1", place, "-t tmpfs -o size=4m none"):
        error = near.probe("--folder", work, "n1")["n1"]["error"]
        assert "No space left on device" in error
        assert error.startswith("sending")


def test_read_only_home(near):
    near.forget("n1")
    with Mounted(near.hosts, "n1", home_folder() / ".cache", "-t tmpfs -o ro none"):
        finding = refused(near, "n1")
        assert "Read-only file system" in finding["detail"]


def test_home_that_runs_no_programs(near):
    with Mounted(near.hosts, "n1", home_folder() / ".cache", "-t tmpfs -o noexec none"):
        finding = refused(near, "n1")
        assert "cannot be run from its home" in finding["detail"]


def test_other_architecture(near):
    near.forget("n1")
    fake = near.hosts.shared / "uname"
    fake.write_text("#!/bin/sh\necho aarch64\n")
    fake.chmod(0o755)
    with Mounted(near.hosts, "n1", "/usr/bin/uname", f"--bind {fake}"):
        finding = refused(near, "n1")
        assert "its architecture is aarch64" in finding["detail"]


def test_login_scripts_that_talk(near):
    near.hosts.run("n1", "echo 'echo hello there' > ~/.bashrc")
    try:
        assert near.probe("n1")["n1"]["took"] > 0
    finally:
        near.hosts.run("n1", "rm ~/.bashrc")


def test_doctor_looks_at_hosts_and_between_them(near):
    found, code = near.doctor("--hosts", "n1,n2")
    assert code == 0, found
    for host in ("n1", "n2"):
        for what in ("reach", "lockstep", "clock", "system", "cores", "memory", "gpu",
                     "disk", "/dev/shm", "python3"):
            assert found[host, what]["state"] == "ok", found[host, what]
    for way in (("n1", "to n2"), ("n2", "to n1")):
        detail = found[way]["detail"]
        assert found[way]["state"] == "ok"
        assert "there and back" in detail and "B/s" in detail, detail
    table = near.call("doctor", "--hosts", "n1,n2")
    assert table.returncode == 0
    assert table.stdout.splitlines()[0].split() == ["host", "what", "state", "detail"]


def test_doctor_from_a_hostfile_names_the_line(near):
    (near.folder / "good").write_text("# two\nn1 slots=2\nn2\n")
    found, code = near.doctor("--hostfile", near.folder / "good")
    assert code == 0
    assert found["n2", "reach"]["state"] == "ok"
    (near.folder / "bad").write_text("n1\nn2 slots=many\n")
    result = near.call("doctor", "--hostfile", near.folder / "bad")
    assert result.returncode == 2
    assert "bad:2: 'many' is not a number of slots" in result.stderr


def test_doctor_finds_closed_ports_and_an_open_range(near):
    near.hosts.drop("n2", "-p", "tcp", "--syn", "--dport", "5011:65535")
    try:
        found, code = near.doctor("--hosts", "n1,n2")
        assert code == 3
        assert found["n1", "to n2"]["state"] == "broken"
        assert "--ports" in found["n1", "to n2"]["fix"]
        assert found["n2", "to n1"]["state"] == "ok"
        found, code = near.doctor("--hosts", "n1,n2", "--ports", "5000-5010")
        assert code == 0, found
    finally:
        near.hosts.drop_nothing("n2")


CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec* at) {
  int (*real)(clockid_t, struct timespec*) = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, at);
  if (id == CLOCK_REALTIME) at->tv_sec += 3600;
  return result;
}
"""


def test_doctor_works_with_a_clock_that_is_off(near):
    (near.hosts.shared / "clock.c").write_text(CLOCK)
    library = near.hosts.shared / "clock.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, near.hosts.shared / "clock.c"], check=True
    )
    near.hosts.run("n1", f"echo export LD_PRELOAD={library} > ~/.bashrc")
    try:
        found, code = near.doctor("--hosts", "n1,n2")
    finally:
        near.hosts.run("n1", "rm ~/.bashrc")
    assert code == 0
    assert found["n1", "clock"]["state"] == "lacking"
    assert "1h" in found["n1", "clock"]["detail"]
    assert "set-ntp" in found["n1", "clock"]["fix"]
    assert found["n2", "clock"]["state"] == "ok"


def test_doctor_misses_shared_memory(near):
    near.hosts.run("n1", "umount /dev/shm && mount -t tmpfs -o ro none /dev/shm")
    try:
        found, code = near.doctor("--hosts", "n1")
    finally:
        near.hosts.run("n1", "umount /dev/shm && mount -t tmpfs shm /dev/shm")
    assert code == 0
    assert found["n1", "/dev/shm"]["state"] == "lacking"


def test_one_bad_host_does_not_hide_the_others(near):
    found, code = near.doctor("--hosts", "n1,no-such-host.invalid,n2")
    assert code == 3
    assert found["n1", "to n2"]["state"] == "ok"
    assert found["no-such-host.invalid", "reach"]["state"] == "broken"
