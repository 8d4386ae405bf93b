"""Names are as .clang-tidy says, in every source of the compile database.

A file that passed is remembered under the build folder by a hash of all that
the verdict depends on, so a second run only looks at what changed. Reading
headers is most of the work, so neighbours are read together first; only where
that says anything at all is each looked at alone.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest

import house

TIDY = house.tool("clang-tidy")
INCLUDE = re.compile(r'^\s*#\s*include\s*"(lockstep/[^"]+)"', re.MULTILINE)
# Flags that only GCC knows, and its precompiled header.
GCC_ONLY = {"-fpch-preprocess", "-Winvalid-pch", "-Wno-psabi"}
WITH_VALUE = {"-o", "-include", "-MF", "-MT", "-MQ"}
JOBS = 2
TOGETHER = 8  # sources


def flags_of(command):
    """The arguments of a compile command that clang understands."""
    words = shlex.split(command)
    while words and not re.search(r"(c\+\+|g\+\+|cc|gcc|clang\+\+)(-\d+)?$", words[0]):
        words.pop(0)  # env, ccache
    flags = []
    arguments = iter(words[1:])
    for word in arguments:
        if word in WITH_VALUE:
            next(arguments)
        elif word == "-c":
            next(arguments)  # the source
        elif word not in GCC_ONLY and not word.startswith(("-O", "-g", "-fsanitize")):
            flags.append(word)
    return flags


def sources(build):
    """Tracked sources of the compile database with their flags."""
    entries = json.loads((build / "compile_commands.json").read_text())
    known = set(house.tracked("*.cpp"))
    found = {}
    for entry in entries:
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(house.ROOT):
            name = str(path.relative_to(house.ROOT))
            if name in known:
                found.setdefault(name, flags_of(entry["command"]))
    return found


def headers_of(name, seen):
    """All lockstep headers that a file includes, also through others."""
    text = (house.ROOT / name).read_text(errors="replace")
    for header in INCLUDE.findall(text):
        if header not in seen and (house.ROOT / header).is_file():
            seen.add(header)
            headers_of(header, seen)
    return seen


def digest(name, flags, version):
    state = hashlib.sha256()
    state.update(version)
    state.update("\0".join(flags).encode())
    for part in [".clang-tidy", name, *sorted(headers_of(name, set()))]:
        state.update(b"\0" + part.encode() + b"\0")
        state.update((house.ROOT / part).read_bytes())
    return state.hexdigest()


def said_of(name, flags):
    """The exit code of clang-tidy, and its words."""
    more = ["-Wno-everything", "-ferror-limit=0"]
    command = [TIDY, "--quiet", f"--config-file={house.ROOT / '.clang-tidy'}",
               str(name), "--", *flags, *more]
    result = subprocess.run(command, cwd=house.ROOT, capture_output=True, text=True)
    return result.returncode, result.stdout + result.stderr


def tidy(name, flags):
    """Empty when all is well, else what clang-tidy said.

    GCC is the compiler, and has the last word on what compiles: of clang's
    own errors only those count that would leave a part of the file unread.
    """
    code, said = said_of(name, flags)
    serious = re.search(
        r"\[readability-identifier-naming|fatal error:|file not found", said
    )
    if code == 0 or ("error:" in said and not serious):
        return ""
    return said


def tidy_all(names, flags, folder):
    """What clang-tidy said of each that is not as it should be."""
    if len(names) > 1:
        whole = folder / (hashlib.sha256("\0".join(names).encode()).hexdigest() + ".cpp")
        whole.write_text("".join(f'#include "{house.ROOT / name}"\n' for name in names))
        code, said = said_of(whole, flags)
        if code == 0 and "error:" not in said:
            return {}
    found = {name: tidy(name, flags) for name in names}
    return {name: said for name, said in found.items() if said}


def neighbours(files):
    """Groups of sources of one folder with the same flags."""
    groups = {}
    for name, flags in sorted(files.items()):
        groups.setdefault((pathlib.Path(name).parent, tuple(flags)), []).append(name)
    return [
        (names[at : at + TOGETHER], list(flags))
        for (_, flags), names in groups.items()
        for at in range(0, len(names), TOGETHER)
    ]


def test_names_are_as_agreed(tmp_path):
    if "LOCKSTEP_BUILD" not in os.environ:
        pytest.skip("LOCKSTEP_BUILD names no build folder")
    build = pathlib.Path(os.environ["LOCKSTEP_BUILD"])
    version = subprocess.run(
        [TIDY, "--version"], check=True, capture_output=True
    ).stdout
    cache = build / "naming"
    cache.mkdir(exist_ok=True)
    files = sources(build)
    assert len(files) > 10
    marks = {name: cache / digest(name, flags, version) for name, flags in files.items()}
    left = {name: flags for name, flags in files.items() if not marks[name].exists()}

    def check(group):
        names, flags = group
        found = tidy_all(names, flags, tmp_path)
        for name in names:
            if name not in found:
                marks[name].write_text(name)
        return found

    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        found = [said for part in pool.map(check, neighbours(left)) for said in part.values()]
    assert not found, "\n" + "\n".join(found)


def test_neighbours_are_read_together_and_named_alone(tmp_path):
    texts = {"a.cpp": "int good_name = 0;", "b.cpp": "int BadName = 0;"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n")
    names = [str(tmp_path / name) for name in texts]
    found = tidy_all(names, ["-std=gnu++23"], tmp_path)
    assert list(found) == [names[1]] and "'BadName'" in found[names[1]]


@pytest.mark.parametrize(
    "code, name",
    [
        ("void BadFunction();", "BadFunction"),
        ("int BadVariable = 0;", "BadVariable"),
        ("constexpr int limit = 1;", "limit"),
        ("class bad_class {};", "bad_class"),
        ("class A { int member; };", "member"),
        ("enum class E { value };", "value"),
        ("#define lower_macro 1", "lower_macro"),
    ],
)
def test_check_finds_a_bad_name(tmp_path, code, name):
    source = tmp_path / "x.cpp"
    source.write_text(code + "\n")
    said = tidy(source, ["-std=gnu++23"])
    assert f"'{name}'" in said


def test_flags_leave_gcc_behind():
    command = "/usr/bin/env A=1 /usr/bin/ccache /usr/bin/c++ -DX -Ia -O3 -fpch-preprocess -include a.hxx -o x.o -c x.cpp"
    assert flags_of(command) == ["-DX", "-Ia"]
