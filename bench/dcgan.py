"""DCGAN, two ranks, one thread each: ours against PyTorch's DDP over Gloo.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/dcgan.py [--quick]

One line for each requirement: samples/s in fp32 at batch 16 and 64, and in
bf16 at batch 16 (ours in bf16 against the peer as it is, in fp32; the peer's
own bf16 autocast is a line of its own), start-up, peak memory of a rank, and
the share of an iteration that waits for data.
"""

import sys

import measure

WARMUP = 5
# name, batch, ours' precision, steps, required, goal
CASES = [
    ("dcgan-fp32-b16", 16, "fp32", 35, ">=1.2", 1.35),
    ("dcgan-fp32-b64", 64, "fp32", 17, ">=1.15", None),
    ("dcgan-bf16-b16", 16, "bf16", 45, ">=1.9", 2.1),
]
STARTUP_REQUIRED = "<=0.2"
MEMORY_REQUIRED = "<=1.0"
DATA_SHARE = 0.03


def ours(batch, precision, steps, warmup, data):
    arguments = ["dcgan", f"data={data}", "data.image_size=64"]
    arguments += [f"data.batch_size={batch}", f"trainer.precision={precision}"]
    arguments += [f"trainer.max_steps={steps}", "trainer.max_epochs=100"]
    # The peer draws no pictures, validates nothing.
    arguments += ["sample_every=0", "validation_samples=0"]
    if data == "synthetic":
        arguments += ["data.length=4096"]
    return measure.run_ours(arguments, warmup)


def peer(batch, steps, warmup, data, bf16=False):
    arguments = ["--batch-size", batch, "--steps", steps, "--data", data]
    arguments += ["--bf16"] if bf16 else []
    return measure.run_peer("peer_dcgan.py", arguments, warmup)


def run_case(table, case, arguments):
    name, batch, precision, steps, required, goal = case
    warmup = WARMUP
    if arguments.quick:
        steps, warmup = 6, 2
    sides = {
        "ours": lambda: ours(batch, precision, steps, warmup, arguments.data),
        "peer": lambda: peer(batch, steps, warmup, arguments.data),
    }
    if precision == "bf16":
        sides["peer-bf16"] = lambda: peer(batch, steps, warmup, arguments.data, True)
    print(f"# {name}: {steps} steps, {warmup} of warm-up, {arguments.data}")
    results = measure.interleave(sides, arguments.rounds)
    table.runs[name] = results
    key = "samples_per_second"
    mine, theirs = results["ours"], results["peer"]
    table.add(
        name,
        measure.median(mine, key),
        measure.median(theirs, key),
        required,
        "samples/s",
        goal,
    )
    if "peer-bf16" in results:
        table.add(
            f"{name}-peer-bf16",
            measure.median(mine, key),
            measure.median(results["peer-bf16"], key),
            unit="samples/s",
        )
    table.add(
        f"{name}-cpu",
        measure.median(mine, "samples_per_cpu_second"),
        measure.median(theirs, "samples_per_cpu_second"),
        unit="samples a CPU second",
    )
    table.add(
        f"{name}-memory",
        measure.median(mine, "peak_bytes") / 2**20,
        measure.median(theirs, "peak_bytes") / 2**20,
        MEMORY_REQUIRED,
        "MiB",
    )
    for result in mine:
        result["data_share"] = result["shares"]["data"]
    table.add(
        f"{name}-data-share",
        measure.median(mine, "data_share"),
        DATA_SHARE,
        "<=1.0",
        "of an iteration; peer: the limit",
    )


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    table = measure.Table("dcgan")
    for case in CASES:
        if not arguments.only or arguments.only in case[0]:
            run_case(table, case, arguments)
    startups = {
        side: [r for runs in table.runs.values() for r in runs[side]]
        for side in ("ours", "peer")
        if table.runs
    }
    if startups:
        table.add(
            "dcgan-startup",
            measure.median(startups["ours"], "startup"),
            measure.median(startups["peer"], "startup"),
            STARTUP_REQUIRED,
            "s",
        )
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
