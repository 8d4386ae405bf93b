"""Hosts for tests, all on this machine: each is a network, PID, mount and
hostname namespace behind a bridge, with a real sshd, a private /tmp, /dev/shm
and home, so that nothing of ours is there before it was sent.

    with Hosts(4) as hosts:
        hosts.ssh("n1", "hostname")
        subprocess.run([LOCKSTEP, ...], env={**env, **hosts.environment()})
        hosts.cut("n2")

Clients stand in this machine's own namespace and reach the hosts as n1, n2, ...
through `ssh -F hosts.ssh_config`. Names and subnets are unique, so several test
files may run at once. Everything is ended by process id, also after a set-up
that failed half way; what a killed test left is swept by the next one.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest
from testbed_limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Not below /tmp, which every host replaces by its own.
BASE = pathlib.Path("/var/tmp")
PREFIX = "lockstep-bed-"
# Loaded machines; nothing waits this long when all is well.
PATIENCE = 60

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="network namespaces need root"
)


def command(*words, check=True, **options):
    """A short command; its output. What it said is in the error."""
    options.setdefault("timeout", PATIENCE)
    done = subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        **options,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"{words}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def wait_for(condition, what, seconds=PATIENCE):
    """Looks until the condition holds; what it gave."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s: {what}")
        time.sleep(0.01)


