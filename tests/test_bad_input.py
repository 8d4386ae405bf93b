"""Bad input and bad luck: each case ends with a documented code and a message
that names the place and what to do, never with a crash or a hang."""

import gzip
import json
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import time

import pytest
from trainer import (
    DCGAN,
    LOCKSTEP,
    TRAIN,
    VIT,
    Ranks,
    assert_same_checkpoint,
    clean_environment,
    events,
    free_port,
    metadata,
    metrics,
    refused,
    run_ranks,
    tensors,
    train,
    trained,
    wait_until,
)


# The command line and the configuration.


@pytest.mark.parametrize(
    "words, parts",
    [
        ([], ["no recipe given"]),
        (["dcgna"], ["unknown recipe 'dcgna'", "dcgan"]),
        (["dcgan", "--hepl"], ["unknown option '--hepl'", "--help"]),
        (["dcgan", "tset"], ["'tset'", "test"]),
        (["dcgan", "data=cifar01"], ["cifar01", "cifar10"]),
        (["dcgan", "trainer=dpp"], ["dpp", "ddp"]),
        (["dcgan", "experiment=smal"], ["smal", "small"]),
        (["dcgan", "trainer.max_epoch=3"], ["trainer.max_epoch", "max_epochs"]),
        (["dcgan", "optm.lr=3"], ["optm", "optim"]),
        (["vit", "model.hedas=3"], ["model.hedas", "heads"]),
        (["dcgan", "optim.lr=fast"], ["optim.lr", "fast", "number"]),
        (["dcgan", "optim.lr=-1"], ["optim.lr", "-1"]),
        (["dcgan", "optim.lr=.inf"], ["optim.lr", "above 0"]),
        (["dcgan", "optim.beta1=1"], ["optim.beta1", "below 1"]),
        (["vit", "mixup=.inf"], ["mixup", "between 0 and 1000"]),
        (["vit", "model.dim=3000000"], ["model.dim", "65536"]),
        (["dcgan", "model.ngf=3000000000"], ["model.ngf", "65536"]),
        (["dcgan", "model.nz=9000000000000000000"], ["model.nz", "65536"]),
        (["esrgan", "model.filters=9000000000"], ["model.filters", "65536"]),
        (["vit", "data.classes=3000000000"], ["data.classes", "1 and 1000"]),
        (["vit", "data.length=9223372036854775807"], ["data.length"]),
        (["vit", "trainer.min_epochs=3", "trainer.max_epochs=2"], ["min_epochs=3"]),
        (["vit", "trainer.resume="], ["trainer.resume= is empty", "none, auto"]),
        (["dcgan", "data.batch_size=0"], ["data.batch_size", "0"]),
        (["dcgan", "data.batch_size=2.5"], ["data.batch_size", "2.5"]),
        (["vit", "flip=perhaps"], ["flip", "perhaps", "true"]),
        (["dcgan", "trainer.precision=fp8"], ["precision", "fp8", "bf16"]),
        (["dcgan", "data.image_size=48"], ["image_size 48", "64"]),
        (["vit", "data.image_size=30", "model.patch=16"], ["30", "16", "multiple"]),
        (["vit", "model.dim=100", "model.heads=3"], ["100", "3", "multiple"]),
        (["vit", "model.name=vit_huge"], ["vit_huge", "vit_base_patch32_224"]),
        (["dcgan", "trainer.max_epochs=0"], ["max_epochs", "never end"]),
        (["dcgan", "trainer.devices=4"], ["trainer.devices=4", "started 1"]),
        (["dcgan", "trainer.device=cuda"], ["trainer.device=cuda"]),
        (["esrgan", "data.image_size=256"], ["data.image_size=256", "hr_height"]),
        (["vit", "test"], ["checkpoint="]),
        (["vit", "--config"], ["--config needs a file"]),
        (["vit", "--config", "absent.yaml"], ["absent.yaml"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command(tmp_path, words, parts):
    if "test" in words:
        words = [*VIT[:1], "test", *VIT[1:]]
    refused(train(*words, cwd=tmp_path), *parts)
    assert not (tmp_path / "runs").exists()


def test_a_config_file_is_named_with_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("optim:\n  lr: 1e-3\ntrainer:\n  max_epohcs: 3\n")
    refused(train("dcgan", "--config", file), f"{file}:4", "max_epohcs", "max_epochs")
    file.write_text("optim: {lr: [1, 2]}\n")
    refused(train("dcgan", "--config", file), f"{file}:1", "lr")
    file.write_text("optim: {lr: 1\n")
    refused(train("dcgan", "--config", file), f"{file}:")
    file.write_text("trainr:\n  max_epochs: 3\noptmi:\n\n  lr: 1e-3\n")
    refused(
        train("dcgan", "--config", file),
        f"{file}:1: unknown key 'trainr'; did you mean 'trainer'?",
        f"{file}:3: unknown key 'optmi'; did you mean 'optim'?",
    )


def test_the_job_of_a_run_of_its_own_is_a_configuration(tmp_path):
    done = train(*VIT, "trainer.max_steps=1", f"out={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    job = tmp_path / "run" / "job.yaml"
    again = train(VIT[0], "--config", job, "--print-config")
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines() == job.read_text().splitlines()[1:]
    refused(train("dcgan", "--config", job), f"{job}:1", "'vit'", "'dcgan'")


@pytest.mark.parametrize(
    "environment, parts",
    [
        ({"RANK": 5, "WORLD_SIZE": 2}, ["RANK=5", "WORLD_SIZE=2"]),
        ({"RANK": 0}, ["RANK", "WORLD_SIZE"]),
        ({"WORLD_SIZE": 2}, ["WORLD_SIZE=2", "not RANK"]),
        ({"RANK": "", "WORLD_SIZE": 2}, ["RANK is empty"]),
        ({"RANK": "one", "WORLD_SIZE": 2}, ["RANK='one'", "whole number"]),
        ({"RANK": 0, "WORLD_SIZE": 2}, ["MASTER_ADDR"]),
        (
            {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "::1", "MASTER_PORT": 70000},
            ["MASTER_PORT=70000"],
        ),
    ],
)
def test_a_rank_environment_that_does_not_fit(environment, parts):
    refused(train(*VIT, env=clean_environment(**environment)), *parts)


def test_more_ranks_than_the_configuration_asks_for(tmp_path):
    with Ranks(tmp_path, [*VIT, "trainer.devices=4"]) as ranks:
        assert ranks.wait(30) == [2, 2]
        assert "asks for 4 ranks, but the launcher started 2" in ranks.output(0)
    with Ranks(tmp_path, [*VIT, "trainer=single"]) as ranks:
        assert ranks.wait(30) == [2, 2]
        assert "trainer.strategy=ddp" in ranks.output(1)


def test_nodes_alone_leave_the_rest_to_the_launcher(tmp_path):
    """As `--help` says of both keys: 0 is "as started"."""
    for key in ("trainer.num_nodes=2", "trainer.devices=2"):
        with Ranks(tmp_path, [*VIT, key, "--print-config"]) as ranks:
            assert ranks.wait(30) == [0, 0], ranks.output(0)


def test_a_global_batch_that_does_not_divide(tmp_path):
    with Ranks(tmp_path, [*VIT, "data.global_batch_size=7"]) as ranks:
        assert ranks.wait(30) == [2, 2]
        assert "data.global_batch_size=7 is not a multiple of 2" in ranks.output(0)


# Data.


def test_missing_data_names_the_command_that_fetches_it(tmp_path):
    env = clean_environment(LOCKSTEP_DATA=tmp_path / "cache")
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("cifar10", "mnist", "fashion_mnist"):
        words = [*VIT, f"data={name}", f"out={tmp_path / 'run'}"]
        if name != "fashion_mnist":  # which a Debian package may have brought
            refused(train(*words, env=env), f"lockstep data get {name}")
        refused(train(*words, f"data.root={empty}", env=env), str(empty))
    missing = tmp_path / "nowhere"
    refused(
        train(*VIT, "data=folder", f"data.root={missing}", cwd=tmp_path), str(missing)
    )


def test_a_batch_larger_than_the_shard(tmp_path):
    with Ranks(
        tmp_path, [*VIT, "data.batch_size=25", f"out={tmp_path / 'run'}"]
    ) as ranks:
        assert ranks.wait(60) == [2, 2], ranks.output()
        assert (
            "data.batch_size=25 is larger than a rank's shard of 24 samples "
            "(48 samples on 2 ranks)" in ranks.output(0)
        )


@pytest.mark.parametrize("size", [10**6, 4 * 10**9, 10**12])
def test_a_giant_batch_is_refused_without_trials(tmp_path, size):
    done = train(*VIT, f"data.batch_size={size}", f"out={tmp_path / 'run'}", timeout=60)
    refused(done, f"data.batch_size={size} is larger than a rank's shard of 48")


def write_idx(folder, prefix, count):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = bytes(range(256)) * (count * 28 * 28 // 256 + 1)
    images = struct.pack(">IIII", 2051, count, 28, 28) + pixels[: count * 28 * 28]
    labels = struct.pack(">II", 2049, count) + bytes(i % 10 for i in range(count))
    paths = []
    for name, data in (("images-idx3", images), ("labels-idx1", labels)):
        paths.append(folder / f"{prefix}-{name}-ubyte.gz")
        paths[-1].write_bytes(gzip.compress(data))
    return paths


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def damage_bytes(path):
    data = bytearray(path.read_bytes())
    for i in range(len(data) // 2, min(len(data), len(data) // 2 + 40)):
        data[i] ^= 0x5A
    path.write_bytes(data)


def damage_magic(path):
    path.write_bytes(gzip.compress(b"\0" * 64))


def damage_empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_bytes, damage_magic, damage_empty]
)
@pytest.mark.parametrize("which", [0, 1], ids=["images", "labels"])
def test_a_damaged_data_set_is_named(tmp_path, damage, which):
    root = tmp_path / "set"
    train_files = write_idx(root, "train", 64)
    write_idx(root, "t10k", 16)
    words = [*VIT, "data=mnist", f"data.root={root}", "trainer.max_steps=1"]
    if damage is damage_cut and which == 0:
        trained(*words, f"out={tmp_path / 'good'}")
    damage(train_files[which])
    refused(train(*words, f"out={tmp_path / 'run'}"), str(train_files[which]))


def test_a_damaged_picture_is_named(tmp_path):
    from PIL import Image

    root = tmp_path / "set"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        for i in range(4):
            Image.effect_noise((20, 20), 50).save(root / name / f"{i}.png")
    bad = root / "dog" / "2.png"
    damage_cut(bad)
    words = [*VIT, "data=folder", f"data.root={root}", "data.batch_size=2"]
    refused(train(*words, f"out={tmp_path / 'run'}"), str(bad))


def make_images(folder, count=4):
    from PIL import Image

    folder.mkdir(parents=True)
    for i in range(count):
        Image.effect_noise((20, 20), 50).save(folder / f"{i}.png")


def test_images_without_classes_are_no_input_of_vit(tmp_path):
    root = tmp_path / "set"
    make_images(root)
    words = [*VIT, "data=folder", f"data.root={root}", f"out={tmp_path / 'run'}"]
    for trainer in ("single", "fsdp"):
        done = train(*words, f"trainer={trainer}")
        refused(done, str(root), "images without classes", "<class>/*.png")


def test_one_class_is_nothing_to_tell_apart(tmp_path):
    make_images(tmp_path / "set" / "cats")
    words = [*VIT, "data=folder", f"data.root={tmp_path / 'set'}"]
    refused(train(*words, f"out={tmp_path / 'run'}"), "one class, 'cats'", "two and more")


def test_early_stop_without_validation_is_told(tmp_path):
    root = tmp_path / "set"
    for name in ("cat", "dog"):
        make_images(root / name)
    words = [*VIT, "data=folder", f"data.root={root}", f"out={tmp_path / 'run'}"]
    done = trained(*words, "trainer.early_stop=2")
    assert done.stderr.count("trainer.early_stop=2 does nothing") == 1


def test_few_images_are_held_out(tmp_path):
    """Fewer than a batch, also of training images when a model is only tested."""
    root, run = tmp_path / "set", tmp_path / "run"
    for name in ("train/cat", "train/dog"):
        make_images(root / name, 8)
    make_images(root / "test" / "cat", 3)
    words = ["data=folder", f"data.root={root}", "data.batch_size=8"]
    trained(*DCGAN, *words, f"out={run}")
    assert all(float(row["val_swd"]) > 0 for row in metrics(run)[1::2])
    last = run / "checkpoints" / "last.safetensors"
    done = trained("dcgan", "test", f"checkpoint={last}", "data.batch_size=64")
    assert "val_swd" in done.stdout


def test_a_run_that_failed_is_closed(tmp_path):
    run = tmp_path / "run"
    done = train(*VIT, "optim.schedule=constant", "optim.lr=1e30", f"out={run}")
    refused(done, "not a number", code=1)
    merged = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert merged[-1]["kind"] == "exit" and merged[-1]["code"] == 1
    assert len((run / "timing.csv").read_text().splitlines()) > 1
    assert "not a number" in (run / "logbook.md").read_text()


def test_the_logbooks_command_is_for_a_shell(tmp_path):
    run = tmp_path / "it's a run"
    trained(*VIT, "trainer.max_steps=1", f"out={run}")
    text = (run / "logbook.md").read_text()
    (line,) = [one for one in text.splitlines() if one.startswith("lockstep-train ")]
    assert shlex.split(line)[-1] == f"out={run}"


def test_an_output_that_takes_nothing_is_told():
    for words in (["--list"], ["vit", "--print-config"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [TRAIN, *words], stdout=full, stderr=subprocess.PIPE, timeout=60
            )
        assert done.returncode == 1 and b"No space left" in done.stderr, words


def test_a_new_run_in_an_old_folder_is_not_mixed_with_it(tmp_path):
    run = tmp_path / "run"
    words = [*VIT, f"out={run}"]
    run_ranks(tmp_path, [*words, "trainer.max_steps=6"])
    trained(*words, "trainer.max_steps=4")
    steps = [line.split(",")[:2] for line in (run / "timing.csv").read_text().splitlines()]
    assert steps[1:] == [["0", str(step)] for step in range(1, 5)]
    assert (run / "events.jsonl").read_text().count('"kind":"init"') == 1
    assert len(list((run / "tensorboard").iterdir())) == 1
    # A run that goes on appends.
    trained(*words, "trainer.max_steps=6", "trainer.resume=auto")
    steps = [line.split(",")[:2] for line in (run / "timing.csv").read_text().splitlines()]
    assert steps[1:] == [["0", str(step)] for step in range(1, 7)]
    assert len(list((run / "tensorboard").iterdir())) == 2


def test_a_checkpoint_from_elsewhere_begins_a_new_run_in_an_old_folder(tmp_path):
    old, other = tmp_path / "old", tmp_path / "other"
    trained(*VIT, "trainer.max_steps=6", f"out={old}")
    trained(*VIT, "trainer.max_steps=2", f"out={other}")
    start = other / "checkpoints" / "last.safetensors"
    trained(*VIT, "trainer.max_steps=4", f"trainer.resume={start}", f"out={old}")
    steps = [line.split(",")[:2] for line in (old / "timing.csv").read_text().splitlines()]
    assert steps[1:] == [["0", "3"], ["0", "4"]]
    assert (old / "events.jsonl").read_text().count('"kind":"init"') == 1
    assert (old / "checkpoints" / "previous-last.safetensors").exists()
    # From its own folder it goes on.
    own = old / "checkpoints" / "last.safetensors"
    trained(*VIT, "trainer.max_steps=5", f"trainer.resume={own}", f"out={old}")
    assert (old / "events.jsonl").read_text().count('"kind":"init"') == 2


def test_a_start_that_is_refused_leaves_the_old_run_as_it_was(tmp_path):
    run = tmp_path / "run"

    def everything():
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    trained(*VIT, "trainer.max_steps=4", f"out={run}")
    before = everything()
    refused(train(*VIT, "data.batch_size=100000", f"out={run}"), "data.batch_size")
    assert everything() == before
    refused(train("forest", "data.train=absent.csv", "data.label=y", f"out={run}"), "absent.csv")
    assert everything() == before
    resumed = ["trainer.resume=auto", "model.dim=48", f"out={run}"]
    refused(train(*VIT, *resumed), str(run / "checkpoints" / "last.safetensors"))
    assert everything() == before
    # A folder without a run keeps what was told of the failure.
    fresh = tmp_path / "fresh"
    refused(train(*VIT, "data.batch_size=100000", f"out={fresh}"), "data.batch_size")
    assert '"kind":"exit"' in (fresh / "events.jsonl").read_text()


def test_a_class_that_the_held_out_split_lacks(tmp_path):
    root = tmp_path / "set"
    for name in ("train/cat", "train/dog", "test/cat"):
        make_images(root / name)
    (root / "test" / "dog").mkdir()
    words = [*VIT, "data=folder", f"data.root={root}", f"out={tmp_path / 'run'}"]
    text = refused(train(*words), "1 of the training split's 2 classes", "with an image")
    assert "empty folder" not in text


# Checkpoints.


@pytest.mark.parametrize("recipe", ["vit", "dcgan", "deepcoral", "esrgan", "forest"])
def test_a_test_tells_its_checkpoint_first(recipe, tmp_path):
    """Before data that are not there either."""
    env = clean_environment(LOCKSTEP_DATA=tmp_path / "cache")
    none, bad = tmp_path / "none.safetensors", tmp_path / "bad.safetensors"
    bad.write_bytes(b"no checkpoint")
    for words in ([], [f"checkpoint={none}"], [f"checkpoint={bad}"]):
        done = train(recipe, "test", *words, env=env, cwd=tmp_path)
        refused(done, words[0][11:] if words else "'test' needs checkpoint=FILE")


def test_ranks_tell_their_checkpoint_first(tmp_path):
    none = tmp_path / "none.safetensors"
    words = ["vit", "test", f"checkpoint={none}", "data=cifar10", "data.root=nowhere"]
    with Ranks(tmp_path, words, cwd=lambda rank: tmp_path) as ranks:
        assert ranks.wait(60) == [2, 2], ranks.output()
        assert str(none) in ranks.output(0) and str(none) in ranks.output(1)


def test_a_test_of_another_recipe_is_told_before_data(tmp_path, finished):
    env = clean_environment(LOCKSTEP_DATA=tmp_path / "cache")
    done = train("dcgan", "test", f"checkpoint={finished}", env=env, cwd=tmp_path)
    refused(done, str(finished), "of the recipe 'vit', not of 'dcgan'")


def test_nothing_to_resume_is_told(tmp_path):
    run = tmp_path / "run"
    done = trained(*VIT, f"out={run}", "trainer.resume=auto", "trainer.max_steps=1")
    assert f"nothing to resume at {run / 'checkpoints'}" in done.stdout + done.stderr
    assert "0.0 samples/s" not in done.stdout, "one step has no speed"


@pytest.mark.parametrize("sharded", [False, True], ids=["file", "shards"])
def test_a_new_run_never_resumes_an_old_one(tmp_path, sharded):
    """Killed before its first checkpoint, in the folder of one that finished."""
    run, words = tmp_path / "run", list(VIT)
    if sharded:
        words += ["trainer.strategy=fsdp", "trainer.checkpoint_format=sharded"]
    trained(*words, "trainer.max_steps=3", f"out={run}")
    last = run / "checkpoints" / "last.safetensors"
    old = tensors(last)
    with Ranks(tmp_path, [*words, "data.length=48000", f"out={run}"], 1) as ranks:
        wait_until(lambda: not last.exists(), what="the new run to begin")
        ranks.kill()
    assert tensors(last.with_name("previous-last.safetensors")) == old
    words += ["trainer.resume=auto", "trainer.max_steps=1", f"out={run}"]
    done = trained(*words)
    assert "nothing to resume" in done.stdout + done.stderr
    assert metadata(last)["lockstep.step"] == "1"


def test_weights_of_the_run_before(tmp_path):
    """They are read before the new run sets them aside."""
    run = tmp_path / "run"
    words = [*VIT, "trainer.max_steps=2", f"out={run}"]
    trained(*words)
    last = run / "checkpoints" / "last.safetensors"
    done = trained(*words, f"model.weights={last}")
    assert "stay as initialised" not in done.stderr and last.exists()


def listens(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_a_signal_ends_a_rank_that_waits_for_others(tmp_path):
    port = free_port()
    env = clean_environment(
        RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2,
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
    )
    alone = subprocess.Popen([TRAIN, *VIT, f"out={tmp_path / 'alone'}"], env=env)
    try:
        wait_until(lambda: listens(port), what="rank 0 to open its port")
        alone.send_signal(signal.SIGTERM)
        assert alone.wait(60) == -signal.SIGTERM
    finally:
        alone.kill()
        alone.wait()


@pytest.mark.skipif(not os.path.exists(LOCKSTEP), reason="no control program here")
def test_a_run_under_lockstep_that_is_split_is_told(tmp_path):
    done = subprocess.run(
        [LOCKSTEP, "run", "--runs-dir", tmp_path / "runs", "--", TRAIN, *VIT, "out=here"],
        env=clean_environment(), cwd=tmp_path, timeout=120, capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out=here splits this run" in done.stdout + done.stderr
    assert (tmp_path / "here" / "metrics.csv").exists()
    assert list((tmp_path / "runs").glob("*/checkpoints/last.safetensors"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = tmp_path_factory.mktemp("finished") / "run"
    trained(*VIT, f"out={run}")
    return run / "checkpoints" / "last.safetensors"


def damage_bit(path):
    data = bytearray(path.read_bytes())
    data[-2000] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_empty, damage_bit, "header", "absent", "metadata"]
)
def test_a_damaged_checkpoint_is_named(tmp_path, finished, damage):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    copy = run / "checkpoints" / "last.safetensors"
    shutil.copy(finished, copy)
    source = "auto"
    if damage == "header":
        data = bytearray(copy.read_bytes())
        data[:8] = struct.pack("<Q", 1 << 60)
        copy.write_bytes(data)
    elif damage == "absent":
        copy.unlink()
        source = copy
    elif damage == "metadata":
        from safetensors.torch import load_file, save_file

        save_file(load_file(finished), copy)
    else:
        damage(copy)
    before = copy.read_bytes() if copy.exists() else b""
    refused(train(*VIT, f"out={run}", f"trainer.resume={source}"), str(copy))
    assert (copy.read_bytes() if copy.exists() else b"") == before
    recipe, *rest = VIT
    if damage != "metadata":
        refused(train(recipe, "test", *rest, f"checkpoint={copy}"), str(copy))


def test_a_damaged_checkpoint_ends_all_ranks(tmp_path, finished):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    copy = run / "checkpoints" / "last.safetensors"
    shutil.copy(finished, copy)
    damage_cut(copy)
    with Ranks(tmp_path, [*VIT, f"out={run}", "trainer.resume=auto"]) as ranks:
        codes = ranks.wait(60)
        assert codes[0] == 2 and codes[1] in (2, 3), ranks.output()
        assert str(copy) in ranks.output(0)


@pytest.mark.parametrize("recipe", ["vit", "dcgan", "esrgan", "forest"])
def test_a_checkpoint_is_not_for_training(recipe, tmp_path):
    """The verb is missing: without a word the run would begin from scratch."""
    done = train(recipe, "checkpoint=old.safetensors", cwd=tmp_path)
    refused(done, f"{recipe} test checkpoint=old.safetensors")
    assert ("trainer.resume=old.safetensors" in done.stderr) == (recipe != "forest")


def test_weights_are_a_file(tmp_path):
    done = train(*VIT, f"model.weights={tmp_path}", f"out={tmp_path / 'run'}")
    refused(done, f"{tmp_path} is a folder; weights are one safetensors file")


def test_a_checkpoint_of_something_else(tmp_path, finished):
    other = [*DCGAN, f"trainer.resume={finished}", f"out={tmp_path / 'a'}"]
    refused(train(*other), str(finished), "recipe 'vit', not of 'dcgan'")
    wider = [*VIT, "model.dim=48", f"trainer.resume={finished}"]
    refused(
        train(*wider, f"out={tmp_path / 'b'}"),
        str(finished),
        "[1, 1, 24]",
        "[1, 1, 48]",
    )
    deeper = [*VIT, "model.depth=3", f"trainer.resume={finished}"]
    refused(train(*deeper, f"out={tmp_path / 'c'}"), "lacks tensor", "blocks.2")
    more_heads = [*VIT, "model.heads=4", f"trainer.resume={finished}"]
    said = (str(finished), "heads=3", "heads=4")
    refused(train(*more_heads, f"out={tmp_path / 'h'}"), *said)
    refused(train("vit", "test", f"checkpoint={finished}", "model.heads=4"), *said)
    flatter = [*VIT, "model.depth=1", f"trainer.resume={finished}"]
    refused(train(*flatter, f"out={tmp_path / 'd'}"), "blocks.1")
    weights = [*VIT, "model.dim=48", f"model.weights={finished}"]
    refused(train(*weights, f"out={tmp_path / 'e'}"), str(finished), "[1, 1, 24]")
    averaged = [*VIT, "ema=0.9", f"trainer.resume={finished}"]
    refused(train(*averaged, f"out={tmp_path / 'f'}"), "lockstep.raw.", "ema=0")
    plain = [*VIT, "optim.name=sgd", f"trainer.resume={finished}"]
    refused(train(*plain, f"out={tmp_path / 'g'}"), "optim.name=")


# The machine.


def test_a_run_directory_that_cannot_be_made(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    refused(train(*VIT, f"out={file / 'run'}"), str(file / "run"))
    with Ranks(tmp_path, [*VIT, f"out={file / 'run'}"]) as ranks:
        assert ranks.wait(60) == [2, 2], ranks.output()
        assert str(file / "run") in ranks.output(1)


class Mounted:
    """A small tmpfs; skips where mounting is not allowed."""

    def __init__(self, folder, options):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "lockstep-test", folder],
            capture_output=True,
        )
        if done.returncode != 0:
            pytest.skip("mounting a tmpfs needs root")

    def __enter__(self):
        return self.folder

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.folder], check=True)


def test_a_read_only_run_directory(tmp_path):
    with Mounted(tmp_path / "disk", "ro,size=1m") as disk:
        done = train(*VIT, f"out={disk / 'run'}")
        refused(done, str(disk / "run"), "Read-only file system")


@pytest.mark.parametrize("world", [1, 2])
def test_a_full_disk_keeps_the_old_checkpoint(tmp_path, world):
    """Room for one checkpoint and a half: the second one does not fit."""
    run = tmp_path / "run"
    words = [*VIT, "trainer.checkpoint_every=2", f"out={run}"]
    trained(*words, "trainer.max_steps=2")
    size = (run / "checkpoints" / "last.safetensors").stat().st_size
    first = tmp_path / "first.safetensors"
    shutil.copy(run / "checkpoints" / "last.safetensors", first)
    shutil.rmtree(run)
    with Mounted(tmp_path / "disk", f"size={size * 3 // 2 // 4096 * 4}k") as disk:
        words += [f"trainer.checkpoint_dir={disk}", "data.global_batch_size=4"]
        with Ranks(tmp_path, words, world) as ranks:
            codes = ranks.wait(60)
            assert codes[0] == 1 and set(codes[1:]) <= {3}, ranks.output()
            text = ranks.output(0)
        assert "writing the checkpoint" in text and "No space left" in text
        assert str(disk) in text
        kept = disk / "last.safetensors"
        assert metadata(kept)["lockstep.step"] == "2"
        assert sorted(tensors(kept)) == sorted(tensors(first))
        assert not [p for p in disk.iterdir() if p.suffix != ".safetensors"]
        # Loadable: it goes on from there once there is room.
        recipe, *rest = words[:-1]
        trained(
            recipe,
            "test",
            *[word for word in rest if not word.startswith("out=")],
            f"checkpoint={kept}",
        )


def test_a_port_in_use(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        words = [*VIT, "trainer.timeout=5s", f"out={tmp_path / 'run'}"]
        with Ranks(tmp_path, words, port=port) as ranks:
            codes = ranks.wait(60)
            assert codes[0] != 0 and codes[1] != 0
            text = ranks.output(0)
    assert f"127.0.0.1:{port}" in text
    assert "Address already in use" in text and "another MASTER_PORT" in text


def test_a_rank_that_never_comes(tmp_path):
    env = clean_environment(
        RANK=0,
        WORLD_SIZE=2,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=free_port(),
    )
    done = train(*VIT, "trainer.timeout=2s", f"out={tmp_path / 'run'}", env=env)
    refused(done, "rank 1", code=3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_by_the_other(tmp_path, victim):
    run = tmp_path / "run"
    words = [*VIT, "trainer.max_epochs=100000", f"out={run}"]
    with Ranks(tmp_path, words) as ranks:
        wait_until(lambda: len(read_rows(run)) > 3, what="step 3")
        ranks.kill(victim)
        begun = time.monotonic()
        codes = ranks.wait(30)
        assert time.monotonic() - begun < 10
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 3, ranks.output(1 - victim)
        assert f"rank {victim}" in ranks.output(1 - victim)


def read_rows(run):
    try:
        return metrics(run)
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("words", [VIT, DCGAN], ids=["vit", "dcgan"])
def test_a_loss_that_is_no_number(tmp_path, words, world):
    """Three good steps with a checkpoint, then a learning rate that explodes."""
    run = tmp_path / "run"
    words = [*words, "optim.schedule=constant", f"out={run}"]
    with Ranks(tmp_path, [*words, "trainer.max_steps=3"], world) as ranks:
        ranks.done()
    good = tmp_path / "good.safetensors"
    last = run / "checkpoints" / "last.safetensors"
    shutil.copy(last, good)
    words += ["trainer.resume=auto", "optim.lr=1e30", "trainer.max_epochs=9"]
    with Ranks(tmp_path, words, world) as ranks:
        assert ranks.wait(60) == [1] * world, ranks.output()
        text = ranks.output(0)
    assert "step 5: rank 0 has a loss that is not a number" in text or (
        "step 4: rank 0 has a loss that is not a number" in text
    ), text
    assert f"the last good checkpoint is {last}" in text and "optim.lr" in text
    assert_same_checkpoint(good, last)


def test_weights_that_are_no_numbers_never_replace_a_checkpoint(tmp_path):
    """The step's loss is still fine, its update is not."""
    run = tmp_path / "run"
    words = [*VIT, "optim.schedule=constant", f"out={run}", "optim.name=sgd"]
    trained(*words, "trainer.max_steps=3")
    good = tmp_path / "good.safetensors"
    last = run / "checkpoints" / "last.safetensors"
    shutil.copy(last, good)
    words += ["trainer.resume=auto", "optim.lr=1e308", "trainer.checkpoint_every=1"]
    done = train(*words)
    refused(done, "step 4: rank 0 has a weight that is not a number", code=1)
    assert_same_checkpoint(good, last)


# A job file: refused before a rank starts.


@pytest.mark.skipif(not os.path.exists(LOCKSTEP), reason="no control program here")
def test_a_mistyped_key_of_a_job_starts_nothing(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: typo\n"
        "procs_per_node: 2\n"
        "train:\n"
        "  recipe: vit\n"
        "  data: {name: synthetic, global_batch_size: 7}\n"
        "  optim:\n"
        "    lrr: 0.1\n"
    )

    def run(*words):
        return subprocess.run(
            [LOCKSTEP, "run", job, "--runs-dir", tmp_path / "runs", *words],
            env=clean_environment(LOCKSTEP_TRAINER_BIN=TRAIN),
            cwd=tmp_path,
            timeout=120,
            capture_output=True,
            text=True,
        )

    refused(run(), f"{job}:7: unknown key 'optim.lrr'", "did you mean 'optim.lr'")
    refused(run("--dry-run"), "optim.lrr")
    refused(run("train.optim.lrr=null", "optim.rate=1"), "command line", "optim.rate")
    # What depends on the number of ranks too.
    job.write_text(job.read_text().replace("lrr", "lr"))
    refused(run(), "data.global_batch_size=7 is not a multiple of 2")
    assert not (tmp_path / "runs").exists()
