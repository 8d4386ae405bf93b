"""Engines of containers for tests: a dockerd of our own, podman with a store of
its own. Neither can pull: images are made from busybox, or built FROM those.

    with Docker() as docker:        # or Podman()
        docker.make_image("tools")
        subprocess.run([...], env={**os.environ, **docker.environment()})

    with Hosts(2) as hosts, Docker(hosts, "n1") as docker:   # on a host
        docker.environment()        # for whatever runs there
"""

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import tarfile

import pytest
from testbed import Bed, PATIENCE, command, machine_lock, sweep, wait_for

BUSYBOX = "/bin/busybox"

needs_docker = pytest.mark.skipif(
    shutil.which("dockerd") is None or os.geteuid() != 0,
    reason="dockerd is not installed, or not root",
)
needs_podman = pytest.mark.skipif(
    shutil.which("podman") is None or os.geteuid() != 0,
    reason="podman is not installed, or not root",
)


def busybox_image():
    """A root file system as tar: busybox under all its names."""
    applets = command(BUSYBOX, "--list").split()
    content = pathlib.Path(BUSYBOX).read_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(content), 0o755
        archive.addfile(entry, io.BytesIO(content))
        for name in applets:
            if name != "busybox":
                entry = tarfile.TarInfo(f"bin/{name}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(entry)
    return buffer.getvalue()


class Engine(Bed):
    """On this machine, or on a host of a test bed, in all its namespaces."""

    program = None

    def __init__(self, hosts=None, alias=None):
        super().__init__()
        self.hosts = hosts
        self.alias = alias

    def __enter__(self):
        try:
            with machine_lock():
                sweep()
                self.open()
            self.begin()
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        with contextlib.suppress(Exception):
            self.remove_containers()
        for process in reversed(list(self.children)):
            self.end(process, gently=15)
        self.close()

    def everything(self):
        return {**os.environ, **self.environment()}

    def inside(self, *words):
        """The words of a command where the engine is."""
        if self.hosts is None:
            return [str(word) for word in words]
        variables = [f"{name}={value}" for name, value in self.environment().items()]
        return [*self.hosts.inside(self.alias), *variables, *map(str, words)]

    def call(self, *words, **options):
        return command(
            *self.inside(self.program, *words), env=self.everything(), **options
        )

    def make_image(self, name):
        """busybox as an image; `sh`, `sleep`, `env` and the like are there."""
        done = subprocess.run(
            self.inside(self.program, "import", "-", name),
            input=busybox_image(),
            env=self.everything(),
            capture_output=True,
            timeout=PATIENCE,
        )
        if done.returncode != 0:
            raise RuntimeError(f"import of {name}: {done.stderr.decode()}")

    def containers(self, everything=False):
        """Names of those that run, or of all."""
        words = ["ps", "--format", "{{.Names}}"] + (["-a"] if everything else [])
        return self.call(*words).split()

    def images(self):
        return self.call("images", "-q", "--no-trunc").split()

    def remove_containers(self):
        names = self.containers(everything=True)
        if names:
            self.call("rm", "-f", *names, check=False)


class Docker(Engine):
    program = "docker"

    def environment(self):
        # Its own configuration folder: nothing of the user's is read.
        return {
            "DOCKER_HOST": f"unix://{self.folder}/docker.sock",
            "DOCKER_CONFIG": str(self.folder / "config"),
        }

    def begin(self):
        daemon = self.start(
            *self.inside("setpriv", "--pdeathsig", "KILL"),
            *("dockerd", "--data-root", self.folder / "data"),
            *("--exec-root", self.folder / "exec"),
            *("--pidfile", self.folder / "dockerd.pid"),
            *("-H", f"unix://{self.folder}/docker.sock"),
            *("--bridge=none", "--iptables=false", "--ip6tables=false"),
            log="dockerd.log",
        )

        def answers():
            assert daemon.poll() is None, self.log("dockerd.log")[-2000:]
            with contextlib.suppress(RuntimeError):
                return self.call("version", "-f", "{{.Server.Version}}")

        wait_for(answers, "dockerd answers")


class Podman(Engine):
    program = "podman"

    def environment(self):
        return {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }

    def begin(self):
        (self.folder / "containers.conf").write_text(
            "[containers]\n"
            'default_ulimits=["nofile=4096:4096","nproc=4096:4096"]\n'
            'netns="host"\n'
            "[engine]\n"
            'runtime="runc"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
            f'tmp_dir="{self.folder}/libpod"\n'
        )
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver="overlay"\nrunroot="{self.folder}/run"\n'
            f'graphroot="{self.folder}/store"\n'
        )
        (self.folder / "registries.conf").write_text("unqualified-search-registries=[]\n")
