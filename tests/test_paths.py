"""No file of the repository names a folder of one person's machine, and none of
the tests is left out of `make test`."""

import re

import house

# In pieces, so that this file does not find itself.
PLACES = ["/wor" + "k/", "/tm" + "p/build", "/home/[a-z]", "/ro" + "ot/", "/Use" + "rs/"]
ABSOLUTE = re.compile(
    r"(?<![\w.$}\-])(" + "|".join(PLACES) + r")|(?<!\w)\.\./sha" + "red"
)
WORDS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
BINARY = (".png", ".jpg", ".jpeg", ".gz", ".pt", ".npz", ".safetensors", ".bin")
# Inputs of the fuzzers are bytes, not prose.
SKIPPED = ("tests/fuzz/corpus/",)


def problems(name, text):
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if ABSOLUTE.search(line):
            found.append(f"{name}:{number}: a path of one machine: {line.strip()[:90]}")
        if WORDS.search(line):
            found.append(f"{name}:{number}: unfinished work: {line.strip()[:90]}")
    return found


def test_no_machine_paths_and_no_unfinished_work():
    found = []
    names = house.tracked()
    assert len(names) > 50
    for name in names:
        if name.endswith(BINARY) or name.startswith(SKIPPED):
            continue
        text = (house.ROOT / name).read_text(errors="replace")
        found += problems(name, text)
    assert not found, "\n" + "\n".join(found)


def test_every_test_file_is_run():
    listed = (house.ROOT / "tests" / "CMakeLists.txt").read_text()
    names = house.tracked("tests/test_*.py")
    assert len(names) > 50
    assert not [name for name in names if f"lockstep_pytest(FILE {name}" not in listed]


def test_text_is_ascii():
    found = []
    for name in house.tracked("*.h", "*.cpp", "*.cu", "*.py", "*.cmake", "CMakeLists.txt"):
        data = (house.ROOT / name).read_bytes()
        for number, line in enumerate(data.splitlines(), 1):
            if any(byte > 127 for byte in line):
                found.append(f"{name}:{number}: not ASCII")
    assert not found, "\n" + "\n".join(found)


def test_check_finds_what_it_looks_for():
    assert problems("x", "path = '/wor" + "k/main/x'")
    assert problems("x", "cmake -B /tm" + "p/build-a")
    assert problems("x", "see ../sha" + "red/notes")
    assert problems("x", "// TO" + "DO: later")
    assert not problems("x", "/usr/lib, $HOME/wor" + "k/x and a network/bridge")
