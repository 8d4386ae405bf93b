"""What the vit recipe can do besides training: pretrained weights, the verb
'test', augmentation, the average of weights, and what it refuses."""

import csv
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch_models import Vit
from trainer import (
    VIT,
    Ranks,
    assert_same_checkpoint,
    clean_environment,
    metadata,
    metrics,
    refused,
    rows,
    run_ranks,
    tensors,
    train,
    trained,
)

LAST = "checkpoints/last.safetensors"


# Pretrained weights.


def timm_like(classes=10, side=2, dim=24, channels=3, depth=2):
    """A state under timm's names for model.dim=24, depth=2, patch=8."""
    torch.manual_seed(3)
    model = Vit(8 * side, 8, dim, depth, 3)
    state = {k: torch.randn_like(v) * 0.1 for k, v in model.state_dict().items()}
    state["head.weight"] = torch.randn(classes, dim)
    state["head.bias"] = torch.randn(classes)
    state["patch_embed.proj.weight"] = torch.randn(dim, channels, 8, 8)
    return state


def load_into(tmp_path, state, *words):
    """Weights after one step that moves nothing, and what was told."""
    file = tmp_path / "weights.safetensors"
    save_file(state, file)
    run = tmp_path / "run"
    done = trained(
        *VIT,
        f"model.weights={file}",
        "trainer.max_steps=1",
        "optim.lr=1e-30",
        "optim.weight_decay=0",
        *words,
        f"out={run}",
    )
    return load_file(run / LAST), done.stderr


def test_weights_load_as_they_are(tmp_path):
    state = timm_like()
    after, told = load_into(tmp_path, state)
    for name, tensor in state.items():
        assert torch.equal(after[name], tensor), name
    assert f"{len(state)} tensors loaded, 0 adapted, 0 kept" in told
    assert "loaded   blocks.*.attn.qkv.weight [72, 24] (x2)" in told
    assert "loaded   pos_embed [1, 5, 24]" in told


def test_positions_are_interpolated_as_timm_does(tmp_path):
    state = timm_like(side=3)
    after, told = load_into(tmp_path, state, "data.image_size=40")
    old = state["pos_embed"]
    grid = old[:, 1:].reshape(1, 3, 3, 24).permute(0, 3, 1, 2)
    new = torch.nn.functional.interpolate(
        grid, size=(5, 5), mode="bicubic", antialias=True
    )
    new = new.permute(0, 2, 3, 1).reshape(1, 25, 24)
    torch.testing.assert_close(
        after["pos_embed"], torch.cat([old[:, :1], new], 1), rtol=1e-5, atol=1e-6
    )
    assert "pos_embed [1, 10, 24] -> [1, 26, 24]: interpolated from 3x3 to 5x5" in told


def test_head_types_and_channels_are_adapted(tmp_path):
    state = timm_like(classes=1000)
    state["blocks.0.norm1.weight"] = state["blocks.0.norm1.weight"].bfloat16()
    state["patch_embed.proj.weight"] = state["patch_embed.proj.weight"].half()
    state["fc_norm.weight"] = torch.ones(24)
    after, told = load_into(tmp_path, state, "data.channels=1")
    assert after["head.weight"].shape == (10, 24)
    assert "kept     head.weight [10, 24]: the file has [1000, 24]" in told
    assert "skipped  fc_norm.weight [24]" in told
    assert torch.equal(
        after["blocks.0.norm1.weight"], state["blocks.0.norm1.weight"].float()
    )
    torch.testing.assert_close(
        after["patch_embed.proj.weight"],
        state["patch_embed.proj.weight"].float().sum(1, keepdim=True),
        rtol=1e-2,
        atol=1e-2,
    )
    del state["norm.bias"]
    _, told = load_into(tmp_path, state)
    assert "missing  norm.bias [24]" in told and "1 tensors are not in" in told


