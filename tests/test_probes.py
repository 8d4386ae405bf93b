"""lockstep bench and plan on this machine: programs whose iterations are known,
phases, programs without events, bad input, the budget, Ctrl-C."""

import json
import pathlib
import signal
import statistics

import pytest

from control import Control, wait_for

# Iterations of known length by its own account: what they cost is not measured
# but told, so that a loaded machine changes nothing. --step S, --steps N,
# --late S: from step 9 on, --slower F: each by this factor, --odd N:WHAT: step
# N lasts null or a jump of the clock, --clock S: event times are off by it.
PROGRAM = r"""#!/usr/bin/env python3
import json, os, sys, time

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
step = float(options.get("--step", 0.1))
steps = int(options.get("--steps", 100000))
late = float(options.get("--late", step))
slower = float(options.get("--slower", 1))
samples = int(options.get("--samples", 16))
odd = dict([options["--odd"].split(":")] if "--odd" in options else [])
clock = float(options.get("--clock", 0))
with open(os.environ["LOCKSTEP_EVENTS"], "a") as file:
    def event(kind, **fields):
        head = {"v": 1, "kind": kind, "time": time.time() + clock, "rank": 0, "node": "n"}
        file.write(json.dumps({**head, **fields}) + "\n")
        file.flush()
    event("init", program="made", world_size=1, seconds=0.5,
          facts={"total_steps": str(options.get("--total", 1000))})
    for i in range(steps):
        total = (late if i >= 8 else step) * slower**i
        total = {"null": None, "jump": 1e9}.get(odd.get(str(i + 1)), total)
        event("iteration", step=i + 1, epoch=0, samples=samples, data=0,
              compute=total, communication=0, wait=0, total=total)
        time.sleep(0.01)
"""


@pytest.fixture
def control(tmp_path):
    one = Control(tmp_path)
    one.script("program", PROGRAM)
    yield one
    one.end_all()


def job(control, *words, text=""):
    line = " ".join(["./program", *map(str, words)])
    control.script("job.yaml", f"name: made\nrun: {line}\n{text}")


def bench(control, *words, code=0, **options):
    result = control.call(
        "bench", "job.yaml", *map(str, words), "--output", "json", timeout=120, **options
    )
    assert result.returncode == code, (result.returncode, result.stderr)
    return json.loads(result.stdout)


def totals(candidate):
    lines = open(candidate["events"]).read().splitlines()
    events = [json.loads(line) for line in lines]
    return [one["total"] for one in events if one["kind"] == "iteration"]


def test_figures_can_be_recomputed_from_the_files_it_names(control):
    job(control)
    result = bench(control, "--candidates", "local=0.36", "--explain", "--out", "out")
    (one,) = result["candidates"]
    seconds = totals(one)
    used = one["iteration"]["used"]
    assert 10 <= one["iteration"]["seen"] <= len(seconds)
    assert one["iteration"]["seconds"] == pytest.approx(0.1)
    assert statistics.mean(seconds[-used:]) == pytest.approx(0.1)
    assert one["samples_per_second"] == pytest.approx(160)
    # 3600 / (0.1 s x $0.36) iterations, 16 samples each.
    assert one["iterations_per_dollar"] == pytest.approx(100000)
    assert one["samples_per_dollar"] == pytest.approx(1600000)
    whole = one["whole"]["seconds"]["value"]
    around = one["launch_seconds"] + one["closing_seconds"] + one["end_seconds"]
    assert around < 5 and whole == pytest.approx(around + 0.5 + 1000 * 0.1, abs=0.01)
    assert one["whole"]["dollars"]["value"] == pytest.approx(whole * 0.36 / 3600, rel=0.02)
    assert "samples/$ = 100000 x 16 = 1.6e+06" in result["explain"]
    assert one["events"] in result["explain"]
    for name in ("bench.json", "bench.svg", "explain.txt"):
        assert (control.folder / "out" / name).stat().st_size > 100
    control.assert_nothing_left()


def test_the_table_ends_with_a_verdict(control):
    job(control)
    result = control.call("bench", "job.yaml", "--candidates", "local=0.36")
    assert result.returncode == 0, result.stderr
    assert "samples/$" in result.stdout
    assert "verdict    local alone was measured; the whole run takes" in result.stdout
    assert "costs $0.01" in result.stdout


def test_a_phase_that_begins_late_is_measured_anew(control):
    job(control, "--step", 0.1, "--late", 0.4)
    one = bench(control, "--candidates", "local=0.36", "--iterations", 40)["candidates"][0]
    assert one["iteration"]["seconds"] == pytest.approx(0.4)
    assert [round(p["median"], 3) for p in one["iteration"]["phases"]] == [0.1, 0.4]
    whole = one["whole"]["seconds"]["value"] - 0.5
    assert whole == pytest.approx(8 * 0.1 + 992 * 0.4, rel=0.01)
    assert any("last phase counts" in text for text in one["iteration"]["remarks"])


