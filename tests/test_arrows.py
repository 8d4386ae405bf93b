"""Modules include only what docs/architecture.md allows."""

import pathlib
import re

import pytest

import house

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|torchvision)/")
SOURCES = ("*.h", "*.cpp", "*.cu", "*.cuh", "*.hpp", "*.cc")


class Architecture:
    """The table of modules: arrows, and who may include LibTorch."""

    def __init__(self, text):
        self.arrows = {}
        self.torch = set()
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) != 6 or cells[3] not in ("yes", "no"):
                continue
            self.arrows[cells[1]] = set(cells[2].split())
            if cells[3] == "yes":
                self.torch.add(cells[1])

    def reach(self, module, path=()):
        """Everything that the module's arrows reach, itself included."""
        if module in path:
            cycle = " -> ".join([*path, module])
            raise ValueError(f"the table has a cycle: {cycle}")
        reached = {module}
        for target in self.arrows[module]:
            reached |= self.reach(target, (*path, module))
        return reached


def module_of(name):
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "lockstep" and len(parts) > 2:
        return parts[1]
    if parts[0] == "apps" and len(parts) > 2:
        return "/".join(parts[:2])
    return None


def problems(sources, architecture):
    """`sources` maps a path to its text; one line for each broken rule."""
    found = []
    seen = {}  # module -> modules it includes
    for name, text in sorted(sources.items()):
        module = module_of(name)
        if module is None:
            continue  # bench, tests and cmake may include everything
        tops = {"apps/lockstep": {"commands"}, "apps/train": {"recipes"}}
        if module in tops:
            allowed = set().union(*(architecture.reach(t) for t in tops[module]))
        elif module in architecture.arrows:
            allowed = architecture.reach(module)
        else:
            found.append(f"{name}: module '{module}' is not in the table")
            continue
        may_torch = module in architecture.torch or module == "apps/train"
        for match in INCLUDE.finditer(text):
            path = match.group(2)
            line = text.count("\n", 0, match.start(1)) + 1
            where = f"{name}:{line}"
            if path.startswith("lockstep/"):
                target = module_of(path)
                if target != module:
                    seen.setdefault(module, set()).add(target)
                if target not in allowed:
                    found.append(f"{where}: '{module}' must not include '{target}'")
            elif match.group(1) == '"' and not path.startswith("lockstep/"):
                found.append(f"{where}: '{path}' is not included from the root")
            if path.startswith("spdlog/") and name != "lockstep/base/log.cpp":
                found.append(f"{where}: spdlog belongs in lockstep/base/log.cpp only")
            if TORCH.match(path) and not may_torch:
                found.append(f"{where}: '{module}' must not include LibTorch")
    return found + cycles(seen)


def cycles(edges):
    """Includes between modules that lead back to where they began."""
    found = []
    for start in sorted(edges):
        stack = [(start, (start,))]
        visited = set()
        while stack:
            at, path = stack.pop()
            for target in edges.get(at, ()):
                # Told once, from its first module.
                if target == start and start == min(path):
                    found.append("include cycle: " + " -> ".join([*path, start]))
                elif target not in visited and target != start:
                    visited.add(target)
                    stack.append((target, (*path, target)))
    return found


@pytest.fixture(scope="module")
def architecture():
    return Architecture((house.ROOT / "docs/architecture.md").read_text())


def test_table_is_whole_and_acyclic(architecture):
    assert len(architecture.arrows) >= 20
    for module in architecture.arrows:
        architecture.reach(module)  # raises on a cycle or an unknown name


def test_includes_follow_the_arrows(architecture):
    sources = {
        name: (house.ROOT / name).read_text(errors="replace")
        for name in house.tracked(*SOURCES)
    }
    assert len(sources) > 20
    found = problems(sources, architecture)
    assert not found, "\n" + "\n".join(found)


# The check itself: each rule, broken on purpose.


def broken(architecture, name, text):
    return problems({name: text}, architecture)


@pytest.mark.parametrize(
    "name, include, message",
    [
        ("lockstep/base/x.h", '"lockstep/os/file.h"', "'base' must not include 'os'"),
        ("lockstep/config/x.cpp", '"lockstep/wire/event.h"', "must not include 'wire'"),
        ("lockstep/collective/x.h", '"lockstep/record/csv.h"', "must not include 'record'"),
        ("lockstep/launch/x.h", "<torch/torch.h>", "must not include LibTorch"),
        ("lockstep/collective/x.h", "<ATen/ATen.h>", "must not include LibTorch"),
        ("lockstep/os/x.cpp", "<spdlog/spdlog.h>", "spdlog belongs"),
        ("lockstep/os/x.cpp", '"file.h"', "not included from the root"),
        ("lockstep/misc/x.h", "<vector>", "'misc' is not in the table"),
        ("apps/lockstep/main.cpp", '"lockstep/train/loop.h"', "must not include 'train'"),
        ("apps/lockstep/main.cpp", "<torch/torch.h>", "must not include LibTorch"),
    ],
)
def test_finds_a_forbidden_include(architecture, name, include, message):
    found = broken(architecture, name, f"#pragma once\n# include {include}\n")
    assert len(found) == 1 and message in found[0], found
    assert "is not in the table" in found[0] or f"{name}:2:" in found[0]


def test_allows_what_arrows_reach(architecture):
    text = '#include "lockstep/base/result.h"\n#include <torch/torch.h>\n'
    assert not broken(architecture, "lockstep/train/x.cpp", text)
    assert not broken(architecture, "lockstep/base/log.cpp", "#include <spdlog/x.h>")
    assert not broken(architecture, "bench/x.cpp", '#include "lockstep/os/file.h"')


def test_finds_a_cycle():
    table = Architecture("| a | b | no | |\n| b | | no | |\n")
    sources = {
        "lockstep/a/x.h": '#include "lockstep/b/x.h"',
        "lockstep/b/x.h": '#include "lockstep/a/x.h"',
    }
    found = problems(sources, table)
    assert any("include cycle: a -> b -> a" in line for line in found), found
    with pytest.raises(ValueError, match="cycle"):
        Architecture("| a | b | no | |\n| b | a | no | |\n").reach("a")
