"""What needs a GPU: run by `make test-gpu`, never by `make test`.

The CPU is the reference: the same seed, weights and data give the same first
losses on both devices within float tolerance. One GPU is enough: NCCL takes a
group of one, and two ranks share it over the host collective. The parts without
a program around them (NCCL's operations, gradients, optimiser state, pinned
batches) are in the GoogleTest binaries that scripts/test-gpu.sh runs first.
"""

import csv
import json
import math
import os
import pathlib
import random
import socket
import struct
import subprocess
import zlib

import pytest

BIN = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "bin" / "lockstep-train"
DCGAN = ["dcgan", "data=synthetic", "data.length=256", "data.image_size=32",
         "data.batch_size=16", "model.ngf=16", "model.ndf=16",
         "trainer.max_steps=8", "trainer.log_every=1", "sample_every=4"]
VIT = ["vit", "data=synthetic", "experiment=tiny", "data.length=256",
       "data.batch_size=16", "model.depth=2", "trainer.max_steps=8",
       "trainer.log_every=1", "flip=false", "optim.schedule=constant",
       "optim.warmup_steps=0"]
# 50 tokens and heads of 64: in bf16 this one runs on lockstep/kernels.
KERNELS = [*VIT, "data.image_size=28", "model.patch=4", "data.length=512"]
RECIPES = pytest.mark.parametrize(
    "recipe,column", [(DCGAN, "loss_d"), (VIT, "loss")], ids=["dcgan", "vit"])

# Of the first loss, where only the order of sums differs, and of the next ones:
# Adam's first step is the sign of a gradient, however small.
FIRST, LATER = 1e-4, 2e-2
# tf32 has 10 bits of mantissa, bf16 has 7.
TF32, BF16 = 5e-3, 5e-2


def finish(processes):
    """Outputs by rank; all must end well."""
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=240)[0])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    assert codes == [0] * len(codes), "\n".join(outputs)
    return outputs


def start(arguments, ranks=1):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, OMP_NUM_THREADS="4")
        if ranks > 1:
            env |= {"RANK": str(rank), "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen(
            [str(BIN), *arguments], env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True))
    return processes


def train(out, arguments, ranks=1):
    """Runs the ranks; returns the rows of metrics.csv with a loss."""
    finish(start([*arguments, f"out={out}"], ranks))
    with open(out / "metrics.csv") as file:
        return list(csv.DictReader(file))


