"""Real programs on two hosts: PyTorch DDP and Lightning scripts as they are,
and a sweep over nodes."""

import csv
import json
import os
import shutil
import sys

import pytest

import testbed
from control import ROOT, Control
from test_frameworks import check_group, said

pytestmark = testbed.needs_root
PATIENCE = 240


@pytest.fixture(scope="module")
def hosts():
    with testbed.Hosts(2) as bed:
        yield bed


@pytest.fixture
def control(tmp_path, hosts):
    one = Control(tmp_path)
    one.environment.update(hosts.environment())
    one.environment["PYTHONDONTWRITEBYTECODE"] = "1"
    (tmp_path / "work").mkdir()
    yield one
    one.end_all()


def run_script(control, name, *options):
    """The script travels with the work folder; the hosts have the packages."""
    shutil.copy(ROOT / "examples" / name, control.folder / "work")
    result = control.call(
        *("run", "--hosts", "n1,n2", "--workdir", "work", "--output", "json"),
        *(*options, "--", sys.executable, name),
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), control.run()


def nodes_of(run, ranks):
    return [int(match[3]) for _, match in sorted(said(run, ranks).items())]


def test_plain_ddp_on_two_hosts(control):
    pytest.importorskip("torch")
    report, run = run_script(control, "ddp.py", "--procs", "2")
    check_group(run, 4)
    assert nodes_of(run, 4) == [0, 0, 1, 1]
    assert report["world_size"] == 4


def test_lightning_on_two_hosts(control):
    pytest.importorskip("lightning")
    report, run = run_script(control, "lightning_ddp.py", "--procs", "1")
    check_group(run, 2)
    assert nodes_of(run, 2) == [0, 1]
    # The callback came with lockstep; events of both hosts are here.
    assert report["steps"] == 16 and report["samples"] == 512
    assert report["nodes"] == ["node1", "node2"]
    assert {row["iterations"] for row in report["ranks"]} == {16}


def test_sweep_over_nodes(control):
    (control.folder / "work" / "program").write_text(
        "#!/bin/bash\n"
        'echo "{\\"v\\":1,\\"kind\\":\\"epoch\\",\\"time\\":$(date +%s),\\"rank\\":$RANK,'
        '\\"node\\":\\"n\\",\\"epoch\\":0,\\"steps\\":1,\\"samples\\":1,'
        '\\"seconds\\":0.$((RANK + 1))}" >>"$LOCKSTEP_EVENTS"\n'
    )
    os.chmod(control.folder / "work" / "program", 0o755)
    control.script("job.yaml", "name: tiny\nrun: ./program\nworkdir: work\n")
    result = control.call(
        *("sweep", "job.yaml", "--hosts", "n1,n2", "--nodes", "1,2", "--procs", "1,2"),
        *("--repeat", "1", "--out", "out", "--output", "json"),
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stderr
    table = json.loads(result.stdout)["configurations"]
    assert [(one["nodes"], one["procs"]) for one in table] == [
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
    ]
    assert all(one["repeats"] == 1 for one in table)
    with open(control.folder / "out" / "nnode-2_nproc-2_batch_size-0.csv") as file:
        (row,) = csv.DictReader(file)
    # By rank, whatever host told it first.
    assert [row[f"t{rank}"] for rank in range(4)] == ["0.1", "0.2", "0.3", "0.4"]


def test_a_killed_sweep_ends_its_run_when_it_goes_on(control, hosts):
    """A run on other machines outlives the sweep that was killed; the next one
    stops it before it starts its own."""
    marker = "sleeper-" + control.marker
    (control.folder / "work" / "program").write_text(
        f"#!/bin/bash\n[ -e wait ] || exit 0\nexec -a {marker} sleep 1000\n"
    )
    os.chmod(control.folder / "work" / "program", 0o755)
    (control.folder / "work" / "wait").touch()
    control.script("job.yaml", "name: tiny\nrun: ./program\nworkdir: work\n")
    words = ("sweep", "job.yaml", "--hosts", "n1", "--repeat", "1", "--out", "out")
    words += ("--grace", "5s")
    process = control.start(*words)

    def sleeping():
        return marker in hosts.run("n1", "cat /proc/[0-9]*/cmdline", check=False)

    testbed.wait_for(sleeping, "the rank sleeps on n1", PATIENCE)
    process.kill()
    process.communicate(timeout=PATIENCE)
    (control.folder / "work" / "wait").unlink()
    result = control.call(*words, "--output", "json", timeout=PATIENCE)
    assert result.returncode == 0, result.stderr
    (one,) = json.loads(result.stdout)["configurations"]
    assert one["repeats"] == 1 and one["failures"] == 0
    assert not sleeping()
    control.assert_nothing_left()