NATIVE = """name: native
train:
  recipe: vit
  model: {name: vit_tiny_patch16_224, patch: 8, dim: 24, depth: 2, heads: 3}
  data: {name: synthetic, image_size: 16, batch_size: 4, length: 40000, workers: 0}
  trainer: {max_epochs: 3}
envs: {OMP_NUM_THREADS: 1}
"""


def test_an_epochs_end_is_rehearsed_and_predicted(control):
    control.script("job.yaml", NATIVE)
    result = bench(control, "--candidates", "local=0.36", "--explain", "--procs", 1)
    (one,) = result["candidates"]
    (seen,) = one["epoch_ends"]
    events = [e for e in map(json.loads, open(one["events"])) if e["rank"] == 0]
    (saved,) = [e for e in events if e["kind"] == "checkpoint" and e["step"] == 8]
    (init,) = [e for e in events if e["kind"] == "init"]
    begun, ended = [e["time"] for e in events if e["kind"] == "phase"][1:3]
    # Eight batches of ten thousand were validated: it counts as all of them.
    assert float(init["facts"]["validation_part"]) == 0.0008
    assert seen == pytest.approx((ended - begun) / 0.0008 + saved["seconds"])
    # Three epochs of ten thousand steps.
    parts = [one["launch_seconds"], one["init_seconds"], 3 * seen]
    parts += [one["closing_seconds"], one["end_seconds"]]
    steps = one["whole"]["seconds"]["value"] - sum(parts)
    assert steps == pytest.approx(30000 * one["iteration"]["seconds"], rel=0.1)
    assert "3 x " in result["explain"] and "epoch's end (1 seen)" in result["explain"]
    # The plan knows the probe for one of this job, and its epochs' ends.
    (row,) = plan(control)["rows"]
    assert row["seconds"]["value"] == pytest.approx(one["whole"]["seconds"]["value"], rel=0.05)
    # Without a probe nothing is rehearsed.
    done = control.call("run", "job.yaml", "data.length=40", "--procs", 1)
    assert done.returncode == 0, done.stderr
    (run,) = [p for p in control.runs_dir.iterdir() if (p / "events.jsonl").exists()]
    lines = map(json.loads, open(run / "events.jsonl"))
    assert [e["step"] for e in lines if e["kind"] == "checkpoint"] == [10, 20, 30]


@pytest.mark.parametrize("odd", ["2:jump", "15:jump", "5:null", "15:null"])
def test_times_that_are_none_are_left_out(control, odd):
    job(control, "--odd", odd)
    one = bench(control, "--candidates", "local=0.36")["candidates"][0]
    assert one["iteration"]["seconds"] == pytest.approx(0.1)
    assert one["whole"]["seconds"]["value"] == pytest.approx(100, rel=0.1)
    assert any("left out" in text for text in one["iteration"]["remarks"])
    (row,) = plan(control)["rows"]
    assert row["seconds"]["value"] == pytest.approx(100, rel=0.1)
    # A run with such a step ends with its report.
    job(control, "--odd", odd, "--steps", 20)
    done = control.call("run", "job.yaml", "--price", "1")
    assert done.returncode == 0, done.stderr
    assert control.call("report", "last").returncode == 0


@pytest.mark.parametrize("clock", [-1e9, 1e6])
def test_another_clock_of_the_events_adds_no_time(control, clock):
    job(control, "--clock", clock)
    one = bench(control, "--candidates", "local=0.36")["candidates"][0]
    assert one["closing_seconds"] <= one["probe_seconds"]
    assert one["whole"]["seconds"]["value"] < 120


def test_no_iteration_with_a_time_is_told(control):
    job(control, text="iterations: {pattern: 'took (?<seconds>[a-z]+)'}\n")
    control.script("program", "#!/bin/bash\nfor i in $(seq 100); do echo took nan; sleep .01; done\n")
    result = bench(control, "--candidates", "local=0.36", code=3)
    assert "possible time" in result["verdict"] or "no iteration" in result["verdict"]


def test_lines_that_come_faster_than_they_are_looked_at(control):
    control.script(
        "talks", "#!/bin/bash\nfor e in $(seq 99); do for i in $(seq 50); do echo step $i/50; "
        "sleep 0.01; done; done\n"
    )
    control.script(
        "job.yaml",
        "run: ./talks\niterations: {pattern: 'step (?<step>\\d+)/(?<total>\\d+)'}\n",
    )
    one = bench(control, "--candidates", "local=1", "--iterations", 100)["candidates"][0]
    events = map(json.loads, open(one["events"]))
    steps = [e for e in events if e["kind"] == "iteration"]
    # Counted on over the epochs, and their sum is the time that passed.
    assert [e["step"] for e in steps] == list(range(1, len(steps) + 1)) and len(steps) > 90
    passed = steps[-1]["time"] - steps[0]["time"]
    assert sum(e["total"] for e in steps) == pytest.approx(passed, rel=0.05)
    assert one["iteration"]["seconds"] == pytest.approx(passed / len(steps), rel=0.3)
    # 50 are an epoch's, not the run's.
    assert one["whole"] is None