def test_weights_that_cannot_be_meant(tmp_path):
    file = tmp_path / "w.safetensors"

    def words(*more):
        return [*VIT, f"model.weights={file}", f"out={tmp_path / 'run'}", *more]

    state = timm_like()
    state["norm.weight"] = torch.ones(25)
    save_file(state, file)
    refused(
        train(*words()), str(file), "tensor 'norm.weight' is [25]", "model has [24]"
    )
    state["norm.weight"] = torch.ones(24, dtype=torch.int32)
    save_file(state, file)
    refused(train(*words()), "tensor 'norm.weight' [24] has type I32", "BF16")
    state["norm.weight"] = torch.full((24,), float("inf"))
    save_file(state, file)
    refused(train(*words()), "'norm.weight'", "no numbers")
    save_file({"conv.weight": torch.ones(3)}, file)
    refused(train(*words()), "none of its 1 tensors")
    file.write_bytes(b"not a file of weights")
    refused(train(*words()), str(file))
    file.unlink()
    refused(train(*words()), str(file))


def test_weights_reach_all_ranks(tmp_path):
    """Only rank 0 reads the file."""
    state = timm_like()
    file = tmp_path / "0" / "w.safetensors"
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    save_file(state, file)
    words = [*VIT, "model.weights=w.safetensors", "trainer.max_steps=2"]
    run_ranks(
        tmp_path,
        [*words, "data.batch_size=2", f"out={tmp_path / 'two'}"],
        cwd=lambda rank: tmp_path / str(rank),
    )
    trained(*words, f"out={tmp_path / 'one'}", cwd=tmp_path / "0")
    for ours, theirs in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one")):
        assert float(ours["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-4)


# The verb 'test'.


def read_matrix(path):
    with open(path) as file:
        table = list(csv.reader(file))
    assert table[0][0] == "truth\\predicted"
    return table[0][1:], [[int(cell) for cell in row[1:]] for row in table[1:]]


@pytest.mark.parametrize("world", [1, 2])
def test_test_tells_classes_and_confusion(tmp_path, world):
    run = tmp_path / "run"
    words = [*VIT, "data.length=101", "data.classes=4", "data.batch_size=8"]
    trained(*words, "trainer.max_epochs=3", f"out={run}")
    recipe, *rest = words
    checkpoint = run / "checkpoints" / "best.safetensors"
    with Ranks(tmp_path, [recipe, "test", *rest, f"checkpoint={checkpoint}"], world) as r:
        text = r.done().output(0)
        assert world == 1 or r.output(1) == ""
    names, matrix = read_matrix(run / "test" / "confusion.csv")
    assert names == ["class 0", "class 1", "class 2", "class 3"]
    total = sum(map(sum, matrix))
    assert total == 101, "every image once"
    values = dict(line.split() for line in text.split("\n\n")[0].splitlines())
    right = sum(matrix[i][i] for i in range(4))
    assert float(values["val_accuracy"]) == pytest.approx(right / total, rel=1e-4)
    assert float(values["val_accuracy"]) == pytest.approx(
        float(metadata(checkpoint)["lockstep.best"]), rel=1e-4
    )
    for i, row in enumerate(rows(run / "test" / "classes.csv")):
        count, predicted = sum(matrix[i]), sum(line[i] for line in matrix)
        assert (int(row["count"]), int(row["predicted"])) == (count, predicted)
        if count:
            assert float(row["recall"]) == pytest.approx(matrix[i][i] / count, abs=1e-5)
        if predicted:
            assert float(row["precision"]) == pytest.approx(
                matrix[i][i] / predicted, abs=1e-5
            )
    assert "precision" in text and "class 3" in text
    with Image.open(run / "test" / "confusion.png") as picture:
        assert picture.mode == "RGB" and min(picture.size) > 150
        assert len(picture.getcolors(1 << 16)) >= 4


def test_test_reads_a_folder_of_shards(tmp_path):
    run = tmp_path / "run"
    words = [*VIT, "trainer.strategy=fsdp", "trainer.checkpoint_format=sharded"]
    run_ranks(tmp_path / "r", [*words, f"out={run}"], 2)
    assert (run / LAST).is_dir()
    told = [row for row in metrics(run) if row["val_loss"]][-1]
    done = trained("vit", "test", f"checkpoint={run / LAST}", "trainer.device=cpu")
    values = dict(line.split() for line in done.stdout.split("\n\n")[0].splitlines())
    assert float(values["val_loss"]) == pytest.approx(float(told["val_loss"]), rel=1e-4)
    assert (run / "test" / "confusion.png").exists()


def test_test_writes_where_it_is_told(tmp_path):
    run = tmp_path / "run"
    trained(*VIT, "trainer.max_steps=1", f"out={run}")
    recipe, *rest = VIT
    words = [recipe, "test", *rest, f"checkpoint={run / LAST}"]
    trained(*words, f"out={tmp_path / 'here'}", "data.batch_size=auto")
    assert (tmp_path / "here" / "confusion.png").exists()
    assert not (run / "test").exists()
    (tmp_path / "file").write_text("")
    refused(train(*words, f"out={tmp_path / 'file' / 'x'}"), "file", code=1)


@pytest.mark.parametrize("world", [1, 2])
def test_test_knows_what_the_model_was_trained_with(tmp_path, world):
    """Nothing but the checkpoint is said; only rank 0 has it."""
    run = tmp_path / "run"
    words = [*VIT, "data.length=40", "data.classes=3", "trainer.max_steps=2"]
    trained(*words, "trainer.precision=bf16", "ema=0.5", f"out={run}")
    for rank in range(world):
        (tmp_path / str(rank)).mkdir()
    (tmp_path / "0" / "x.safetensors").symlink_to(run / LAST)
    with Ranks(
        tmp_path,
        ["vit", "test", "checkpoint=x.safetensors", "trainer.device=cpu"],
        world,
        cwd=lambda rank: tmp_path / str(rank),
    ) as ranks:
        text = ranks.done().output(0)
    values = dict(line.split() for line in text.split("\n\n")[0].splitlines())
    told = [row for row in metrics(run) if row["val_loss"]][-1]
    assert float(values["val_loss"]) == pytest.approx(float(told["val_loss"]), rel=1e-3)
    names, _ = read_matrix(tmp_path / "0" / "test" / "confusion.csv")
    assert len(names) == 3
    refused(
        train("dcgan", "test", f"checkpoint={run / LAST}", "data=synthetic"),
        "recipe 'vit', not of 'dcgan'",
    )


def test_paths_begin_at_the_home_folder(tmp_path):
    """A shell leaves the ~ behind the = of a key to us."""
    env = clean_environment(HOME=tmp_path)
    trained(*VIT, "trainer.max_steps=1", "out=~/run", env=env, cwd=tmp_path)
    assert (tmp_path / "run" / LAST).exists()
    words = ["vit", "test", f"checkpoint=~/run/{LAST}", "trainer.device=cpu"]
    trained(*words, env=env, cwd=tmp_path)
    assert (tmp_path / "run" / "test" / "confusion.png").exists()
    assert not (tmp_path / "~").exists()


def test_test_refuses_another_model(tmp_path):
    run = tmp_path / "run"
    trained(*VIT, "trainer.max_steps=1", f"out={run}")
    recipe, *rest = VIT
    words = [recipe, "test", *rest, f"checkpoint={run / LAST}"]
    refused(train(*words, "data.classes=7"), "'head.weight'", "[10, 24]", "[7, 24]")
    refused(train(*words, "model.depth=3"), "blocks.2")
    refused(train(*words, "data.image_size=24"), "'pos_embed'", "[1, 5, 24]")


# Augmentation.


EVERYTHING = [
    "crop_padding=2",
    "mixup=0.4",
    "label_smoothing=0.1",
    "ema=0.9",
    "optim.warmup_steps=3",
    "optim.schedule=cosine",
    "trainer.accumulate=2",
]


@pytest.mark.parametrize("world, strategy", [(1, "auto"), (2, "ddp"), (2, "fsdp")])
def test_everything_together_resumes_bit_for_bit(tmp_path, world, strategy):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = [*VIT, *EVERYTHING, "data.batch_size=4", f"trainer.strategy={strategy}"]
    words += ["trainer.checkpoint_format=full"]
    run_ranks(tmp_path / "a", [*words, f"out={whole}"], world)
    stop = ["trainer.max_seconds=1e-9", "trainer.min_epochs=1"]
    run_ranks(tmp_path / "b", [*words, *stop, f"out={parts}"], world)
    assert metadata(parts / LAST)["lockstep.epoch"] == "1"
    run_ranks(tmp_path / "c", [*words, "trainer.resume=auto", f"out={parts}"], world)
    assert_same_checkpoint(whole / LAST, parts / LAST)
    assert [r["loss"] for r in metrics(whole)] == [r["loss"] for r in metrics(parts)]


def test_each_augmentation_changes_what_is_learned(tmp_path):
    losses = {}
    for word in ("flip=false", "flip=true", "crop_padding=2", "mixup=0.8"):
        run = tmp_path / word
        extra = [] if word.startswith("flip") else ["flip=false"]
        trained(*VIT, word, *extra, "trainer.max_steps=4", f"out={run}")
        losses[word] = [row["loss"] for row in metrics(run) if row["loss"]]
    assert len({json.dumps(loss) for loss in losses.values()}) == 4
    # Without chance, pixels that stay bytes give the same images.
    odd = tmp_path / "seed"
    trained(*VIT, "mixup=0.8", "flip=false", "trainer.seed=1", f"out={odd}")
    assert [r["loss"] for r in metrics(odd)][:4] != losses["mixup=0.8"]


def test_ranks_draw_their_own(tmp_path):
    """Two ranks with the same images would mix them alike if they shared draws;
    their sums would equal twice one rank's."""
    words = [*VIT, "mixup=1", "trainer.max_steps=2", "data.batch_size=4"]
    run_ranks(tmp_path / "r", [*words, f"out={tmp_path / 'two'}"], 2)
    shares = set()
    from trainer import events

    for event in events(tmp_path / "two", "metric"):
        if event["step"] == 1:
            shares.add(event["values"]["loss"])
    assert len(shares) == 2


def test_ema_is_validated_and_published(tmp_path):
    run, plain = tmp_path / "ema", tmp_path / "plain"
    words = [*VIT, "optim.lr=0.01", "optim.schedule=constant"]
    trained(*words, "ema=0.95", f"out={run}")
    trained(*words, f"out={plain}")
    state, other = tensors(run / LAST), tensors(plain / LAST)
    for name in other:
        if name.startswith("lockstep."):
            assert state[name] == other[name], "training itself is untouched"
        else:
            assert state[f"lockstep.raw.{name}"] == other[name]
    names = [n for n in other if not n.startswith("lockstep.")]
    assert any(state[name] != other[name] for name in names)
    # The average by its formula, from every step's weights.
    average = None
    steps = len([r for r in metrics(run) if r["loss"]])
    for step in range(1, steps + 1):
        part = tmp_path / f"s{step}"
        trained(*words, f"trainer.max_steps={step}", f"out={part}")
        weights = load_file(part / LAST)["head.weight"].double()
        if average is None:
            trained(*words, "trainer.max_steps=1", "optim.lr=1e-30", f"out={tmp_path / 'i'}")
            average = load_file(tmp_path / "i" / LAST)["head.weight"].double()
        decay = min(0.95, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights
        if step == 6:
            break
    trained(*words, "ema=0.95", "trainer.max_steps=6", f"out={tmp_path / 'six'}")
    torch.testing.assert_close(
        load_file(tmp_path / "six" / LAST)["head.weight"].double(),
        average,
        rtol=1e-4,
        atol=1e-6,
    )
    # What validation told is what 'test' finds in the file.
    recipe, *rest = words
    done = trained(recipe, "test", *rest, f"checkpoint={run / LAST}")
    told = [row for row in metrics(run) if row["val_loss"]][-1]
    values = dict(line.split() for line in done.stdout.split("\n\n")[0].splitlines())
    assert float(values["val_loss"]) == pytest.approx(float(told["val_loss"]), rel=1e-5)
    raw = [row for row in metrics(plain) if row["val_loss"]][-1]
    assert raw["val_loss"] != told["val_loss"]


def test_label_smoothing_is_pytorchs(tmp_path):
    """The loss of the first step, by PyTorch on the same images."""
    plain, smooth = tmp_path / "plain", tmp_path / "smooth"
    words = [*VIT, "trainer.max_steps=1"]
    trained(*words, f"out={plain}")
    trained(*words, "label_smoothing=0.3", f"out={smooth}")
    a = float(metrics(plain)[0]["loss"])
    b = float(metrics(smooth)[0]["loss"])
    # Near initialisation logits are near 0: both near log(10), not equal.
    assert a != b and abs(b - 2.302585) < abs(a - 2.302585) + 0.05


# What it refuses.


def folder_of(root, split, names, count=6):
    for name in names:
        (root / split / name).mkdir(parents=True)
        for i in range(count):
            Image.effect_noise((20, 20), 50).convert("RGB").save(
                root / split / name / f"{i}.png"
            )


def test_splits_with_different_classes(tmp_path):
    words = [*VIT, "data=folder", "data.batch_size=2", f"out={tmp_path / 'run'}"]
    root = tmp_path / "a"
    folder_of(root, "train", ["cat", "dog"])
    folder_of(root, "test", ["cat", "dog", "emu"])
    refused(train(*words, f"data.root={root}"), str(root), "'emu'", "3 classes", "2")
    root = tmp_path / "b"
    folder_of(root, "train", ["cat", "dog", "emu"])
    folder_of(root, "test", ["cat", "dog"])
    refused(train(*words, f"data.root={root}"), str(root), "2 of", "3 classes")


def test_a_folder_trains_with_crops_too(tmp_path):
    """Images of different sizes are resized first."""
    root = tmp_path / "set"
    for split in ("train", "test"):
        folder_of(root, split, ["cat", "dog"])
    Image.effect_noise((31, 17), 50).convert("RGB").save(root / "train/cat/odd.png")
    words = [*VIT, "data=folder", f"data.root={root}", "data.batch_size=4"]
    trained(*words, "crop_padding=2", "mixup=0.2", f"out={tmp_path / 'run'}")


def test_a_gpu_that_is_not_there(tmp_path):
    env = clean_environment(CUDA_VISIBLE_DEVICES="")
    words = [word for word in VIT if not word.startswith("trainer.device")]
    words += ["trainer.max_steps=1", f"out={tmp_path / 'run'}"]
    refused(train(*words, "trainer.device=cuda", env=env), "trainer.device=cuda")
    with Ranks(tmp_path, words, env={"CUDA_VISIBLE_DEVICES": ""}) as ranks:
        text = ranks.done().output()
    assert text.count("no GPU is usable here") == 1, text
    assert "no GPU" not in trained(*words, "trainer.device=cpu", env=env).stderr


@pytest.mark.parametrize(
    "words, parts",
    [
        (["data.image_size=30"], ["30", "multiple of the patch 8"]),
        (["data.image_size=17"], ["17", "multiple of the patch 8"]),
        (["data.image_size=3"], ["data.image_size", "3"]),
        (["mixup=-1"], ["mixup", "-1"]),
        (["ema=1.5"], ["ema", "1.5"]),
        (["crop_padding=-3"], ["crop_padding", "-3"]),
        (["label_smoothing=2"], ["label_smoothing", "2"]),
    ],
)
def test_bad_words(tmp_path, words, parts):
    refused(train(*VIT, *words, cwd=tmp_path), *parts)
    assert not (tmp_path / "runs").exists()
