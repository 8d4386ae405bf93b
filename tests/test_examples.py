"""Every example runs as it is on the test bed."""

import os
import pathlib
import subprocess
import sys

import pytest
from control import LOCKSTEP, Control
from PIL import Image
from testbed import ROOT, Hosts, needs_root
from testbed_containers import Docker, needs_docker
from testbed_slurm import Slurm, needs_slurm
from trainer import TRAIN

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)
needs_trainer = pytest.mark.skipif(
    not os.path.exists(TRAINER), reason="no lockstep-train"
)


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    made.environment["LOCKSTEP_TRAINER_BIN"] = TRAINER
    yield made
    made.end_all()


@pytest.fixture(scope="module")
def hosts():
    with Hosts(2) as made:
        yield made


def run(control, name, *words, runs=None, **environment):
    """From the root, as the comment in the file says."""
    runs = runs or control.runs_dir
    control.runs_dir = pathlib.Path(runs)
    done = subprocess.run(
        [LOCKSTEP, "run", f"examples/{name}.yaml", "--runs-dir", runs, *words],
        cwd=ROOT,
        env={**control.environment, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return control.run()


def check_trained(made, ranks=4):
    assert made.state()["state"] == "done"
    assert made.state()["world_size"] == ranks
    assert (made.path / "metrics.csv").exists()
    assert (made.path / "checkpoints" / "last.safetensors").stat().st_size > 0
    assert (made.path / "logbook.md").exists()
    timed = {e["rank"] for e in made.events() if e["kind"] == "iteration"}
    assert timed == set(range(ranks))


@needs_root
@needs_trainer
@pytest.mark.parametrize("name, ranks", [("hosts", 2), ("mpi", 4)])
def test_on_hosts(control, hosts, name, ranks):
    check_trained(run(control, name, **hosts.environment()), ranks)


@needs_slurm
@needs_trainer
def test_slurm(control):
    with Slurm(count=2) as slurm:
        runs = slurm.shared / "runs"
        check_trained(run(control, "slurm", runs=runs, **slurm.environment()))


@needs_docker
def test_container(control):
    with Docker() as docker:
        docker.make_image("busybox")
        made = run(control, "container", **docker.environment())
        assert "step 3 loss 0.4" in made.log(0) and "step 3 loss 0.4" in made.log(1)
        steps = [e["step"] for e in made.events() if e["kind"] == "iteration"]
        assert steps == [1, 2, 3]


@needs_trainer
@pytest.mark.parametrize("name, ranks", [("forest", 1), ("forest-ranks", 2)])
def test_forest(control, tmp_path, name, ranks):
    table = tmp_path / "forest.csv"
    program = ROOT / "examples" / "forest_data.py"
    subprocess.run([sys.executable, program, table, "2000"], check=True)
    made = run(control, name, f"train.data.train={table}", "train.forest.trees=20")
    check_trained(made, ranks)
    assert "test_accuracy 0." in made.log(0)


@needs_root
@needs_trainer
def test_forest_on_hosts(control, hosts):
    made = run(
        control, "forest-hosts", "train.forest.trees=20", **hosts.environment()
    )
    check_trained(made, 2)
    assert "test_accuracy 0." in made.log(0)


# Of the examples themselves only the size of the work is changed.
FEW_STEPS = [
    "train.data.length=8",
    "train.data.batch_size=2",
    "train.model.residual_blocks=1",
    "train.model.filters=8",
    "train.hr_height=32",
    "train.hr_width=32",
    "train.warmup_batches=1",
    "train.trainer.max_epochs=1",
    "train.trainer.log_every=1",
]


@needs_trainer
@pytest.mark.parametrize("ranks", [1, 2])
def test_esrgan(control, ranks):
    made = run(control, "esrgan", "--procs", str(ranks), *FEW_STEPS)
    check_trained(made, ranks)


@needs_root
@needs_trainer
def test_esrgan_on_hosts(control, hosts):
    environment = hosts.environment()
    check_trained(run(control, "esrgan-hosts", *FEW_STEPS, **environment), 2)


def write_office(root):
    """Two domains of two classes, as examples/deepcoral.yaml wants them."""
    shades = [("amazon", 40), ("webcam", 90)]
    for domain, shade in shades:
        for number, name in enumerate(("bike", "mug")):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(8):
                color = (shade + 100 * number, shade + i, shade)
                Image.new("RGB", (40, 36), color).save(folder / f"{i}.jpg")


@needs_root
@needs_trainer
def test_deepcoral(control, hosts, tmp_path):
    """Two ranks as it is, one rank, and one rank each on two hosts; with a
    backbone that a test has time for."""
    office = hosts.shared / "office"  # as all of them see it
    write_office(office)
    small = [f"train.data.root={office}", "train.trainer.max_epochs=1"]
    small += ["train.data.image_size=16", "train.data.batch_size=4"]
    small += ["train.model.backbone=dann"]
    runs = tmp_path / "deepcoral"
    two = run(control, "deepcoral", *small, runs=runs / "two")
    check_trained(two, 2)
    assert "best val_accuracy" in two.log(0)
    check_trained(run(control, "deepcoral", *small, "--procs", "1", runs=runs / "one"), 1)
    control.runs_dir = runs / "hosts"
    check_trained(run(control, "deepcoral-hosts", *small, **hosts.environment()), 2)


def test_roles(control):
    made = run(control, "roles")
    assert made.log(0) == "sum of squares: 385\n"
