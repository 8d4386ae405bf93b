"""lockstep is one file that runs wherever there is a libc of its age.

It is copied to machines that have nothing else, so what it links is a
contract: libc, libm and the loader.
"""

import os
import re
import shutil
import subprocess

import pytest

import control

ALLOWED = ("linux-vdso.so", "libc.so", "libm.so", "ld-linux", "/lib64/ld-linux")


def linked():
    text = subprocess.run(
        ["ldd", control.LOCKSTEP], capture_output=True, text=True, check=True
    ).stdout
    return [line.split()[0] for line in text.splitlines()]


@pytest.fixture(autouse=True)
def portable_build():
    if any("asan" in name or "tsan" in name for name in linked()):
        pytest.skip("sanitizer builds stay shared")


def test_links_only_what_every_system_has():
    names = linked()
    assert [n for n in names if not n.startswith(ALLOWED)] == []


def test_runs_from_an_empty_environment_and_another_place(tmp_path):
    copy = shutil.copy(control.LOCKSTEP, tmp_path / "lockstep")
    result = subprocess.run(
        [copy, "--version"], env={}, cwd="/", capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert re.match(r"lockstep \d+\.\d+", result.stdout)


def test_says_which_package_downloads_need(tmp_path):
    """A libcurl that cannot be loaded is named, with what installs it."""
    (tmp_path / "libcurl.so.4").write_text("not a library")
    result = subprocess.run(
        [control.LOCKSTEP, "data", "get", "mnist", "--to", tmp_path / "mnist"]
        + ["--from", "http://127.0.0.1:9"],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "libcurl.so.4" in result.stderr
    assert "apt-get install libcurl4" in result.stderr
