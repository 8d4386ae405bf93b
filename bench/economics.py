"""How well `lockstep bench` predicts, on three hosts with CPU quotas of 100, 50
and 25% of a core (network namespaces, see tests/testbed.py; needs root).

A probe of each, then the whole job on the host that it calls the cheapest:
predicted against real seconds of an iteration and dollars of the run, for a
small dcgan and for a program whose iterations get longer after a warm-up. The
ratio of a line ending in /error is 1 + the relative error; /ranked is the share
of rounds in which the order was right. `--rounds=20` is the long proof. The line
economics/plan has the milliseconds in which 10,000 configurations are planned,
over the 50 that are allowed.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import measure

sys.path.insert(0, str(measure.ROOT / "tests"))

LOCKSTEP = str(measure.BUILD / "bin" / "lockstep")
QUOTAS = {"n1": 1.0, "n2": 0.5, "n3": 0.25}
# A sample costs 1 on n1, 0.5 on n2, 0.8 on n3.
PRICES = {"n1": 0.40, "n2": 0.10, "n3": 0.08}
CANDIDATES = ",".join(f"{name}={price}" for name, price in PRICES.items())

PHASES = r"""#!/usr/bin/env python3
import json, os, time
TOTAL = 150
with open(os.environ["LOCKSTEP_EVENTS"], "a") as file:
    def event(kind, **fields):
        head = {"v": 1, "kind": kind, "time": time.time(), "rank": 0, "node": "n"}
        file.write(json.dumps({**head, **fields}) + "\n")
        file.flush()
    event("init", program="phases", world_size=1, seconds=0.1,
          facts={"total_steps": str(TOTAL)})
    for i in range(TOTAL):
        start = time.perf_counter()
        sum(range(1500000 if i < 8 else 5000000))
        total = time.perf_counter() - start
        event("iteration", step=i + 1, epoch=0, samples=8, data=0, compute=total,
              communication=0, wait=0, total=total)
"""

DCGAN = """name: dcgan
train:
  recipe: dcgan
  data: {name: synthetic, batch_size: 4, length: 4000, workers: 0}
  trainer: {max_steps: 600, max_epochs: 1000}
  model: {ngf: 16, ndf: 16}
envs: {OMP_NUM_THREADS: 1}
"""


def call(folder, hosts, *words):
    done = subprocess.run(
        [LOCKSTEP, *map(str, words)],
        cwd=folder,
        env={**os.environ, **hosts.environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        raise measure.BenchError(f"{words}: {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def whole_run(folder, hosts, job, host, number):
    """Seconds an iteration after the first, and dollars, as they were."""
    runs = folder / f"whole-{job}-{number}"
    price = PRICES[host]
    call(folder, hosts, "run", f"{job}.yaml", "--hosts", host, "--price", price,
         "--runs-dir", runs, "--output", "quiet")
    (run,) = [path for path in runs.iterdir() if (path / "state.json").exists()]
    state = json.loads((run / "state.json").read_text())
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    totals = [one["total"] for one in events if one["kind"] == "iteration"]
    dollars = (state["ended"] - state["started"]) * price / 3600
    return statistics.mean(totals[len(totals) // 4:]), dollars


def planner(table):
    done = subprocess.run(
        [str(measure.BUILD / "bin" / "plan_bench"), "21"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise measure.BenchError(f"plan_bench: {done.returncode}\n{done.stderr}")
    told = json.loads(done.stdout)
    assert told["configurations"] == 10000, told
    table.add("economics/plan", told["plan_ms"], 50, "<=1", "ms")
    table.runs["plan"] = told


def main():
    arguments = measure.parse_arguments(__doc__)
    import testbed

    table = measure.Table("economics")
    if not arguments.only or arguments.only in "plan":
        planner(table)
    if arguments.only == "plan":
        return table.write()
    with testbed.Hosts(3) as hosts, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "phases").write_text(PHASES)
        (folder / "phases").chmod(0o755)
        (folder / "phases.yaml").write_text("name: phases\nworkdir: .\nrun: ./phases\n")
        (folder / "dcgan.yaml").write_text(DCGAN)
        for host, share in QUOTAS.items():
            hosts.limit_cpu(host, share)
        for job, allowed in (("dcgan", 1.10), ("phases", 1.15)):
            if arguments.only and arguments.only not in job:
                continue
            ranked, iterations, costs = [], [], []
            for number in range(arguments.rounds):
                out = call(folder, hosts, "bench", f"{job}.yaml", "--candidates",
                           CANDIDATES, "--out", f"{job}-{number}", "--output", "json")
                report = json.loads(out)
                by_name = {one["name"]: one for one in report["candidates"]}
                ranked.append(report["cheapest"] == "n2" and report["fastest"] == "n1")
                best = by_name[report["cheapest"]]
                seconds, dollars = whole_run(
                    folder, hosts, job, report["cheapest"], number
                )
                iterations.append(abs(best["iteration"]["seconds"] / seconds - 1))
                costs.append(abs(best["whole"]["dollars"]["value"] / dollars - 1))
                print(f"# {job} round {number}: {report['verdict']}", flush=True)
            table.add(f"economics/{job}/ranked", sum(ranked), len(ranked), ">=1", "rounds")
            table.add(f"economics/{job}/iteration/error", 1 + statistics.median(iterations),
                      1, "<=1.10")
            table.add(f"economics/{job}/cost/error", 1 + statistics.median(costs), 1,
                      f"<={allowed:.2f}")
            table.runs[job] = {"ranked": ranked, "iteration": iterations, "cost": costs}
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
