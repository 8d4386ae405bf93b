"""What needs a GPU: run by `make test-gpu`, never by `make test`.

The CPU is the reference: the same seed, weights and data give the same first
losses on both devices within float tolerance.
"""

import csv
import os
import pathlib
import socket
import subprocess

import pytest

BIN = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "bin" / "lockstep-train"
DCGAN = ["dcgan", "data=synthetic", "data.length=256", "data.image_size=32",
         "data.batch_size=16", "model.ngf=16", "model.ndf=16",
         "trainer.max_steps=8", "trainer.log_every=1", "sample_every=4"]
VIT = ["vit", "data=synthetic", "experiment=tiny", "data.length=256",
       "data.batch_size=16", "model.depth=2", "trainer.max_steps=8",
       "trainer.log_every=1", "flip=false"]


def train(out, arguments, ranks=1):
    """Runs the ranks; returns the rows of metrics.csv."""
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
            [str(BIN), *arguments, f"out={out}"], env=env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for process in processes:
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
    with open(out / "metrics.csv") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("recipe,column", [(DCGAN, "loss_d"), (VIT, "loss")])
def test_gpu_equals_cpu(tmp_path, recipe, column):
    cpu = train(tmp_path / "cpu", [*recipe, "trainer.device=cpu"])
    gpu = train(tmp_path / "gpu", [*recipe, "trainer.device=cuda"])
    for step in range(3):
        assert float(gpu[step][column]) == pytest.approx(
            float(cpu[step][column]), rel=2e-2), step


@pytest.mark.parametrize("recipe,column", [(DCGAN, "loss_d"), (VIT, "loss")])
def test_bf16_stays_near_fp32(tmp_path, recipe, column):
    fp32 = train(tmp_path / "fp32", recipe)
    bf16 = train(tmp_path / "bf16", [*recipe, "trainer.precision=bf16"])
    assert float(bf16[0][column]) == pytest.approx(
        float(fp32[0][column]), rel=5e-2)


def test_two_ranks_share_a_gpu_over_the_host_collective(tmp_path):
    one = train(tmp_path / "one", [*VIT, "data.batch_size=16"])
    two = train(tmp_path / "two", [*VIT, "data.batch_size=8",
                                   "trainer.collective=host"], ranks=2)
    for step in range(4):
        assert float(two[step]["loss"]) == pytest.approx(
            float(one[step]["loss"]), rel=2e-3), step