def test_each_candidate_has_its_own_number_of_steps(control):
    job(control, "--total", 1000)
    first = bench(control, "--candidates", "local=1", "--total-steps", "20")
    assert first["candidates"][0]["total_steps"] == 20
    again = bench(control, "--candidates", "local=1")
    assert again["candidates"][0]["total_steps"] == 1000


def test_a_folder_that_is_used_again_shows_what_was_measured_now(control):
    job(control)
    bench(control, "--candidates", "local=1", "--out", "out")
    control.script("job.yaml", "run: exit 3\n")
    result = bench(control, "--candidates", "local=1", "--out", "out", code=3)
    assert result["candidates"][0]["iteration"] is None


def test_iterations_that_slow_without_end_are_told(control):
    job(control, "--slower", 1.05)
    one = bench(control, "--candidates", "local=0.36", "--iterations", 40)["candidates"][0]
    assert one["iteration"]["drifting"]
    assert one["whole"]["seconds"]["high"] > 5 * one["whole"]["seconds"]["value"]
    assert any("slower" in text for text in one["iteration"]["remarks"])


def test_a_program_without_events_is_read_by_a_pattern(control):
    control.script(
        "talks", "#!/bin/bash\nfor i in $(seq 1000); do echo step $i of 500; sleep 0.02; done\n"
    )
    control.script(
        "job.yaml",
        "name: talks\nrun: ./talks\n"
        "iterations: {pattern: 'step (?<step>\\d+) of (?<total>\\d+)'}\n",
    )
    result = bench(control, "--candidates", "local=0.1", "--iterations", 12)
    one = result["candidates"][0]
    assert one["iteration"]["seconds"] >= 0.02
    assert one["samples_per_dollar"] is None and one["iterations_per_dollar"] > 0
    assert result["total_steps"] == 500
    assert one["whole"]["seconds"]["value"] >= 500 * 0.02


def test_no_iteration_says_what_is_missing(control):
    control.script("job.yaml", "name: silent\nrun: 'true'\n")
    result = bench(control, "--candidates", "local=0.1", code=3)
    assert result["cheapest"] is None
    assert "iterations: {pattern: ...}" in result["verdict"]


def test_a_job_that_never_shows_one_is_given_up(control):
    control.script("job.yaml", "name: silent\nrun: sleep 1000\n")
    result = bench(control, "--candidates", "local=0.1", "--patience", "3s", code=3)
    assert "no iteration within 3.0 s" in result["verdict"]
    control.assert_nothing_left()


def test_one_iteration_is_a_wide_guess(control):
    job(control, "--steps", 1)
    one = bench(control, "--candidates", "local=0.1")["candidates"][0]
    assert one["state"] == "finished"
    assert one["iteration"]["high"] > 2 * one["iteration"]["seconds"]
    assert any("factor of two" in text for text in one["iteration"]["remarks"])


def test_a_job_that_fails_gives_its_reason(control):
    control.script("job.yaml", "name: broken\nrun: exit 7\n")
    result = bench(control, "--candidates", "local=0.1", code=3)
    assert "7" in result["verdict"]
    assert result["candidates"][0]["state"] == "failed"


def test_without_a_price_only_time_is_compared(control):
    job(control)
    result = bench(control, "--candidates", "local")
    assert result["cheapest"] is None and result["fastest"] == "local"
    assert "without the price of local" in result["verdict"]


def test_the_price_may_stand_in_the_user_file(control):
    (control.folder / "config" / "lockstep").mkdir(parents=True)
    path = control.folder / "config" / "lockstep" / "config.yaml"
    path.write_text("prices: {local: 0.25}\n")
    job(control)
    one = bench(control)["candidates"][0]
    assert one["dollars_per_hour"] == 0.25 and one["price_source"] == "user file"


def test_candidates_may_stand_in_the_job(control):
    job(control, text="resources: {hosts: [nowhere], candidates: [local=0.5]}\n")
    one = bench(control)["candidates"][0]
    assert one["name"] == "local" and one["dollars_per_hour"] == 0.5
    assert one["iteration"]["seconds"] == pytest.approx(0.1)


def test_the_budget_caps_all_probes(control):
    job(control)
    result = bench(control, "--candidates", "local=3600", "--budget", "0.5")
    one = result["candidates"][0]
    assert one["state"] == "capped" and "0.5 dollars" in one["reason"]
    control.assert_nothing_left()


