"""What the house checks share: the root and the files that git tracks."""

import fnmatch
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


SKIPPED = {".git", ".venv", "node_modules", "runs", "__pycache__"}


def tracked(*patterns):
    """Files that git tracks; without git, all that are not build outputs."""
    result = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
    )
    if result.returncode == 0:
        names = filter(None, result.stdout.decode().split("\0"))
    else:
        names = walk(patterns or ("*",))
    return sorted(name for name in set(names) if (ROOT / name).is_file())


def walk(patterns):
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name not in SKIPPED and not name.startswith("build")
        ]
        for name in files:
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                yield os.path.relpath(os.path.join(folder, name), ROOT)


def tool(name):
    """A program of the Python environment that runs the tests."""
    return os.path.join(os.path.dirname(sys.executable), name)
