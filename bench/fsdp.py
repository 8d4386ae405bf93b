"""Sharded training, four ranks, one thread each, fp32: ours against PyTorch's
fully_shard over Gloo and against our own replicas, in one run.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/fsdp.py [--quick] [--only=b2]

A ViT of width 384 with 6 blocks and 6 heads on 65 tokens (32x32, patches of 4).
"""

import sys

import measure

RANKS = 4
# Batch a rank: steps, warm-up, what the peer's speed must be multiplied by.
CASES = {8: (12, 3, ">=1.4"), 2: (24, 5, ">=2.0")}
OWN = ">=0.95"  # of our own replicas


def ours(strategy, batch, steps, warmup, data):
    arguments = ["vit", f"trainer={strategy}", f"data={data}", "data.image_size=32"]
    arguments += ["model.name=vit_small_patch16_224", "model.patch=4"]
    arguments += ["model.depth=6", f"data.batch_size={batch}", "optim.lr=1e-3"]
    arguments += [f"trainer.max_steps={steps}", "trainer.max_epochs=100"]
    # Validation ends a run of ours; the limit keeps it short.
    arguments += [f"data.limit={RANKS * batch * (steps + 1)}"]
    if data == "synthetic":
        arguments += ["data.length=4096"]
    return measure.run_ours(arguments, warmup, RANKS)


def peer(batch, steps, warmup, data):
    arguments = ["--batch-size", batch, "--steps", steps, "--data", data]
    return measure.run_peer("peer_fsdp.py", arguments, warmup, RANKS)


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    table = measure.Table("fsdp")
    for batch, (steps, warmup, required) in CASES.items():
        name = f"fsdp-vit384-fp32-b{batch}"
        if arguments.only and arguments.only not in name:
            continue
        if arguments.quick:
            steps, warmup = 5, 2
        print(f"# {name}: {steps} steps, {warmup} of warm-up, {arguments.data}")
        results = measure.interleave(
            {
                "fsdp": lambda: ours("fsdp", batch, steps, warmup, arguments.data),
                "ddp": lambda: ours("ddp", batch, steps, warmup, arguments.data),
                "peer": lambda: peer(batch, steps, warmup, arguments.data),
            },
            arguments.rounds,
        )
        table.runs[name] = results

        def compare(suffix, other, key, limit, unit, scale=1):
            table.add(
                name + suffix,
                measure.median(results["fsdp"], key) * scale,
                measure.median(results[other], key) * scale,
                limit,
                unit,
            )

        compare("", "peer", "samples_per_second", required, "samples/s")
        compare("-ddp", "ddp", "samples_per_second", OWN, "samples/s")
        compare("-cpu", "peer", "samples_per_cpu_second", None, "samples a CPU second")
        compare("-memory", "peer", "peak_bytes", None, "MiB", 2**-20)
        compare("-memory-ddp", "ddp", "peak_bytes", None, "MiB", 2**-20)
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