def test_ctrl_c_stops_all_probes(control):
    control.script("job.yaml", "name: silent\nrun: sleep 1000\n")
    process = control.start("bench", "job.yaml", "--candidates", "local=0.1")
    wait_for(lambda: any(b"sleep" in line for _, line in control.left()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    control.assert_nothing_left()


@pytest.mark.parametrize(
    "words, hint",
    [
        (["--candidates", "local=0"], "above 0"),
        (["--candidates", "local="], "HOST=PRICE"),
        (["--candidates", "=3"], "HOST=PRICE"),
        (["--candidates", "local=cheap"], "cheap"),
        (["--candidates", "local,local"], "twice"),
        (["--candidates", "a,local", "--budget", "3"], "price of every candidate"),
        (["--budget", "much", "--candidates", "local=1"], "--budget"),
        (["--patience", "soon"], "--patience"),
        (["--iterations", "0"], "--iterations"),
    ],
)
def test_bad_commands_are_refused(control, words, hint):
    job(control)
    result = control.call("bench", "job.yaml", *words)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert hint in result.stderr


def plan(control, *words, code=0):
    result = control.call("plan", "job.yaml", *words, "--output", "json")
    assert result.returncode == code, (result.returncode, result.stderr)
    return json.loads(result.stdout) if result.stdout else result.stderr


def test_a_plan_comes_from_probes_and_is_later_compared(control):
    job(control, "--steps", 200, "--total", 200, "--step", 0.02)
    bench(control, "--candidates", "local=3.6", "--iterations", 12)
    result = plan(control, "--max-duration", "1h", "--budget", "1")
    (row,) = result["rows"]
    assert row["machine"] == "local" and row["in_time"] and row["in_budget"]
    assert row["last_error"] is None
    assert row["iteration_seconds"] == pytest.approx(0.02)
    assert result["cheapest"] == {"machine": "local", "nodes": 1}
    assert (control.folder / "plans" / "made" / "plan.svg").exists()
    done = control.call("run", "job.yaml", "--price", "3.6", timeout=120)
    assert done.returncode == 0, done.stderr
    (row,) = plan(control)["rows"]
    state = next(run.state() for run in control.runs() if (run.path / "state.json").exists())
    happened = state["ended"] - state["started"]
    predicted = result["rows"][0]["seconds"]["value"]
    assert row["last_error"] == pytest.approx(predicted / happened - 1, abs=1e-6)


def test_a_plan_without_anything_known_says_so(control):
    job(control)
    assert "lockstep bench job.yaml" in plan(control, code=2)


def test_a_plan_that_nothing_fits_says_what_comes_nearest(control):
    job(control)
    bench(control, "--candidates", "local=3.6", "--iterations", 12)
    result = plan(control, "--budget", "0.001", code=4)
    assert result["cheapest"] is None
    assert "the cheapest of all is 1 x local" in result["verdict"]


def test_a_plan_without_a_price_is_of_time_alone(control):
    job(control)
    bench(control, "--candidates", "local", "--iterations", 12)
    result = plan(control, "--max-duration", "1h")
    assert result["rows"][0]["dollars"] is None and result["fastest"]["machine"] == "local"
    assert "without prices" in result["verdict"]
    assert plan(control, "--max-duration", "1s", code=4)["fastest"] is None
    assert "no run on it is known" in plan(control, "--price", "nobody=3", code=2)


def test_a_plan_knows_phases_and_what_one_node_says_to_itself(control):
    job(control, "--step", 0.4, "--late", 0.1, "--total", 500)
    one = bench(control, "--candidates", "local=1", "--iterations", 40)["candidates"][0]
    assert one["whole"]["seconds"]["value"] == pytest.approx(0.5 + 8 * 0.4 + 492 * 0.1, abs=2)
    (row,) = plan(control)["rows"]
    assert row["seconds"]["value"] == pytest.approx(one["whole"]["seconds"]["value"], abs=0.5)


@pytest.mark.parametrize("name", ["../../out", "..", "a b", "x" * 300])
def test_a_plans_folder_is_within_plans(control, name):
    job(control)
    text = (control.folder / "job.yaml").read_text().replace("name: made", f"name: {json.dumps(name)}")
    control.script("job.yaml", text)
    bench(control, "--candidates", "local=3.6", "--iterations", 12)
    folder = pathlib.Path(plan(control)["directory"])
    assert folder.parent == control.folder / "plans" and (folder / "plan.json").exists()


def test_another_job_is_not_mixed_in(control):
    job(control)
    bench(control, "--candidates", "local=3.6", "--iterations", 12)
    job(control, "--samples", 32)
    assert "nothing is known" in plan(control, code=2)
