"""Every C++ file is formatted as .clang-format says."""

import subprocess

import house

COMMAND = [house.tool("clang-format"), "--dry-run", "--Werror"]


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], cwd=house.ROOT, capture_output=True, text=True, **options
    )


def test_sources_are_formatted():
    files = house.tracked("*.h", "*.cpp")
    assert len(files) > 20
    result = run(*files)
    assert result.returncode == 0, (
        "run 'clang-format -i' on these:\n" + result.stderr[-8000:]
    )


def test_check_finds_a_badly_formatted_file():
    result = run("--assume-filename=lockstep/x.cpp", input="int  main( ){return 0 ;}\n")
    assert result.returncode != 0
    assert "code should be clang-formatted" in result.stderr
