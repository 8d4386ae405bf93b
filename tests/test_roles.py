"""`run: {head: ..., worker: ...}`: one program for rank 0, one for the rest."""

import pytest
from control import Control


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    yield made
    made.end_all()


def test_the_first_rank_is_the_head(control):
    control.script(
        "job.yaml",
        "procs_per_node: 3\nrun:\n  head: echo head $RANK\n"
        "  worker: [sh, -c, 'echo worker $RANK']\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr
    run = control.run()
    assert run.log(0) == "head 0\n"
    assert [run.log(rank) for rank in (1, 2)] == ["worker 1\n", "worker 2\n"]


def test_a_scheduler_and_its_workers(control):
    """They meet at MASTER_ADDR and MASTER_PORT."""
    control.script(
        "head.py",
        "import os, socket\n"
        "with socket.create_server(('', int(os.environ['MASTER_PORT']))) as server:\n"
        "    for _ in range(int(os.environ['WORLD_SIZE']) - 1):\n"
        "        one, _ = server.accept()\n"
        "        print('from', one.recv(100).decode(), flush=True)\n",
    )
    control.script(
        "worker.py",
        "import os, socket, time\n"
        "place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "for _ in range(600):\n"
        "    try:\n"
        "        with socket.create_connection(place) as one:\n"
        "            one.send(os.environ['RANK'].encode())\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n",
    )
    control.script(
        "job.yaml",
        "procs_per_node: 3\n"
        "run: {head: python3 head.py, worker: python3 worker.py}\n",
    )
    result = control.call("run", "job.yaml")
    assert result.returncode == 0, result.stderr
    assert sorted(control.run().log(0).split()) == ["1", "2", "from", "from"]


@pytest.mark.parametrize(
    "run, words",
    [
        ("{head: x}", "'worker' is missing"),
        ("{worker: x}", "'head' is missing"),
        ("{head: x, worker: y, master: z}", "run.master: accepted: head, worker"),
        ("{head: x, worker: {a: b}}", "run.worker must be a command"),
    ],
)
def test_wrong_roles(control, run, words):
    control.script("job.yaml", f"procs_per_node: 2\nrun: {run}\n")
    result = control.call("run", "job.yaml")
    assert result.returncode == 2
    assert "job.yaml:2" in result.stderr and words in result.stderr
    assert not control.runs()
