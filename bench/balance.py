"""Ranks of different speed, on hosts with CPU quotas of 100 + 40% and of 100 + 50
+ 25% of a core (network namespaces, see tests/testbed.py; needs root).

Samples a second of all together with trainer.balance=auto, over the sum of what
each host trains alone; and the same with equal shares, all in one round. Speeds
are medians over steps after the shares have settled, each of all samples of a
step over the step's time on rank 0. The hosts are one machine: where its cores
slow each other down, `beside`, over the sum of what the hosts train alone but at
the same time, tells what balance itself gave.
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

import measure

sys.path.insert(0, str(measure.ROOT / "tests"))

LOCKSTEP = str(measure.BUILD / "bin" / "lockstep")
TRAIN = str(measure.BUILD / "bin" / "lockstep-train")
SETS = {"pair": {"n1": 1.0, "n2": 0.4}, "trio": {"n1": 1.0, "n2": 0.5, "n3": 0.25}}
# A rank, with equal shares: a step of a quarter of a second, so that the stalls of
# a quota (periods of 10 ms) do not count.
BATCH = 64
SETTLED = 25  # steps

JOB = """name: balance
train:
  recipe: vit
  data: {name: synthetic, length: 4000, image_size: 32, workers: 0}
  model: {name: vit_tiny_patch16_224, patch: 4, dim: 96, depth: 6, heads: 3}
  trainer: {max_epochs: 100, device: cpu, log_every: 1000}
envs: {OMP_NUM_THREADS: 1}
"""


def speed(folder, hosts, names, *words, steps):
    """Samples a second of all ranks."""
    runs = tempfile.mkdtemp(dir=folder)
    done = subprocess.run(
        [LOCKSTEP, "run", "balance.yaml", f"data.batch_size={BATCH}",
         f"trainer.max_steps={steps}", *words, "--hosts", ",".join(names),
         "--runs-dir", runs, "--output", "quiet"],
        cwd=folder,
        env={**os.environ, **hosts.environment(), "LOCKSTEP_TRAINER_REMOTE": TRAIN},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=measure.LIMIT,
    )
    if done.returncode != 0:
        raise measure.BenchError(f"{names} {words}: {done.stderr[-2000:]}")
    [events] = pathlib.Path(runs).glob("*/events.jsonl")
    samples, seconds = defaultdict(int), {}
    for line in events.read_text().splitlines():
        one = json.loads(line)
        if one["kind"] == "iteration":
            samples[one["step"]] += one["samples"]
            if one["rank"] == 0:
                seconds[one["step"]] = one["total"]
    late = [step for step in seconds if step > SETTLED]
    return statistics.median(samples[step] / seconds[step] for step in late)


def side_by_side(folder, hosts, names):
    """What each host trains alone while the others do the same."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = [pool.submit(speed, folder, hosts, [name], "trainer.max_seconds=25",
                            steps=10000) for name in names]
        return [run.result() for run in runs]


def main():
    arguments = measure.parse_arguments(__doc__)
    import testbed

    table = measure.Table("balance")
    steps = SETTLED + (15 if arguments.quick else 40)
    with testbed.Hosts(3) as hosts, tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "balance.yaml").write_text(JOB)
        for case, shares in SETS.items():
            if arguments.only and arguments.only not in case:
                continue
            for host, share in shares.items():
                hosts.limit_cpu(host, share)
            balanced, besides, equal = [], [], []
            for number in range(arguments.rounds):
                alone = [speed(folder, hosts, [one], steps=steps) for one in shares]
                both = speed(folder, hosts, shares, "trainer.balance=auto", steps=steps)
                same = speed(folder, hosts, shares, steps=steps)
                beside = side_by_side(folder, hosts, shares)
                balanced.append(both / sum(alone))
                besides.append(both / sum(beside))
                equal.append(same / sum(alone))
                print(f"# {case} round {number}: alone {[round(x, 1) for x in alone]}, "
                      f"beside {[round(x, 1) for x in beside]}, "
                      f"balanced {both:.1f}, equal {same:.1f}", flush=True)
            table.add(f"balance/{case}/sum", statistics.median(balanced), 1, ">=0.92")
            table.add(f"balance/{case}/beside", statistics.median(besides), 1)
            table.add(f"balance/{case}/equal", statistics.median(equal), 1)
            table.runs[case] = {"balanced": balanced, "beside": besides, "equal": equal}
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
