"""The deepcoral recipe by its command: what it trains, writes and refuses, and
what adaptation gains."""

import gzip
import pathlib
import re
import shutil

import numpy
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch_models import TransferNet
from trainer import (
    Ranks,
    assert_same_checkpoint,
    events,
    metrics,
    refused,
    rows,
    run_ranks,
    train,
    trained,
)

LAST = "checkpoints/last.safetensors"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")


def picture(path, value, size=(12, 10), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = numpy.random.default_rng(seed).integers(0, 60, (size[1], size[0], 3))
    Image.fromarray((noise + value).astype("uint8")).save(path)


def office(root, domains=("amazon", "webcam"), classes=("bike", "mug", "pen"), count=8):
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            for i in range(count):
                file = root / domain / name / f"{i:03}.jpg"
                picture(file, 40 * c + 30 * d, seed=100 * c + 10 * d + i)
    return root


def words(root, *more):
    return [
        "deepcoral",
        f"data.root={root}",
        "data.source=amazon",
        "data.target=webcam",
        "data.image_size=16",
        "data.batch_size=4",
        "model.backbone=dann",
        "trainer.device=cpu",
        "trainer.max_epochs=2",
        "trainer.log_every=1",
        *more,
    ]


def test_trains_and_tests(tmp_path):
    """A pass through the smaller domain is an epoch; losses in the CSV, the best
    model, the verb 'test' with its confusion matrix."""
    root = office(tmp_path / "office", count=8)
    picture(root / "amazon" / "mug" / "more.png", 50)  # source 25, target 24
    run = tmp_path / "run"
    done = trained(*words(root, "transfer_loss=mmd"), f"out={run}")
    assert "done: 12 steps, " in done.stdout and "best val_accuracy" in done.stdout
    table = metrics(run)
    assert [float(r["transfer_loss"]) for r in table if r["transfer_loss"]]
    for key in ("loss", "class_loss", "accuracy", "val_accuracy", "val_loss"):
        assert any(r[key] for r in table), key
    facts = events(run, "init")[0]["facts"]
    assert facts["steps_per_epoch"] == "6" and facts["source"] == "amazon"
    tested = trained("deepcoral", "test", f"checkpoint={run}/checkpoints/best.safetensors")
    best = max(float(r["val_accuracy"]) for r in table if r["val_accuracy"])
    assert f"val_accuracy {best:.6g}" in tested.stdout
    matrix = rows(run / "test" / "confusion.csv")
    assert len(matrix) == 3 and (run / "test" / "confusion.png").exists()
    assert sum(int(float(v)) for row in matrix for v in list(row.values())[1:]) == 24


def test_iterations_go_on_through_both_domains(tmp_path):
    root = office(tmp_path / "office", count=4)  # 3 batches of 4 a domain
    run = tmp_path / "run"
    more = ["epoch_based_training=false", "n_iter_per_epoch=5", "trainer.max_epochs=3"]
    trained(*words(root, *more), f"out={run}")
    assert events(run, "init")[0]["facts"]["total_steps"] == "15"
    assert len([r for r in metrics(run) if r["loss"]]) == 15


def test_resumed_run_sees_the_same_batches(tmp_path):
    """Also those of the target, and dropout's draws."""
    root = office(tmp_path / "office")
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    more = ["trainer.checkpoint_every=1", "covariance=global"]
    trained(*words(root, *more), f"out={straight}")
    trained(*words(root, *more, "trainer.max_steps=4"), f"out={parts}")
    trained(*words(root, *more, "trainer.resume=auto"), f"out={parts}")
    assert_same_checkpoint(straight / LAST, parts / LAST)


def test_ranks_share_both_domains(tmp_path):
    """Two ranks at batch 4 see what one sees at 8, of source and target, with
    crops and flips; so the losses are the same."""
    root = office(tmp_path / "office")
    more = ["covariance=global", "model.dropout=0", "data.resize=20", "optim.lr=0.01"]
    run_ranks(tmp_path, words(root, *more, f"out={tmp_path / 'two'}"), 2)
    # One rank's learning rate is not multiplied by two.
    alone = ["data.batch_size=8", "optim.lr=0.02", f"out={tmp_path / 'one'}"]
    trained(*words(root, *more, *alone))
    two, one = metrics(tmp_path / "two"), metrics(tmp_path / "one")
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        for key in ("loss", "class_loss", "transfer_loss", "val_loss", "accuracy"):
            if a[key]:
                assert float(a[key]) == pytest.approx(float(b[key]), rel=2e-4, abs=1e-6)


def test_early_stop(tmp_path):
    """A model that cannot move gets no better; a resumed run knows that."""
    root = office(tmp_path / "office")
    run = tmp_path / "run"
    more = ["optim.lr=1e-30", "trainer.max_epochs=50", "trainer.early_stop=3"]
    done = trained(*words(root, *more), f"out={run}")
    assert "stopped early: 3 validations without a better val_accuracy" in done.stdout
    assert "done: 24 steps" in done.stdout  # the first and three more epochs
    again = trained(*words(root, *more, "trainer.resume=auto"), f"out={run}")
    assert "done: 24 steps" in again.stdout


def test_pretrained_weights(tmp_path):
    """torchvision's names, its head left out; rank 0's reach everybody."""
    root = office(tmp_path / "office")
    state = TransferNet("resnet18", 32, 3).backbone.state_dict()
    state = {n: torch.randn_like(t.float()).to(t.dtype) for n, t in state.items()}
    state = {n: t.abs() if "var" in n else t for n, t in state.items()}
    state["bn1.num_batches_tracked"] = torch.tensor(7)
    file = tmp_path / "resnet18.safetensors"
    save_file(state | {"fc.weight": torch.ones(1000, 512)}, file)
    run = tmp_path / "run"
    more = ["model.backbone=resnet18", "data.image_size=32", f"model.weights={file}"]
    more += ["model.backbone_rate=0", "trainer.max_steps=1"]
    done = trained(*words(root, *more), f"out={run}")
    assert f"{len(state)} tensors loaded, 0 adapted, 0 kept" in done.stderr
    assert "skipped  fc.weight [1000, 512]" in done.stderr
    after = load_file(run / LAST)
    for name, tensor in state.items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(after[f"backbone.{name}"], tensor), name
    assert after["backbone.bn1.num_batches_tracked"] == 9  # source, then target

    # A part of it, as of a smaller network, is none; counts may be absent.
    told = f"of the {len(state)} tensors of model.backbone=resnet18"
    first = {"conv1.weight": state["conv1.weight"]}
    save_file(first, file)
    refused(train(*words(root, *more)), str(file), "lacks 99", told, "bn1.weight [64]")
    old = {n: t for n, t in state.items() if "num_batches" not in n}
    save_file(old, file)
    trained(*words(root, *more), f"out={tmp_path / 'old'}")
    save_file({n: t for n, t in old.items() if n != "layer4.1.bn2.bias"}, file)
    refused(train(*words(root, *more)), "lacks 1", told, "layer4.1.bn2.bias [512]")

    state["layer1.0.conv1.weight"] = torch.ones(64, 64, 5, 5)
    save_file(state, file)
    refused(
        train(*words(root, *more)),
        str(file),
        "'layer1.0.conv1.weight' is [64, 64, 5, 5]",
        "model has [64, 64, 3, 3]",
    )
    save_file({"patch_embed.weight": torch.ones(3)}, file)
    refused(train(*words(root, *more)), "none of its 1 tensors", "as torchvision names")


def test_unusable_images(tmp_path):
    """Named and passed over up to a share, then refused; on ranks, too."""
    root = office(tmp_path / "office", count=10)
    cut = root / "amazon" / "mug" / "004.jpg"
    cut.write_bytes(cut.read_bytes()[:200])
    picture(root / "amazon" / "pen" / "005.jpg", 5, size=(3, 9))
    run = tmp_path / "run"
    with_ranks = run_ranks(tmp_path, words(root, f"out={run}"), 2).output()
    assert "passed over: " in with_ranks and str(cut) in with_ranks
    assert "005.jpg is too small: 3 x 9 pixels; at least 8 x 8" in with_ranks
    refused(
        train(*words(root, "data.max_skipped=0.05"), f"out={tmp_path / 'bad'}"),
        "2 of 30 images are no good",
        "data.max_skipped",
    )
    done = trained(*words(root, "data.min_side=3"), f"out={tmp_path / 'small'}")
    assert done.stderr.count("passed over") == 1


def test_domains_that_cannot_be_meant(tmp_path):
    root = office(tmp_path / "office", ("amazon", "webcam", "dslr"), count=2)
    small = ["data.batch_size=2"]

    def no(*parts, more=()):
        return refused(train(*words(root, *small, *more)), *parts)

    no("no domain 'attic'", "amazon, dslr, webcam", more=["data.target=attic"])
    no("'webcam' are the same", more=["data.source=webcam"])
    no("'webcam/' and", "are the same", more=["data.source=webcam/"])
    no("needs data.root", more=["data.target="])
    no("accepted: folder, synthetic", more=["data=mnist"])
    no("batch_size=1: the distance between domains needs 2", more=["data.batch_size=1"])
    no("batch_size=7", "shard of 6 samples", more=["data.batch_size=7"])
    no("data.resize=15 is smaller", more=["data.resize=15"])
    no("covariance=global is for", more=["covariance=global", "transfer_loss=mmd"])
    no("no blocks to shard", more=["trainer.strategy=fsdp"])
    no("accepted: 63 and more", more=["model.backbone=alexnet"])
    no("resnet18", more=["model.backbone=resnet19"])

    shutil.rmtree(root / "webcam" / "pen")
    no("different classes (3 and 2)", "only amazon has pen")
    (root / "webcam" / "pen").mkdir()  # empty: still no class
    no("only amazon has pen")
    shutil.rmtree(root / "webcam" / "mug")
    no("one class, bike", "needs two and more")
    shutil.rmtree(root / "webcam" / "bike")
    no("no images in", str(root / "webcam"))
    picture(root / "webcam" / "a.jpg", 3)
    no("images without classes")


def test_checkpoints_know_their_classes(tmp_path):
    """Other names are refused, on `test` and on resume, also when their number
    is the same."""
    root = office(tmp_path / "office", ("amazon", "webcam"), ("bike", "mug", "pen"), 4)
    other = office(tmp_path / "other", ("amazon", "webcam"), ("bike", "bus", "cat"), 4)
    run = tmp_path / "run"
    trained(*words(root, "trainer.max_steps=1"), f"out={run}")
    told = ["is of 3 classes, class 1 being \"mug\"", "has 3, that one being \"bus\""]
    test = ["deepcoral", "test", f"checkpoint={run / LAST}"]
    refused(train(*test, f"data.root={other}"), str(run / LAST), *told)
    refused(train(*words(other, f"trainer.resume={run / LAST}"), f"out={tmp_path / 'b'}"), *told)
    assert "val_accuracy" in trained(*test).stdout
    # A checkpoint from before has no names.
    with safe_open(run / LAST, "pt") as file:
        metadata = file.metadata()
    assert metadata.pop("lockstep.classes") == '["bike","mug","pen"]'
    old = tmp_path / "old.safetensors"
    metadata = {n: v for n, v in metadata.items() if "crc" not in n}
    save_file(load_file(run / LAST), old, metadata)
    trained("deepcoral", "test", f"checkpoint={old}", f"data.root={other}")


def test_ranks_with_other_folders(tmp_path):
    office(tmp_path / "0" / "data", count=4)
    office(tmp_path / "1" / "data", classes=("bike", "mug", "van"), count=4)
    more = words("data", f"out={tmp_path / 'run'}")
    with Ranks(tmp_path, more, cwd=lambda rank: tmp_path / str(rank)) as ranks:
        assert ranks.wait() == [2, 2], ranks.output()
    assert "the data of rank 1 is not that of rank 0" in ranks.output(0)


def test_classes_may_be_called_test_and_val(tmp_path):
    """A domain has no split, unless there is nothing else in it."""
    root = office(tmp_path / "office", classes=("mug", "test", "train", "val"), count=2)
    run = tmp_path / "run"
    more = ["data.batch_size=2", "trainer.max_steps=1"]
    trained(*words(root, *more), f"out={run}")
    with safe_open(run / LAST, "pt") as file:
        assert file.metadata()["lockstep.classes"] == '["mug","test","train","val"]'
    for domain in ("amazon", "webcam"):
        for part in ("train", "test"):
            office(tmp_path / "split" / domain, (part,), ("bike", "mug"), 2)
    trained(*words(tmp_path / "split", *more), f"out={run}")
    with safe_open(run / LAST, "pt") as file:
        assert file.metadata()["lockstep.classes"] == '["bike","mug"]'


def test_office31_archive_layout(tmp_path):
    root = office(tmp_path / "office", count=4)
    for domain in ("amazon", "webcam"):
        (root / domain).rename(root / "images")
        (root / domain).mkdir()
        (root / "images").rename(root / domain / "images")
    trained(*words(root, "trainer.max_steps=1"), f"out={tmp_path / 'run'}")


# A domain shift.


def fashion(count):
    with gzip.open(FASHION / "train-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read(16 + 784 * count), numpy.uint8)[16:]
    with gzip.open(FASHION / "train-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(8 + count), numpy.uint8)[8:]
    return 60 + 0.5 * images.reshape(-1, 28, 28), labels


def lit_from_a_side(images):
    """A ramp of light across each image, from anywhere, and noise."""
    draw = numpy.random.default_rng(1).normal
    across = numpy.linspace(-1, 1, 28)
    down = across[:, None] * draw(0, 60, (len(images), 1, 1))
    return images + down + across * draw(0, 60, (len(images), 1, 1)) + draw(
        0, 15, images.shape
    )


def write_domain(folder, images, labels):
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = folder / str(label) / f"{i:05}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.clip(0, 255).astype("uint8")).convert("RGB").save(file)


@pytest.mark.skipif(not FASHION.exists(), reason="no Fashion-MNIST here")
def test_adaptation_gains_ten_points(tmp_path):
    """Fashion-MNIST to its twin in a light from the side, with noise: both runs
    see the same images of the target, and are tested on others."""
    images, labels = fashion(2700)
    write_domain(tmp_path / "plain", images[:1500], labels[:1500])
    lit = lit_from_a_side(images[1500:])
    write_domain(tmp_path / "lit", lit[:700], labels[1500:2200])
    write_domain(tmp_path / "held", lit[700:], labels[2200:])
    accuracy = {}
    for weight in (0, 300):
        run = tmp_path / f"run-{weight}"
        trained(
            "deepcoral",
            f"data.root={tmp_path}",
            "data.source=plain",
            "data.target=lit",
            "data.image_size=14",
            "data.resize=14",
            "data.batch_size=64",
            "data.flip=false",
            "model.backbone=dann",
            "model.bottleneck=64",
            "model.dropout=0",
            "model.backbone_rate=1",
            "optim.lr=0.03",
            "epoch_based_training=false",
            "n_iter_per_epoch=400",
            "trainer.max_epochs=1",
            "trainer.device=cpu",
            f"transfer_loss_weight={weight}",
            f"out={run}",
        )
        done = trained("deepcoral", "test", f"checkpoint={run / LAST}", "data.target=held")
        found = re.search(r"val_accuracy ([\d.]+)", done.stdout)
        assert found, done.stdout
        accuracy[weight] = float(found[1])
        matrix = rows(run / "test" / "confusion.csv")
        tested = sum(int(float(v)) for row in matrix for v in list(row.values())[1:])
        assert tested == 500
    print(f"accuracy on the held-out target by weight: {accuracy}")
    assert accuracy[300] >= accuracy[0] + 0.10, accuracy


def test_hidden_folders_beside_the_images_are_passed_over(tmp_path):
    """Also in what a domain that is not there might have been."""
    root = office(tmp_path / "office", count=4)
    for domain in ("amazon", "webcam"):
        (root / domain).rename(root / "images")
        (root / domain).mkdir()
        (root / "images").rename(root / domain / "images")
        (root / domain / ".cache").mkdir()
    (root / ".git").mkdir()
    run = tmp_path / "run"
    trained(*words(root, "trainer.max_steps=1"), f"out={run}")
    with safe_open(run / LAST, "pt") as file:
        assert file.metadata()["lockstep.classes"] == '["bike","mug","pen"]'
    text = refused(train(*words(root, "data.target=attic")), "it has: amazon, webcam")
    assert ".git" not in text


def test_ranks_with_statistics_of_their_own_resume_bit_equal(tmp_path):
    """In the middle of an epoch: BatchNorm's running statistics are each rank's, and
    a checkpoint has rank 0's."""
    root = office(tmp_path / "office")
    base = [*words(root), "model.backbone=resnet18", "trainer.max_epochs=1"]
    base += ["data.batch_size=2", "data.image_size=32", "optim.schedule=constant"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_ranks(tmp_path, [*base, f"out={whole}"])
    run_ranks(tmp_path, [*base, f"out={parts}", "trainer.max_steps=4"])
    run_ranks(tmp_path, [*base, f"out={parts}", "trainer.resume=auto"])
    assert_same_checkpoint(whole / LAST, parts / LAST)