def start_ticks(pid):
    """With the pid: one process for good."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rsplit(")", 1)[1].split()[19]


def first_child(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return None
    return int(text.split()[0]) if text else None


@contextlib.contextmanager
def machine_lock():
    """One set-up at a time: names and subnets are chosen by what is taken."""
    with open(BASE / f"{PREFIX}lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Bed:
    """A folder with a token, swept by a later bed when its owner was killed."""

    def __init__(self):
        self.token = uuid.uuid4().hex[:6]
        self.folder = BASE / f"{PREFIX}{self.token}"
        self.children = []

    def open(self):
        self.folder.mkdir(mode=0o755)
        owner = {"pid": os.getpid(), "start": start_ticks(os.getpid())}
        (self.folder / "owner.json").write_text(json.dumps(owner))

    def start(self, *words, log, **options):
        """A process that dies with us, its output in a file."""
        with open(self.folder / log, "ab") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )
        self.children.append(process)
        return process

    def log(self, name):
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def end(self, process, gently=0):
        """By its id: asked first when `gently` seconds are given."""
        if process.poll() is None and gently:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(gently)
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        if process in self.children:
            self.children.remove(process)

    def close(self):
        for process in reversed(list(self.children)):
            self.end(process)
        remove_folder(self.folder)


def unmount_below(folder):
    """What an engine of containers leaves mounted; in our own view only."""
    for line in reversed(pathlib.Path("/proc/mounts").read_text().splitlines()):
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            command("umount", "--lazy", place, check=False)


def remove_folder(folder):
    unmount_below(folder)

    def is_gone():
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    wait_for(is_gone, f"{folder} can be removed", 20)


def links():
    return {one["ifname"] for one in json.loads(command("ip", "-json", "link"))}


def namespaces():
    return {line.split()[0] for line in command("ip", "netns").splitlines()}


def remove_network(token):
    """Veths first, then the namespaces, then the bridge: each is deleted
    asynchronously by the kernel."""
    for name in sorted(links()):
        if name.startswith(f"lk{token}v"):
            command("ip", "link", "del", name, check=False)
    for name in sorted(namespaces()):
        if name.startswith(f"lk{token}n"):
            command("ip", "netns", "del", name, check=False)
    command("ip", "link", "del", f"lk{token}b", check=False)


def sweep():
    """Beds whose test was killed: their processes died with it."""
    for folder in BASE.glob(f"{PREFIX}*/"):
        try:
            owner = json.loads((folder / "owner.json").read_text())
        except (OSError, ValueError):
            continue
        if start_ticks(owner["pid"]) != owner["start"]:
            token = folder.name.removeprefix(PREFIX)
            remove_network(token)
            Limits.sweep(token)
            unmount_below(folder)
            shutil.rmtree(folder, ignore_errors=True)


def free_subnet(token, prefix=24):
    """A network of 10.0.0.0/8 that no address and no route of this machine
    touches."""
    taken = []
    for link in json.loads(command("ip", "-json", "-4", "addr")):
        for address in link.get("addr_info", []):
            text = f"{address['local']}/{address['prefixlen']}"
            taken.append(ipaddress.ip_network(text, strict=False))
    for route in json.loads(command("ip", "-json", "-4", "route")):
        if route["dst"] != "default":
            taken.append(ipaddress.ip_network(route["dst"], strict=False))
    all_of_them = 1 << (prefix - 8)
    for step in range(all_of_them):
        number = (int(token, 16) + step) % all_of_them
        start = ipaddress.ip_address("10.0.0.0") + (number << (32 - prefix))
        subnet = ipaddress.ip_network(f"{start}/{prefix}")
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise RuntimeError(f"no free /{prefix} in 10.0.0.0/8")


class Host:
    def __init__(self, bed, index, address=None):
        self.alias = f"n{index + 1}"  # as clients call it
        self.hostname = f"node{index + 1}"
        self.address = address or str(bed.subnet[11 + index])
        self.veth = f"lk{bed.token}v{index + 1}"
        self.namespace = f"lk{bed.token}n{index + 1}"
        self.folder = bed.folder / self.alias
        self.home = self.folder / "home"
        self.tmp = self.folder / "tmp"
        self.process = None  # unshare, whose child is the host's process 1
        self.init = None  # that child's pid, seen from here


class Hosts(Bed):
    """`etc_hosts`: extra lines of /etc/hosts by host, {"n1": "10.0.0.9 other"}."""

    prefix = 24  # of the subnet

    def __init__(self, count=4, etc_hosts=None):
        super().__init__()
        self.count = count
        self.etc_hosts = etc_hosts or {}
        self.hosts = {}
        self.subnet = None
        self.limits = Limits(self.token)
        self.bridge = f"lk{self.token}b"
        self.shared = self.folder / "shared"  # the same on all hosts and here
        self.ssh_config = self.folder / "ssh_config"
        self.known_hosts = self.folder / "known_hosts"
        self.key = self.folder / "key"

    def __enter__(self):
        try:
            with machine_lock():
                sweep()
                self.open()
                self.make_bridge()
            self.make_keys()
            for index in range(self.count):
                host = Host(self, index)
                self.hosts[host.alias] = host
            self.write_ssh_config()
            for host in self.hosts.values():
                self.plug(host)
                self.boot(host)
            for host in self.hosts.values():
                self.wait_until_up(host)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        try:
            for host in self.hosts.values():
                self.halt(host)
            for process in reversed(list(self.children)):
                self.end(process)
        finally:
            remove_network(self.token)
            self.limits.remove()
            remove_folder(self.folder)

    # What clients use.

    @property
    def names(self):
        return list(self.hosts)

    def environment(self):
        """How lockstep's ssh finds the hosts."""
        return {"LOCKSTEP_SSH_OPTIONS": f"-F {self.ssh_config}"}

    def address(self, alias):
        return self.hosts[alias].address

    @property
    def own_address(self):
        """Of this machine, as the hosts see it."""
        return str(self.subnet[1])

    def ssh(self, alias, words, check=True, **options):
        """Through the real sshd; its output."""
        return command(
            "ssh", "-F", self.ssh_config, alias, words, check=check, **options
        )

    def run(self, alias, words, check=True, **options):
        """In the host, without ssh, also when it is cut off; its output."""
        return command(*self.inside(alias), "bash", "-c", words, check=check, **options)

    def popen(self, alias, words, log, **options):
        """A process of the host: it dies with the host, and with the test."""
        enter = [*self.inside(alias), "setpriv", "--pdeathsig", "KILL"]
        return self.start(*enter, "bash", "-c", words, log=log, **options)

    def inside(self, alias):
        host = self.hosts[alias]
        home = f"HOME={home_folder()}"
        enter = ["nsenter", f"--target={host.init}", "--net", "--uts", "--mount"]
        return [*enter, "--pid", "--wd=/", "env", home]

    # What may happen to a host.

    def cut(self, alias):
        """Off the network; its processes go on."""
        command("ip", "link", "set", self.hosts[alias].veth, "down")

    def restore(self, alias):
        command("ip", "link", "set", self.hosts[alias].veth, "up")

    def power_off(self, alias):
        """Nobody hears of it: the link goes first, then all processes."""
        self.cut(alias)
        self.halt(self.hosts[alias])

    def halt(self, host):
        """Process 1 first: with it all others go, and its parent reaps it."""
        if host.process is None:
            return
        init = host.init or first_child(host.process.pid)
        host.init = None
        if init and host.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                host.process.wait(20)
        self.end(host.process)

    def power_on(self, alias):
        """After power_off: files are still there, but for /dev/shm."""
        self.restore(alias)
        self.boot(self.hosts[alias])
        self.wait_until_up(self.hosts[alias])

    def shape(self, alias, rate):
        """Bandwidth to and from the host, as in "100mbit"; None: free again."""
        host = self.hosts[alias]
        inner = ["ip", "netns", "exec", host.namespace, "tc"]
        for tc, device in ((["tc"], host.veth), (inner, "eth0")):
            command(*tc, "qdisc", "del", "dev", device, "root", check=False)
            if rate is not None:
                words = ["qdisc", "add", "dev", device, "root", "tbf", "rate", rate]
                command(*tc, *words, "burst", "64kb", "latency", "50ms")

    def drop(self, alias, *rule, chain="INPUT"):
        """Packets that match are lost in the host's own namespace: a one-way
        cut is `drop("n1", "-s", hosts.address("n2"))`, a closed port
        `drop("n1", "-p", "tcp", "--dport", "4000:5000")`."""
        self.iptables(alias, "-A", chain, *rule, "-j", "DROP")

    def drop_nothing(self, alias):
        self.iptables(alias, "-F")

    def iptables(self, alias, *words):
        namespace = self.hosts[alias].namespace
        command("ip", "netns", "exec", namespace, "iptables", "-w", *words)

    def limit_cpu(self, alias, share):
        """The host's processes, also later ones, get this share of one core."""
        self.limits.cpu(alias, share, lambda: self.pids(alias))

    def limit_memory(self, alias, number_of_bytes):
        self.limits.memory(alias, number_of_bytes, lambda: self.pids(alias))

    # What runs there.

    def pids(self, alias):
        """All processes of the host, seen from here."""
        init = self.hosts[alias].init
        if init is None:
            return []
        try:
            own = os.readlink(f"/proc/{init}/ns/pid")
        except OSError:
            return []
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{entry}/ns/pid") == own:
                        found.append(int(entry))
        return found

    def processes(self, alias, marker):
        """[(pid, command line)] of living processes whose command line or
        environment holds the marker."""
        found = []
        for pid in self.pids(alias):
            folder = pathlib.Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes()
                hay = line + b"\0" + (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if marker.encode() in hay and state != "Z":
                    text = line.replace(b"\0", b" ").decode(errors="replace")
                    found.append((pid, text.strip()))
        return found

    # Set-up.

    def make_bridge(self):
        self.subnet = free_subnet(self.token, self.prefix)
        command("ip", "link", "add", self.bridge, "type", "bridge")
        address = f"{self.subnet[1]}/{self.subnet.prefixlen}"
        command("ip", "addr", "add", address, "dev", self.bridge)
        command("ip", "link", "set", self.bridge, "up")

    def make_keys(self):
        for name in ("key", "host_key"):
            path = self.folder / name
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
        public = (self.folder / "key.pub").read_text()
        (self.folder / "authorized_keys").write_text(public)
        self.shared.mkdir()

    def write_ssh_config(self):
        host_key = (self.folder / "host_key.pub").read_text().split()[:2]
        lines, known = [], []
        for host in self.hosts.values():
            lines.append(f"Host {host.alias}\n  HostName {host.address}\n")
            known.append(f"{host.address} {' '.join(host_key)}\n")
        lines.append(
            f"Host *\n  User {pwd.getpwuid(os.geteuid()).pw_name}\n"
            f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.known_hosts}\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 20\n"
        )
        self.known_hosts.write_text("".join(known))
        self.ssh_config.write_text("".join(lines))

    def plug(self, host):
        for folder in (host.folder, host.home, host.tmp):
            folder.mkdir()
        host.tmp.chmod(0o1777)
        prefix = self.subnet.prefixlen
        command("ip", "netns", "add", host.namespace)
        words = ["ip", "link", "add", host.veth, "type", "veth", "peer"]
        command(*words, "name", "eth0", "netns", host.namespace)
        command("ip", "link", "set", host.veth, "master", self.bridge, "up")
        inner = f"addr add {host.address}/{prefix} dev eth0\n"
        inner += "link set eth0 up\nlink set lo up\n"
        batch = host.folder / "network"
        batch.write_text(inner)
        command("ip", "-n", host.namespace, "-batch", batch)
        names = "127.0.0.1 localhost\n::1 localhost\n"
        for other in self.hosts.values():
            names += f"{other.address} {other.hostname}\n"
        names += self.etc_hosts.get(host.alias, "") + "\n"
        (host.folder / "hosts").write_text(names)
        (host.folder / "sshd_config").write_text(
            f"ListenAddress {host.address}\nHostKey {self.folder}/host_key\n"
            f"PidFile {host.folder}/sshd.pid\n"
            f"AuthorizedKeysFile {self.folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nUseDNS no\n"
            "MaxStartups 200\nMaxSessions 200\nPrintMotd no\nPrintLastLog no\n"
            "PasswordAuthentication no\nSubsystem sftp internal-sftp\n"
        )

    def boot(self, host):
        home = home_folder()
        lines = ["set -e", f"hostname {host.hostname}", "mount -t proc proc /proc"]
        lines.append("mount -t tmpfs shm /dev/shm")
        lines.append("mkdir -p /run/sshd && chmod 755 /run/sshd")
        lines.append(f"mount --bind {host.folder}/hosts /etc/hosts")
        # The tests' own files and their Python stay in sight.
        kept = {ROOT, *(pathlib.Path(p) for p in (sys.prefix, sys.base_prefix))}
        for folder in sorted({path.resolve() for path in kept}):
            for place, private in ((home, host.home), ("/tmp", host.tmp)):
                if folder.is_relative_to(place):
                    inside = private / folder.relative_to(place)
                    lines.append(f"mkdir -p {inside} && mount --rbind {folder} {inside}")
        lines.append(f"mount --rbind {host.home} {home}")
        lines.append(f"mount --rbind {host.tmp} /tmp")
        lines.extend(self.more_boot_lines(host))
        lines.append("cd /")
        lines.append(f"exec /usr/sbin/sshd -D -e -f {host.folder}/sshd_config")
        host.process = self.start(
            *("nsenter", f"--net=/var/run/netns/{host.namespace}"),
            *("unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child"),
            *("bash", "-c", "\n".join(lines)),
            log=f"{host.alias}/sshd.log",
            # As a machine that was just switched on: nothing of the test.
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def more_boot_lines(self, host):
        """What a kind of host does besides, before its sshd starts."""
        return []

    def wait_until_up(self, host):
        def init():
            assert host.process.poll() is None, self.log(f"{host.alias}/sshd.log")
            return first_child(host.process.pid)

        def answers():
            assert host.process.poll() is None, self.log(f"{host.alias}/sshd.log")
            with contextlib.suppress(OSError):
                with socket.create_connection((host.address, 22), 1):
                    return True

        host.init = wait_for(init, f"{host.alias} has a process 1")
        wait_for(answers, f"sshd of {host.alias} answers")


def home_folder():
    """The home that ssh gives, whatever HOME says here."""
    return pathlib.Path(pwd.getpwuid(os.geteuid()).pw_dir)
