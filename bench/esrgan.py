"""ESRGAN after its warm-up, two ranks, one thread each: ours against PyTorch's
DDP over Gloo.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/esrgan.py [--quick]

Small settings (one residual block, HR 64): samples/s in fp32 with and without
the content term, both sides with the same random VGG19; and ours in bf16.
"""

import pathlib
import sys
import tempfile

import measure

WARMUP = 3
BATCH = 4
SIZE = 64
# name, content term, ours' precision, steps, required
CASES = [
    ("esrgan-fp32", True, "fp32", 13, ">=1.2"),
    ("esrgan-fp32-plain", False, "fp32", 15, ">=1.2"),
    ("esrgan-bf16", True, "bf16", 15, None),
]


def write_vgg(path):
    import torch
    from safetensors.torch import save_file

    from peer_esrgan import make_vgg

    torch.manual_seed(0)
    state = make_vgg().state_dict()
    save_file({f"features.{name}": tensor for name, tensor in state.items()}, path)


def ours(vgg, precision, steps, warmup):
    words = ["esrgan", "data=synthetic", "data.length=4096", "trainer.device=cpu"]
    words += ["model.residual_blocks=1", f"hr_height={SIZE}", f"hr_width={SIZE}"]
    words += [f"data.batch_size={BATCH}", "data.workers=1"]
    words += [f"trainer.precision={precision}", f"trainer.max_steps={steps}"]
    # The peer draws no pictures, validates nothing, and its G is warm.
    words += ["warmup_batches=0", "sample_interval=0", "validation_samples=0"]
    words += [f"model.vgg={vgg}"] if vgg else []
    return measure.run_ours(words, warmup)


def peer(vgg, steps, warmup):
    words = ["--batch-size", BATCH, "--steps", steps, "--image-size", SIZE]
    words += [] if vgg else ["--no-vgg"]
    return measure.run_peer("peer_esrgan.py", words, warmup)


def run_case(table, case, arguments, file):
    name, content, precision, steps, required = case
    warmup = WARMUP
    if arguments.quick:
        steps, warmup = 6, 2
    vgg = file if content else None
    print(f"# {name}: {steps} steps, {warmup} of warm-up, batch {BATCH}, HR {SIZE}")
    results = measure.interleave(
        {
            "ours": lambda: ours(vgg, precision, steps, warmup),
            "peer": lambda: peer(vgg, steps, warmup),
        },
        arguments.rounds,
    )
    table.runs[name] = results
    mine, theirs = results["ours"], results["peer"]
    for suffix, key, limit, unit in (
        ("", "samples_per_second", required, "samples/s"),
        ("-cpu", "samples_per_cpu_second", None, "samples a CPU second"),
    ):
        table.add(
            name + suffix,
            measure.median(mine, key),
            measure.median(theirs, key),
            limit,
            unit,
        )
    table.add(
        f"{name}-memory",
        measure.median(mine, "peak_bytes") / 2**20,
        measure.median(theirs, "peak_bytes") / 2**20,
        unit="MiB",
    )


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    table = measure.Table("esrgan")
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        file = pathlib.Path(folder) / "vgg19.safetensors"
        write_vgg(file)
        for case in CASES:
            if not arguments.only or arguments.only in case[0]:
                run_case(table, case, arguments, file)
    return table.write()


if __name__ == "__main__":
    sys.exit(main())
