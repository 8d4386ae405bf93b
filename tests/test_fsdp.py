"""Sharded training on 1, 2, 4 and 8 ranks: against our own replicas, against
PyTorch's fully_shard, and its checkpoints against PyTorch's own merge."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_bad_input import Mounted
from torch_models import Vit
from trainer import (
    BUILD,
    DCGAN,
    ROOT,
    VIT,
    Ranks,
    clean_environment,
    free_port,
    metadata,
    metrics,
    refused,
    run_ranks,
    tensors,
    train,
    trained,
)

WORLDS = [1, 2, 4, 8]
# The same 8 samples a step, however many ranks share them.
WORDS = [*VIT, "flip=false", "data.global_batch_size=8", "optim.lr=1e-3"]
FSDP = [*WORDS, "trainer=fsdp"]
SHARD = "shard-{:05}-model-00001-of-00001.safetensors"


def run(folder, words, world):
    folder.mkdir(parents=True, exist_ok=True)
    words = [*words, f"out={folder / 'run'}"]
    if world == 1:
        trained(*words)
    else:
        run_ranks(folder, words, world)
    return folder / "run"


def last(run):
    return run / "checkpoints" / "last.safetensors"


def header_size(file):
    with open(file, "rb") as opened:
        return int.from_bytes(opened.read(8), "little")


def floats(run, column):
    return [float(row[column]) for row in metrics(run) if row.get(column)]


def values(output):
    """What the verb 'test' printed."""
    lines = [line.split() for line in output.splitlines() if line.startswith("val_")]
    return {name: value for name, value in lines}


def assert_same_curves(left, right):
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert floats(right, column) == pytest.approx(
            floats(left, column), rel=1e-4, abs=1e-5
        ), column


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One rank, replicated, 12 steps."""
    return run(tmp_path_factory.mktemp("whole"), WORDS, 1)


# Losses.


@pytest.mark.parametrize("world", WORLDS)
def test_every_loss_equals_that_of_replicas(tmp_path, whole, world):
    sharded = run(tmp_path, FSDP, world)
    assert len(floats(sharded, "loss")) == 12
    assert_same_curves(whole, sharded)


@pytest.mark.parametrize(
    "extra",
    [
        ["optim.clip=0.05"],
        ["optim.name=sgd", "optim.clip=0.05"],
        ["trainer.accumulate=2", "optim.clip=0.05"],
        # The one block's sum is in flight when its next gradients arrive.
        ["trainer.accumulate=2", "model.depth=1"],
        # 23 and 22 samples: the ranks have 6 batches and 6, then 45 in 3s.
        ["data.length=45", "data.batch_size=3"],
    ],
)
def test_clipping_accumulation_and_ragged_batches(tmp_path, extra):
    words = [*VIT, "flip=false", "optim.lr=1e-3", "data.batch_size=4", *extra]
    replicas = run(tmp_path / "ddp", words, 2)
    sharded = run(tmp_path / "fsdp", [*words, "trainer=fsdp"], 2)
    assert_same_curves(replicas, sharded)


def test_validation_with_unequal_numbers_of_batches(tmp_path):
    """5 test images on 2 ranks, one at a time: 3 passes and 2."""
    words = [*VIT, "data.length=20", "data.limit=5", "data.batch_size=1"]
    replicas = run(tmp_path / "ddp", [*words, "flip=false"], 2)
    sharded = run(tmp_path / "fsdp", [*words, "flip=false", "trainer=fsdp"], 2)
    assert_same_curves(replicas, sharded)


def test_bf16_stays_near(tmp_path, whole):
    sharded = run(tmp_path, [*FSDP, "trainer.precision=bf16"], 2)
    apart = [
        abs(a - b) for a, b in zip(floats(whole, "loss"), floats(sharded, "loss"))
    ]
    assert 0 < max(apart) < 0.05
    # The parts, and so the checkpoint, are fp32.
    assert {kind for kind, *_ in tensors(last(sharded)).values()} == {"F32"}


# PyTorch.


