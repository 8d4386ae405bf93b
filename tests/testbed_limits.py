"""Speed and memory of a test host: cgroups of version 1 or 2, whichever has
the controller."""

import contextlib
import os
import pathlib
import time

ROOT = pathlib.Path("/sys/fs/cgroup")


class Limits:
    """Groups are made when they are first needed and removed at the end."""

    def __init__(self, token):
        self.token = token

    def cpu(self, name, share, pids):
        """`pids` is called until all that it gives are inside."""
        # A short period: at the default 100 ms the stalls swamp short steps.
        # And the greatest weight: the quota is the speed, whatever else runs.
        period = 10000
        quota = max(1000, int(share * period))
        version, folder = self.group("cpu", name)
        if version == 1:
            (folder / "cpu.cfs_period_us").write_text(str(period))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
            (folder / "cpu.shares").write_text("262144")
        else:
            (folder / "cpu.max").write_text(f"{quota} {period}")
            (folder / "cpu.weight").write_text("10000")
        self.move(folder, pids)

    def memory(self, name, number_of_bytes, pids):
        version, folder = self.group("memory", name)
        if version == 1:
            (folder / "memory.limit_in_bytes").write_text(str(number_of_bytes))
            # Swap, where it is counted, must not be the way out.
            with contextlib.suppress(OSError):
                path = folder / "memory.memsw.limit_in_bytes"
                path.write_text(str(number_of_bytes))
        else:
            (folder / "memory.max").write_text(str(number_of_bytes))
            with contextlib.suppress(OSError):
                (folder / "memory.swap.max").write_text("0")
        self.move(folder, pids)

    def group(self, controller, name):
        """(version, folder) of the host's group."""
        own = f"lockstep-bed-{self.token}-{name}"
        first = ROOT / controller
        if first.is_dir():
            folder = first / own
            folder.mkdir(exist_ok=True)
            return 1, folder
        available = (ROOT / "cgroup.controllers").read_text().split()
        if controller not in available:
            raise RuntimeError(f"no cgroup controller '{controller}' here")
        (ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
        folder = ROOT / own
        folder.mkdir(exist_ok=True)
        return 2, folder

    @staticmethod
    def move(folder, pids):
        procs = folder / "cgroup.procs"
        while True:
            inside = set(procs.read_text().split())
            outside = [pid for pid in pids() if str(pid) not in inside]
            if not outside:
                return
            for pid in outside:
                with contextlib.suppress(ProcessLookupError):
                    procs.write_text(str(pid))

    def remove(self):
        self.sweep(self.token)

    @staticmethod
    def sweep(token):
        """Groups of a bed whose processes have ended."""
        pattern = f"lockstep-bed-{token}-*"
        folders = [*ROOT.glob(pattern), *ROOT.glob(f"*/{pattern}")]
        for folder in folders:
            for _ in range(500):
                try:
                    os.rmdir(folder)
                    break
                except FileNotFoundError:
                    break
                except OSError:  # the last of its processes is just going
                    time.sleep(0.01)
