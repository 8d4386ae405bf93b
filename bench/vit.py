"""ViT-tiny, two ranks, one thread each, fp32: ours against PyTorch's DDP.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/vit.py [--quick]

Images of 32x32, patches of 4, width 192, 12 blocks, 3 heads, batch 32 a rank.
"""

import sys

import measure

BATCH = 32
STEPS = 25
WARMUP = 5
REQUIRED = ">=1.1"


def ours(steps, warmup, data):
    arguments = ["vit", "experiment=tiny", f"data={data}", "model.depth=12"]
    arguments += [f"data.batch_size={BATCH}", "data.image_size=32"]
    arguments += [f"trainer.max_steps={steps}", "trainer.max_epochs=100"]
    # Validation ends a run of ours; the limit keeps it short.
    arguments += [f"data.limit={2 * BATCH * (steps + 1)}"]
    if data == "synthetic":
        arguments += ["data.length=4096"]
    return measure.run_ours(arguments, warmup)


def peer(steps, warmup, data):
    arguments = ["--batch-size", BATCH, "--steps", steps, "--data", data]
    return measure.run_peer("peer_vit.py", arguments, warmup)


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    steps, warmup = (6, 2) if arguments.quick else (STEPS, WARMUP)
    table = measure.Table("vit")
    name = f"vit-tiny-fp32-b{BATCH}"
    print(f"# {name}: {steps} steps, {warmup} of warm-up, {arguments.data}")
    results = measure.interleave(
        {
            "ours": lambda: ours(steps, warmup, arguments.data),
            "peer": lambda: peer(steps, warmup, arguments.data),
        },
        arguments.rounds,
    )
    table.add_training(name, results, REQUIRED, "samples/s")
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
