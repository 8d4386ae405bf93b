"""The arithmetic of the deepcoral recipe against PyTorch, live, as test_parity.py
does it: every backbone, both distances, ten steps, and ranks."""

import subprocess

import pytest
import torch
from safetensors.torch import load_file
from test_parity import error, initial, probe
from torch.nn import functional
from torch_models import TransferNet, coral, mmd
from trainer import BUILD, clean_environment, free_port

# Both sides compute in fp64. Gradients come back in fp32 where they are many.
DOUBLE = 1e-9
NARROW = 1e-6


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Reference:
    """The usual script: source and target go through one after the other, SGD
    with the backbone at a tenth, the rate falls with the inverse of the step."""

    def __init__(self, name, size, classes, loss="coral", weight=10, lr=0.01):
        self.loss, self.weight = {"coral": coral, "mmd": mmd}[loss], weight
        self.model = TransferNet(name, size, classes)
        model = self.model
        self.sgd = torch.optim.SGD(
            [
                {"params": model.backbone.parameters(), "lr": 0.1 * lr},
                {"params": model.bottleneck.parameters()},
                {"params": model.classifier.parameters()},
            ],
            lr,
            momentum=0.9,
            weight_decay=5e-4,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.sgd, lambda step: (1 + 0.3 * step) ** -0.75
        )

    def step(self, source, labels, target):
        features, logits = self.model(source)
        class_loss = functional.cross_entropy(logits, labels)
        apart = self.loss(features, self.model(target)[0])
        loss = class_loss + self.weight * apart
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        self.schedule.step()
        right = (logits.argmax(1) == labels).double().mean()
        return [value.item() for value in (loss, class_loss, apart, right)]


OPTIONS = {
    "recipe": "deepcoral",
    "precision": "fp64",
    "optim": "sgd",
    "lr": 0.01,
    "lr_gamma": 0.3,
    "weight_decay": 5e-4,
    "bottleneck": 256,
    "covariance": "rank",
    "backbone_rate": 0.1,
    "narrow": 0,
}


def batches(steps, batch, size, classes):
    shape = (steps, batch, 3, size, size)
    labels = torch.randint(classes, (steps, batch))
    return torch.randn(shape), labels, torch.randn(shape) * 1.5 + 0.3


def compare(folder, name, size, batch, steps, loss="coral", weight=10, **options):
    """Ours and PyTorch's after `steps` steps of both in fp64."""
    reference = Reference(name, size, 5, loss, weight)
    data = batches(steps, batch, size, 5)
    given = dict(zip(("source", "labels", "target"), data, strict=True))
    ours = probe(
        folder,
        initial(reference.model) | given,
        **(OPTIONS | options),
        backbone=name,
        image_size=size,
        classes=5,
        loss=loss,
        transfer_weight=weight,
    )
    model = reference.model.double()
    source, labels, target = data
    with torch.no_grad():
        logits = model.eval()(source[0].double())[1]
    assert error(ours["forward.logits"], logits) < DOUBLE
    model.train()
    gradients, values = {}, []
    for i in range(steps):
        values.append(reference.step(source[i].double(), labels[i], target[i].double()))
        if i == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    torch.testing.assert_close(
        ours["metrics"], torch.tensor(values, dtype=torch.double), rtol=1e-8, atol=1e-9
    )
    return ours, gradients, reference


SIZES = {"alexnet": 63}


@pytest.mark.parametrize(
    "name",
    ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "alexnet", "dann"],
)
def test_backbone(tmp_path, name):
    """Forward, the losses and every gradient tensor of each network."""
    size = SIZES.get(name, 32)
    ours, theirs, _ = compare(tmp_path, name, size, 4, 1, narrow=1)
    assert len(theirs) == sum(n.startswith("grad.") for n in ours)
    wrong = {n: error(ours[f"grad.{n}"], g) for n, g in theirs.items()}
    assert max(wrong.values()) < NARROW, max(wrong.items(), key=lambda item: item[1])


@pytest.mark.parametrize("loss", ["coral", "mmd"])
def test_ten_steps(tmp_path, loss):
    """Rates by group, their decay, momentum, both losses, running statistics."""
    ours, theirs, reference = compare(tmp_path, "resnet18", 32, 6, 10, loss)
    for name, gradient in theirs.items():
        assert error(ours[f"grad.{name}"], gradient) < DOUBLE, name
    state = reference.model.state_dict()
    assert {f"final.{n}" for n in state} == {n for n in ours if n[:6] == "final."}
    for name, tensor in state.items():
        assert error(ours[f"final.{name}"], tensor) < 1e-7, name


def probe_ranks(folder, world):
    """The probe on `world` ranks, on the file that a probe alone was given."""
    port = free_port()
    ranks = [
        subprocess.Popen(
            [BUILD / "bin" / "parity_probe", "in.safetensors", "ranks.safetensors"],
            cwd=folder,
            env=clean_environment(
                RANK=rank,
                WORLD_SIZE=world,
                LOCAL_RANK=rank,
                LOCAL_WORLD_SIZE=world,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
        )
        for rank in range(world)
    ]
    assert [rank.wait(100) for rank in ranks] == [0] * world
    return load_file(folder / "ranks.safetensors")


def test_global_covariance_is_that_of_one_rank(tmp_path):
    """Ranks at batch B are one rank at W x B: losses, gradients, weights. Of a
    network without BatchNorm, whose statistics are each rank's."""
    apart = {}
    for covariance in ("global", "rank"):
        folder = tmp_path / covariance
        folder.mkdir()
        torch.manual_seed(0)
        alone, _, _ = compare(folder, "dann", 8, 12, 4, covariance=covariance)
        for world in (2, 3):
            ours = probe_ranks(folder, world)
            names = [n for n in alone if n.startswith(("grad.", "final.", "metrics"))]
            apart[covariance, world] = max(error(ours[n], alone[n]) for n in names)
    assert apart["global", 2] < DOUBLE and apart["global", 3] < DOUBLE
    assert apart["rank", 2] > 1e-3  # smaller batches have other covariances