def start(command, folder, world):
    port = free_port()
    return [
        subprocess.Popen(
            [str(word) for word in command],
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


def finish(processes):
    try:
        assert [process.wait(240) for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def torch_run(tmp_path_factory):
    """20 steps of PyTorch's own, on 4 ranks, with clipping."""
    folder = tmp_path_factory.mktemp("torch")
    torch.manual_seed(0)
    model = Vit(32, 8, 64, 3, 4)
    given = {f"init.{name}": t.contiguous() for name, t in model.state_dict().items()}
    given["images"] = torch.randn(20, 8, 3, 32, 32)
    given["labels"] = torch.randint(0, 10, (20, 8))
    options = {
        "recipe": "vit",
        "strategy": "fsdp",
        "precision": "fp32",
        "optim": "adamw",
        "lr": 1e-3,
        "beta1": 0.9,
        "weight_decay": 0.05,
        "label_smoothing": 0,
        "clip": 0.5,
        "image_size": 32,
        "patch": 8,
        "dim": 64,
        "depth": 3,
        "heads": 4,
    }
    save_file(
        given,
        folder / "in.safetensors",
        metadata={key: str(value) for key, value in options.items()},
    )
    command = [sys.executable, ROOT / "tests" / "torch_fsdp.py"]
    finish(start([*command, "in.safetensors", "torch.safetensors"], folder, 4))
    return folder, load_file(folder / "torch.safetensors")


@pytest.mark.parametrize("world", WORLDS)
def test_every_loss_equals_that_of_fully_shard(torch_run, world):
    folder, theirs = torch_run
    command = [BUILD / "bin" / "parity_probe", "in.safetensors"]
    out = folder / f"ours-{world}.safetensors"
    finish(start([*command, out], folder, world))
    ours = load_file(out)
    torch.testing.assert_close(
        ours["metrics"][:, 0].float(), theirs["losses"], rtol=2e-3, atol=2e-3
    )
    # Adam moves a weight by up to 1e-3 a step; as in test_parity.
    for name, tensor in theirs.items():
        if name.startswith("final."):
            apart = (ours[name] - tensor).abs().mean().item()
            assert apart < 0.1 * 20 * 1e-3, name
    # The most that a rank held: 16 bytes a parameter over the ranks, two
    # gathered blocks, a block's gradients and its reduce-scatter buffer, the
    # root with its gradients.
    held, parameters, block, root = ours["bytes"].tolist()
    formula = 16 * parameters / world + 4 * (2 + 1 + 1) * block + 8 * root
    assert held == pytest.approx(formula, rel=0.1)


# Checkpoints.


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Stopped after 6 of 12 steps: on 4 ranks in shards and in one file, and
    replicated on one."""
    folder = tmp_path_factory.mktemp("halves")
    words = ["optim.schedule=constant", "trainer.max_steps=6"]
    return {
        "sharded": last(run(folder / "sharded", [*FSDP, *words], 4)),
        "full": last(
            run(
                folder / "full",
                [*FSDP, *words, "trainer.checkpoint_format=full"],
                4,
            )
        ),
        "ddp": last(run(folder / "ddp", [*WORDS, *words], 2)),
        "whole": run(folder / "whole", [*WORDS, words[0]], 1),
    }


@pytest.mark.parametrize("kind", ["full", "sharded", "ddp"])
def test_how_large_a_checkpoint_will_be_is_said_before_step_1(halves, kind):
    path = halves[kind]
    files = path.iterdir() if path.is_dir() else [path]
    # Without the headers, of which each has a length of its own.
    data = sum(file.stat().st_size - 8 - header_size(file) for file in files)
    lines = map(json.loads, (path.parents[1] / "events.jsonl").read_text().splitlines())
    [told] = [one for one in lines if one["kind"] == "init" and one["rank"] == 0]
    assert int(told["facts"]["checkpoint_bytes"]) == pytest.approx(data, rel=1e-3)


def test_pytorch_merges_the_shards(tmp_path, halves):
    from torch.distributed.checkpoint._consolidate_hf_safetensors import (
        consolidate_safetensors_files,
    )

    folder = halves["sharded"]
    assert sorted(p.name for p in folder.iterdir()) == [
        SHARD.format(rank) for rank in range(1, 5)
    ]
    full = load_file(halves["full"])
    consolidate_safetensors_files(str(folder), str(tmp_path), dict.fromkeys(full, 1))
    merged = load_file(tmp_path / "model-00001-of-00001.safetensors")
    assert sorted(merged) == sorted(full)
    for name, tensor in full.items():
        assert torch.equal(merged[name].reshape(tensor.shape), tensor), name
    # Each file has rows of every large tensor and says which.
    for rank in range(4):
        file = folder / SHARD.format(rank + 1)
        about = metadata(file)
        assert about["DCP_VERSION"] == "1.0" and about["format"] == "pt"
        offsets = json.loads(about["DCP_SHARDING_INFO"])
        part = tensors(file)["blocks.0.attn.qkv.weight"]
        assert part[1] == [18, 24]
        assert offsets["blocks.0.attn.qkv.weight"]["saved_offsets"] == [18 * rank, 0]
    # What PyTorch merged is a checkpoint to us, too.
    recipe, *rest = WORDS
    file = tmp_path / "model-00001-of-00001.safetensors"
    merged = trained(recipe, "test", *rest, f"checkpoint={file}")
    own = trained(recipe, "test", *rest, f"checkpoint={folder}")
    assert values(merged.stdout) == values(own.stdout)
    assert "val_accuracy" in values(own.stdout)


@pytest.mark.parametrize(
    "source, strategy, world",
    [
        ("sharded", "fsdp", 1),
        ("sharded", "fsdp", 2),
        ("sharded", "fsdp", 8),
        ("sharded", "ddp", 2),
        ("full", "fsdp", 2),
        ("full", "ddp", 1),
        ("ddp", "fsdp", 4),
        ("ddp", "fsdp", 1),
    ],
)
def test_any_checkpoint_resumes_any_group(tmp_path, halves, source, strategy, world):
    words = [*WORDS, "optim.schedule=constant", f"trainer.strategy={strategy}"]
    words += [f"trainer.resume={halves[source]}"]
    resumed = run(tmp_path, words, world)
    table = metrics(resumed)
    assert [row["step"] for row in table] == [str(i) for i in range(7, 13)]
    expected = [row for row in metrics(halves["whole"]) if int(row["step"]) > 6]
    for mine, theirs in zip(table, expected):
        assert float(mine["loss"]) == pytest.approx(float(theirs["loss"]), rel=1e-4)


def test_a_format_replaces_the_other_in_place(tmp_path):
    words = [*FSDP, "optim.schedule=constant"]
    run_ranks(tmp_path, [*words, "trainer.max_steps=2", f"out={tmp_path / 'run'}"])
    path = last(tmp_path / "run")
    assert path.is_dir()
    words += [f"out={tmp_path / 'run'}", "trainer.resume=auto"]
    full = [*words, "trainer.checkpoint_format=full", "trainer.max_steps=4"]
    run_ranks(tmp_path, full)
    assert path.is_file() and metadata(path)["lockstep.step"] == "4"
    run_ranks(tmp_path, [*words, "trainer.max_steps=6"])
    assert path.is_dir()
    left = {p.name for p in path.parent.iterdir()}
    assert left == {"best.safetensors", "last.safetensors"}


def test_pretrained_weights_reach_every_part(tmp_path, halves):
    """Loaded by rank 0, seen by all: the first loss is that of one rank."""
    words = [*WORDS, f"model.weights={halves['full']}", "trainer.max_steps=1"]
    one = run(tmp_path / "one", words, 1)
    two = run(tmp_path / "two", [*words, "trainer=fsdp"], 2)
    assert floats(two, "loss") == pytest.approx(floats(one, "loss"), rel=1e-5)


def test_the_verb_test_gathers_weights(tmp_path, halves):
    recipe, *rest = WORDS
    words = [recipe, "test", *rest, f"checkpoint={halves['sharded']}"]
    alone = trained(*words)
    ranks = run_ranks(tmp_path, [*words, "trainer=fsdp"], 2)
    shown, again = values(alone.stdout), values(ranks.output(0))
    assert shown and shown.keys() == again.keys()
    for name, value in shown.items():
        assert float(again[name]) == pytest.approx(float(value), rel=1e-5)


@pytest.mark.parametrize(
    "extra",
    [
        ["ema=0.9"],
        ["trainer.recompute=block"],
        ["trainer.recompute=attention"],
        ["data.batch_size=auto:4", "mixup=0.2"],
    ],
)
def test_what_else_vit_can_do(tmp_path, extra):
    words = [*VIT, "flip=false", "optim.lr=1e-3", "data.batch_size=4", *extra]
    replicas = run(tmp_path / "ddp", words, 2)
    sharded = run(tmp_path / "fsdp", [*words, "trainer=fsdp"], 2)
    assert_same_curves(replicas, sharded)


def test_an_average_of_parts_resumes(tmp_path):
    words = [*FSDP, "ema=0.9", "optim.schedule=constant"]
    whole = run(tmp_path / "whole", words, 2)
    run_ranks(tmp_path, [*words, "trainer.max_steps=5", f"out={tmp_path / 'run'}"])
    run_ranks(tmp_path, [*words, "trainer.resume=auto", f"out={tmp_path / 'run'}"])
    assert tensors(last(tmp_path / "run")) == tensors(last(whole))


# Bad input.


def test_a_recipe_without_blocks_refuses(tmp_path):
    refused(
        train(*DCGAN, "trainer=fsdp", f"out={tmp_path / 'run'}"),
        "trainer.strategy=fsdp",
        "recipe 'dcgan' has no blocks to shard",
        "ddp",
    )
    refused(
        train(*VIT, "trainer.checkpoint_format=sharded", f"out={tmp_path / 'run'}"),
        "trainer.checkpoint_format=sharded needs trainer.strategy=fsdp",
    )


def damaged(tmp_path, halves):
    copy = tmp_path / "damaged"
    shutil.copytree(halves["sharded"], copy)
    return copy


def resume(copy, tmp_path, *more):
    words = [*FSDP, f"trainer.resume={copy}", f"out={tmp_path / 'run'}", *more]
    return train(*words)


def test_a_missing_or_damaged_shard_is_named(tmp_path, halves):
    copy = damaged(tmp_path, halves)
    third = copy / SHARD.format(3)
    content = third.read_bytes()
    third.unlink()
    refused(resume(copy, tmp_path), str(third), "missing", "written by 4 ranks")
    third.write_bytes(content[:-100])
    refused(resume(copy, tmp_path), str(third), "cut short")
    third.write_bytes(b"")
    refused(resume(copy, tmp_path), str(third))
    third.write_bytes(content)
    # A shard of another moment.
    other = tmp_path / "other"
    words = [*FSDP, "trainer.max_steps=3", f"out={other}"]
    run_ranks(tmp_path, words, 4)
    shutil.copy(last(other) / third.name, third)
    refused(resume(copy, tmp_path), str(third), "lockstep.step", "'3'", "'6'")
    third.write_bytes(content)
    # One too many.
    shutil.copy(third, copy / SHARD.format(5))
    refused(resume(copy, tmp_path), "5 shards", "4 ranks")
    (copy / SHARD.format(5)).unlink()
    # Nothing but a folder.
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(resume(empty, tmp_path), str(empty), "without shards")
    # Whole again, it resumes.
    assert resume(copy, tmp_path, "optim.schedule=constant").returncode == 0


def test_a_shard_that_does_not_say_where_it_belongs(tmp_path, halves):
    copy = damaged(tmp_path, halves)
    second = copy / SHARD.format(2)
    about = metadata(second)
    for info in ("", "[]", "{}", '{"pos_embed": {"saved_offsets": [-1, 0, 0]}}'):
        about["DCP_SHARDING_INFO"] = info
        save_file(load_file(second), second, metadata=about)
        refused(resume(copy, tmp_path), str(second), "DCP_SHARDING_INFO")


def test_shards_of_another_model(tmp_path, halves):
    refused(
        resume(halves["sharded"], tmp_path, "model.dim=48"),
        str(halves["sharded"]),
        "[1, 1, 24]",
        "[1, 1, 48]",
    )
    refused(resume(halves["sharded"], tmp_path, "model.depth=3"), "blocks.2")
    refused(resume(halves["sharded"], tmp_path, "model.depth=1"), "blocks.1")
    other = [*DCGAN, f"trainer.resume={halves['sharded']}", f"out={tmp_path / 'd'}"]
    refused(train(*other), "recipe 'vit', not of 'dcgan'")


@pytest.mark.parametrize("form", ["sharded", "full"])
def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, form):
    """Room for one checkpoint and a half: the second does not fit. All ranks
    end, the old one stays whole, and nothing lies beside it."""
    words = [*FSDP, "trainer.checkpoint_every=2", "optim.schedule=constant"]
    words += [f"trainer.checkpoint_format={form}"]
    first = run(tmp_path / "first", [*words, "trainer.max_steps=2"], 2)
    files = [last(first)] if form == "full" else list(last(first).iterdir())
    size = sum(file.stat().st_size for file in files)
    with Mounted(tmp_path / "disk", f"size={size * 3 // 2 // 4096 * 4}k") as disk:
        words += [f"trainer.checkpoint_dir={disk}", f"out={tmp_path / 'run'}"]
        with Ranks(tmp_path, words, 2) as ranks:
            codes = ranks.wait(60)
            assert codes[0] == 1 and codes[1] in (1, 3), ranks.output()
            text = ranks.output()
        assert "writing the checkpoint" in text and "No space left" in text
        assert tensors(disk / "last.safetensors") == tensors(last(first))
        assert not [p for p in disk.iterdir() if p.suffix != ".safetensors"]
