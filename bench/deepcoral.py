"""DeepCORAL with ResNet-18, two ranks, one thread each, fp32: ours against
PyTorch's DDP over Gloo.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/deepcoral.py [--quick]

Images of 64x64 made of random pixels, 8 of the source and 8 of the target a
rank; samples are those of the source. Steps alone are compared: the peer
neither validates nor saves, so ours has one epoch that is longer than the run,
and does both after its last step.
"""

import sys

import measure

BATCH = 8
STEPS = 20
WARMUP = 4
REQUIRED = ">=1.2"


def ours(steps, warmup):
    arguments = ["deepcoral", "data=synthetic", "model.backbone=resnet18"]
    arguments += [f"data.batch_size={BATCH}", "data.image_size=64", "data.resize=64"]
    arguments += [f"trainer.max_steps={steps}", "data.flip=false"]
    arguments += ["epoch_based_training=false", f"n_iter_per_epoch={steps + 1}"]
    # Few samples keep short the validation that ends a run of ours.
    arguments += ["data.length=256"]
    return measure.run_ours(arguments, warmup)


def peer(steps, warmup):
    arguments = ["--batch-size", BATCH, "--steps", steps, "--data", "synthetic"]
    return measure.run_peer("peer_deepcoral.py", arguments, warmup)


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    steps, warmup = (5, 2) if arguments.quick else (STEPS, WARMUP)
    table = measure.Table("deepcoral")
    name = f"deepcoral-resnet18-fp32-b{BATCH}"
    print(f"# {name}: {steps} steps, {warmup} of warm-up")
    results = measure.interleave(
        {"ours": lambda: ours(steps, warmup), "peer": lambda: peer(steps, warmup)},
        arguments.rounds,
    )
    table.add_training(name, results, REQUIRED, "source samples/s")
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
