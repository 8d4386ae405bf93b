"""lockstep report: where each rank's time went, who is slowest, what it cost."""

import json

import pytest

from control import Control


@pytest.fixture
def control(tmp_path):
    return Control(tmp_path)


def write_run(folder, iterations, price=0.0):
    """iterations: {(rank, node): (data, compute, communication, wait)}."""
    (folder / "ranks").mkdir(parents=True)
    (folder / "job.yaml").write_text("run: x\n")
    events = []
    for (rank, node), parts in iterations.items():
        head = {"v": 1, "time": 1000.0, "rank": rank, "node": node}
        events.append(
            head | {"kind": "init", "program": "p", "world_size": len(iterations)}
        )
        for step in (1, 2):
            names = ("data", "compute", "communication", "wait")
            split = dict(zip(names, parts)) | {"total": sum(parts)}
            events.append(
                head
                | {"kind": "iteration", "time": 1000.0 + step, "step": step}
                | {"samples": 10}
                | split
            )
        events.append(head | {"kind": "exit", "time": 1003.0, "code": 0})
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "events.jsonl").write_text(text)
    state = {"id": folder.name, "state": "done", "started": 1000.0, "ended": 1036.0}
    state |= {"dollars_per_hour": price, "price_source": "--price", "exit_code": 0}
    (folder / "state.json").write_text(json.dumps(state))


TWO_NODES = {
    (0, "n1"): (0.01, 0.05, 0.02, 0.02),
    (1, "n1"): (0.01, 0.06, 0.02, 0.01),
    (2, "n2"): (0.0, 0.08, 0.02, 0.0),
}


def test_table_has_means_and_shares_by_rank(control):
    write_run(control.runs_dir / "one", TWO_NODES, price=2.0)
    result = control.call("report", "one")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    header = next(line for line in lines if line.lstrip().startswith("rank "))
    assert header.split()[4:8] == ["compute", "communication", "wait", "data"]
    table = lines[lines.index(header) + 1 :]
    assert "50 ms (50.0%)" in table[0] and "10 ms (10.0%)" in table[0]
    assert "n2" in table[2] and "80 ms (80.0%)" in table[2]
    facts = dict(line.split(None, 1) for line in lines if "  " in line.strip())
    assert facts["ranks"] == "3 on 2 nodes (n1, n2)"
    # The one that computes longest, against the median of the others.
    assert facts["slowest"].startswith("rank 2 on n2: computes 80 ms")
    assert "60 ms (1.33x)" in facts["slowest"]
    assert facts["speed"].startswith("300.0 samples/s")
    assert facts["cost"].startswith("$0.0200 at $2.00 an hour (--price)")


def test_json_has_the_same(control):
    write_run(control.runs_dir / "one", TWO_NODES, price=2.0)
    report = json.loads(control.call("report", "one", "--output", "json").stdout)
    assert report["nodes"] == ["n1", "n2"]
    assert report["slowest"] == {
        "rank": 2,
        "node": "n2",
        "compute": pytest.approx(0.08),
        "others": pytest.approx(0.06),
    }
    first = report["ranks"][0]
    assert first["mean"]["compute"] == pytest.approx(0.05)
    assert first["mean"]["total"] == pytest.approx(0.1)
    assert first["share"] == {
        "data": pytest.approx(0.1),
        "compute": pytest.approx(0.5),
        "communication": pytest.approx(0.2),
        "wait": pytest.approx(0.2),
    }
    assert report["cost"] == pytest.approx(0.02)
    assert report["samples_per_second"] == pytest.approx(300)


def test_one_rank_and_no_price(control):
    write_run(control.runs_dir / "one", {(0, "n1"): (0, 0.1, 0, 0)})
    result = control.call("report", "one")
    assert "slowest" not in result.stdout and "cost" not in result.stdout
    report = json.loads(control.call("report", "one", "--output", "json").stdout)
    assert report["slowest"] is None and report["cost"] is None


def test_programs_without_a_split_are_told_by_their_time(control):
    write_run(
        control.runs_dir / "one",
        {(0, "n1"): (0, 0.1, 0, 0), (1, "n1"): (0, 0.2, 0, 0)},
    )
    result = control.call("report", "one")
    assert "rank 1 on n1: takes 200 ms an iteration" in result.stdout


def test_a_host_of_two_names_is_one_node(control):
    """Ranks write their host name, the launcher what the user called it."""
    folder = control.runs_dir / "one"
    write_run(folder, {(0, "node1"): (0, 0.1, 0, 0), (1, "node2"): (0, 0.1, 0, 0)})
    text = (folder / "events.jsonl").read_text()
    lines = []
    for line in text.splitlines():
        event = json.loads(line)
        if event["kind"] == "exit":
            event["node"] = f"n{event['rank'] + 1}"
        lines.append(json.dumps(event) + "\n")
    (folder / "events.jsonl").write_text("".join(lines))
    report = json.loads(control.call("report", "one", "--output", "json").stdout)
    assert report["nodes"] == ["node1", "node2"]
    assert [row["node"] for row in report["ranks"]] == ["node1", "node2"]
