"""The benchmarks' own arithmetic: verdicts, lines, and numbers from a run."""

import json
import subprocess
import sys

import house
import pytest

sys.path.insert(0, str(house.ROOT / "bench"))
import measure  # noqa: E402
import run as bench_run  # noqa: E402


def write_run(folder, ends, totals, data=0.01):
    (folder / "timing.csv").write_text(
        "rank,step,epoch,samples,data,compute,communication,wait,total\n"
        + "".join(
            f"{rank},{step},0,16,{data},{total - data},0,0,{total}\n"
            for rank in (0, 1)
            for step, total in enumerate(totals, 1)
        )
    )
    events = [{"v": 1, "kind": "init", "time": 1, "rank": 0, "facts": {"device": "cpu"}}]
    for step, (end, total) in enumerate(zip(ends, totals), 1):
        for rank in (0, 1):
            events.append(
                {"v": 1, "kind": "iteration", "time": end, "rank": rank}
                | {"step": step, "samples": 16, "total": total}
            )
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))


def watched(curve=((100.0, 0.0), (200.0, 0.0))):
    watcher = measure.RankWatcher(1, "program")
    watcher.peak = 7
    watcher.cpu = {"10": list(curve)}
    return watcher


def test_throughput_leaves_out_the_warm_up(tmp_path):
    write_run(tmp_path, ends=[110, 111, 111.5, 112], totals=[9, 1, 0.5, 0.5])
    curve = [(100.0, 0.0), (110.5, 5.0), (111.5, 7.0), (113.0, 8.5)]
    result = measure.read_run(tmp_path, 100, watched(curve), warmup=2)
    # 1 s of wall clock, from 6.0 to 7.5 CPU seconds.
    assert result["samples_per_cpu_second"] == pytest.approx(2 * 16 * 2 / 1.5)
    assert result["samples_per_second"] == pytest.approx(2 * 16 * 2 / 1.0)
    assert result["startup"] == pytest.approx(110 - 9 - 100)
    assert result["step_seconds"] == pytest.approx(0.5)
    assert result["shares"]["data"] == pytest.approx(0.02)
    assert result["peak_bytes"] == 7
    assert result["detail"] == {"device": "cpu"}


def test_missing_iterations_are_an_error(tmp_path):
    write_run(tmp_path, ends=[1, 2, 3], totals=[1, 1, 1])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    kept = [line for line in lines if '"step": 2' not in line]
    (tmp_path / "events.jsonl").write_text("\n".join(kept) + "\n")
    with pytest.raises(measure.BenchError, match="lacks iterations"):
        measure.read_run(tmp_path, 0, watched(), warmup=1)


def test_too_few_steps_are_an_error(tmp_path):
    write_run(tmp_path, ends=[1, 2], totals=[1, 1])
    with pytest.raises(measure.BenchError, match="too few"):
        measure.read_run(tmp_path, 0, watched(), warmup=2)


@pytest.mark.parametrize(
    "ratio, required, verdict",
    [
        (1.2, ">=1.2", "ok"),
        (1.19, ">=1.2", "MISSED"),
        (0.2, "<=0.2", "ok"),
        (0.21, "<=0.2", "MISSED"),
    ],
)
def test_verdicts(ratio, required, verdict):
    assert measure.Table.judge(ratio, required) == verdict


def test_a_missed_line_fails_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "BUILD", tmp_path)
    table = measure.Table("x")
    table.add("fast", 3, 2, ">=1.2", "samples/s")
    table.add("shown", 1, 2)
    assert table.write() == 0
    table.add("slow", 2, 2, ">=1.2")
    assert table.write() == 1
    stored = json.loads((tmp_path / "bench" / "x.json").read_text())
    assert [line["verdict"] for line in stored["lines"]] == ["ok", "info", "MISSED"]
    printed = [bench_run.parse_line(t) for t in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in printed] == ["fast", "shown", "slow"]
    assert printed[0]["unit"] == "samples/s"
    assert printed[1]["required"] is None


def test_other_output_is_no_line():
    assert bench_run.parse_line("# round 1 ours: 60.1 samples/s, step 500 ms ok") is None
    assert bench_run.parse_line("") is None


def test_memory_is_of_the_ranks_not_of_the_launcher():
    watcher = measure.RankWatcher(1, "peer_dcgan.py")
    rank = b"python3\0-u\0bench/peer_dcgan.py\0--steps\0"
    launcher = b"python3\0-m\0torch.distributed.run\0bench/peer_dcgan.py\0"
    assert watcher.is_rank(rank)
    assert not watcher.is_rank(launcher)


@pytest.mark.parametrize("word, near", [("dcgam", "dcgan"), ("--quik", "--quick")])
def test_unknown_word_names_the_accepted_ones(word, near):
    result = subprocess.run(
        [sys.executable, house.ROOT / "bench" / "run.py", word],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert word in result.stderr and near in result.stderr