def facts(out):
    """Of the init event of rank 0."""
    for path in sorted(out.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == "init" and event["rank"] == 0:
                return event["facts"]
    raise AssertionError(f"no init event under {out}")


def near(rows, others, column, first=FIRST, later=LATER, steps=3):
    for step in range(steps):
        assert float(rows[step][column]) == pytest.approx(
            float(others[step][column]), rel=later if step else first), step


@RECIPES
def test_gpu_equals_cpu(tmp_path, recipe, column):
    cpu = train(tmp_path / "cpu", [*recipe, "trainer.device=cpu"])
    gpu = train(tmp_path / "gpu", [*recipe, "trainer.device=cuda"])
    assert facts(tmp_path / "gpu")["device"].startswith("cuda")
    near(gpu, cpu, column)


@RECIPES
@pytest.mark.parametrize("precision,first", [("tf32", TF32), ("bf16", BF16)])
def test_fewer_bits_stay_near_fp32(tmp_path, recipe, column, precision, first):
    fp32 = train(tmp_path / "fp32", recipe)
    less = train(tmp_path / "less", [*recipe, f"trainer.precision={precision}"])
    near(less, fp32, column, first=first, later=0.05)


def test_the_loss_on_kernels_stays_in_the_band_of_fp32(tmp_path):
    """60 steps, most of them in a CUDA graph; every tenth of the curve within
    3% of fp32's. Short batches at the ends of epochs run without the graph."""
    words = [*KERNELS, "data.batch_size=48", "trainer.max_steps=60",
             "trainer.max_epochs=100", "optim.clip=1"]
    curves = {}
    for precision in ("fp32", "bf16"):
        rows = train(tmp_path / precision, [*words, f"trainer.precision={precision}"])
        curves[precision] = [float(row["loss"]) for row in rows if row["loss"]]
    assert len(curves["bf16"]) == 60
    for begin in range(0, 60, 10):
        ours, reference = (sum(curve[begin:begin + 10]) / 10
                           for curve in (curves["bf16"], curves["fp32"]))
        assert ours == pytest.approx(reference, rel=0.03), begin
    assert curves["bf16"][-1] < curves["bf16"][0]


@pytest.mark.parametrize("mode", ["attention", "block"])
def test_recompute_changes_memory_not_numbers(tmp_path, mode):
    words = [*KERNELS, "trainer.precision=bf16"]
    plain = train(tmp_path / "plain", words)
    less = train(tmp_path / mode, [*words, f"trainer.recompute={mode}"])
    near(less, plain, "loss", first=1e-3, later=1e-2)


def test_two_ranks_on_kernels_share_a_gpu(tmp_path):
    words = [*KERNELS, "trainer.precision=bf16"]
    one = train(tmp_path / "one", [*words, "data.batch_size=16"])
    two = train(tmp_path / "two", [*words, "data.batch_size=8"], ranks=2)
    near(two, one, "loss", first=1e-2, later=5e-2)
    with open(tmp_path / "two" / "timing.csv") as file:
        for row in csv.DictReader(file):
            parts = sum(float(row[part]) for part in
                        ("data", "compute", "communication", "wait"))
            assert parts == pytest.approx(float(row["total"]), abs=1e-4), row


@pytest.mark.parametrize("ranks,mode", [(1, "none"), (2, "none"), (2, "block")])
def test_sharded_weights_on_kernels_learn_like_whole_ones(tmp_path, ranks, mode):
    words = [*KERNELS, "trainer.precision=bf16", f"data.batch_size={16 // ranks}",
             f"trainer.recompute={mode}", "optim.clip=1"]
    whole = train(tmp_path / "whole", [*words, "trainer.strategy=ddp"], ranks)
    parts = train(tmp_path / "parts", [*words, "trainer.strategy=fsdp"], ranks)
    near(parts, whole, "loss", first=1e-2, later=5e-2, steps=8)
    assert float(parts[-1]["val_accuracy"] or 0) >= 0  # validated, in parts too


def test_crops_and_mixup_train_on_kernels(tmp_path):
    rows = train(tmp_path / "run", [
        *KERNELS, "trainer.precision=bf16", "crop_padding=2", "mixup=.5",
        "label_smoothing=.1", "flip=true", "trainer.accumulate=2"])
    assert all(math.isfinite(float(row["loss"])) for row in rows if row["loss"])


def test_a_step_of_fewer_batches_has_a_graph_of_its_own(tmp_path):
    """An epoch of 12 batches is a step of 8 and one of 4: the graph of the first
    would learn from what the step before left in its inputs."""
    words = [*KERNELS, "trainer.precision=bf16", "data.length=96",
             "data.batch_size=8", "trainer.accumulate=8",
             "trainer.max_steps=10", "trainer.max_epochs=100"]
    cpu = train(tmp_path / "cpu", [*words, "trainer.device=cpu"])
    gpu = train(tmp_path / "gpu", [*words, "trainer.device=cuda"])
    # Four batches too many make a loss half as large again.
    near(gpu, cpu, "loss", first=BF16, later=.1, steps=10)


def png(path, level):
    """16 x 16 of noise above a level, in RGB."""
    noise = random.Random(str(path))
    rows = b"".join(
        b"\0" + bytes(level + noise.randrange(60) for _ in range(48)) for _ in range(16))

    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_adaptation_follows_its_schedule_in_a_graph(tmp_path, optimiser):
    """The rate of a captured step is the one of its step, not of its capture."""
    for d, domain in enumerate(["amazon", "webcam"]):
        for c, name in enumerate(["bike", "mug", "pen"]):
            for i in range(8):
                png(tmp_path / "office" / domain / name / f"{i}.png", 40 * c + 30 * d)
    words = ["deepcoral", f"data.root={tmp_path / 'office'}", "data.source=amazon",
             "data.target=webcam", "data.image_size=16", "data.batch_size=4",
             "model.backbone=dann", "model.dropout=0", "trainer.max_epochs=2", "trainer.log_every=1",
             f"optim.name={optimiser}", "optim.schedule=cosine"]
    cpu = train(tmp_path / "cpu", [*words, "trainer.device=cpu"])
    gpu = train(tmp_path / "gpu", [*words, "trainer.device=cuda"])
    near(gpu, cpu, "loss", later=5e-2, steps=12)


@RECIPES
def test_nccl_with_a_rank_a_gpu(tmp_path, recipe, column):
    """Gradients, weights and every small agreement of the loop go through it."""
    plain = train(tmp_path / "plain", recipe)
    nccl = train(tmp_path / "nccl", [*recipe, "trainer.collective=nccl"])
    assert facts(tmp_path / "nccl")["collective"] == "nccl"
    near(nccl, plain, column)


def test_two_ranks_share_a_gpu_over_the_host_collective(tmp_path):
    one = train(tmp_path / "one", [*VIT, "data.batch_size=16"])
    two = train(tmp_path / "two", [*VIT, "data.batch_size=8"], ranks=2)
    # Not asked for: auto sees that the GPU is shared.
    assert facts(tmp_path / "two")["collective"] == "host"
    near(two, one, "loss", steps=4)


def test_two_dcgan_ranks_share_a_gpu(tmp_path):
    """Batch statistics are each rank's own, so there is nothing to compare
    with; validation takes rank 0's over the host."""
    rows = train(tmp_path / "two", [*DCGAN, "trainer.collective=host"], ranks=2)
    assert all(math.isfinite(float(row["loss_d"])) for row in rows if row["loss_d"])
    assert any(row.get("val_swd") for row in rows)


def test_nccl_refuses_a_shared_gpu(tmp_path):
    ranks = start([*VIT, "trainer.collective=nccl", f"out={tmp_path / 'no'}"], 2)
    try:
        outputs = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert all(process.returncode != 0 for process in ranks)
    assert all("ranks 0 and 1 share a GPU" in output for output in outputs)


@RECIPES
def test_checkpoints_cross_devices(tmp_path, recipe, column):
    """Written on the GPU after 4 steps, with the optimiser's state; read there
    and on the CPU, both go on like the run that never stopped."""
    whole = train(tmp_path / "whole", recipe)
    train(tmp_path / "first", [*recipe, "trainer.max_steps=4"])
    last = tmp_path / "first" / "checkpoints" / "last.safetensors"
    by_step = {row["step"]: row for row in whole if row[column]}
    for device in ("cuda", "cpu"):
        rows = train(tmp_path / device, [*recipe, f"trainer.device={device}",
                                         f"trainer.resume={last}"])
        rows = [row for row in rows if row[column]]
        assert [row["step"] for row in rows] == ["5", "6", "7", "8"]
        near(rows, [by_step[row["step"]] for row in rows], column, first=LATER)


def test_a_gpu_checkpoint_is_tested_on_the_cpu(tmp_path):
    train(tmp_path / "run", VIT)
    best = tmp_path / "run" / "checkpoints" / "best.safetensors"
    told = {}
    for device in ("cuda", "cpu"):
        [output] = finish(start(
            [VIT[0], "test", *VIT[1:], f"trainer.device={device}",
             f"checkpoint={best}"]))
        told[device] = dict(
            line.split() for line in output.splitlines() if line.startswith("val_"))
    assert float(told["cpu"]["val_loss"]) == pytest.approx(
        float(told["cuda"]["val_loss"]), rel=1e-3)
