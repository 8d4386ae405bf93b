"""How tests start the control program and look for what it left behind."""

import json
import os
import pathlib
import signal
import subprocess
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
LOCKSTEP = str(BUILD / "bin" / "lockstep")

# Slow machines and sanitizers; nothing waits this long when all is well.
PATIENCE = 60


class Control:
    """lockstep in a folder of its own, its processes marked by a variable."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.marker = "LOCKSTEP_TEST_" + uuid.uuid4().hex
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LOCKSTEP_", "RANK", "WORLD_SIZE", "OMP_NUM"))
        }
        self.environment[self.marker] = "1"
        self.environment["HOME"] = str(self.folder)
        self.environment["XDG_CONFIG_HOME"] = str(self.folder / "config")
        self.runs_dir = self.folder / "runs"

    def command(self, *words):
        return [LOCKSTEP, *map(str, words)]

    def call(self, *words, timeout=PATIENCE, env=None, **options):
        return subprocess.run(
            self.command(*words),
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )

    def start(self, *words, env=None, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            text=True,
            **options,
        )

    def runs(self):
        found = sorted(self.runs_dir.iterdir()) if self.runs_dir.exists() else []
        return [Run(path) for path in found]

    def run(self):
        runs = self.runs()
        assert len(runs) == 1, runs
        return runs[0]

    def left(self):
        """Processes that carry our marker, whoever their parent is."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.marker.encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                    if state != "Z":
                        found.append((int(entry.name), (entry / "cmdline").read_bytes()))
            except OSError:
                pass
        return found

    def assert_nothing_left(self, seconds=20):
        wait_for(lambda: not self.left(), seconds, lambda: f"left: {self.left()}")

    def end_all(self):
        for pid, _ in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def script(self, name, text, mode=0o755):
        path = self.folder / name
        path.write_text(text)
        path.chmod(mode)
        return path


class Run:
    def __init__(self, path):
        self.path = path

    def log(self, rank):
        return (self.path / "ranks" / f"{rank}.log").read_text(errors="replace")

    def state(self):
        return json.loads((self.path / "state.json").read_text())

    def events(self):
        lines = (self.path / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def wait_for(condition, seconds=PATIENCE, message=lambda: "it did not happen"):
    """Looks until the condition holds; what it gave."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, message()
        time.sleep(0.01)


def keepers(control):
    return [pid for pid, line in control.left() if b"\0keeper\0" in line]


def without_leftovers(folder):
    """What a fixture yields from: a Control whose test leaves no process behind."""
    made = Control(folder)
    yield made
    left = made.left()
    made.end_all()
    assert not left, left
