"""What a run leaves behind, opened with the tools that people would use."""

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_models import Discriminator, Generator, Vit
from trainer import DCGAN, VIT, events, metadata, rows, run_ranks, trained

TIMING = "rank,step,epoch,samples,data,compute,communication,wait,total"


@pytest.fixture(scope="module")
def dcgan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcgan")
    run = folder / "run"
    run_ranks(
        folder, [*DCGAN, "data.batch_size=12", "sample_every=1", f"out={run}"]
    )
    return run


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    run = tmp_path_factory.mktemp("vit") / "run"
    words = [*VIT, "optim.lr=3e-3", "trainer.max_epochs=6", f"out={run}"]
    return run, words, trained(*words)


def test_the_run_directory_is_complete(dcgan, vit):
    for run, ranks in ((dcgan, 2), (vit[0], 1)):
        names = ["job.yaml", "events.jsonl", "metrics.csv", "timing.csv", "logbook.md"]
        names += ["checkpoints/best.safetensors", "checkpoints/last.safetensors"]
        names += [f"ranks/{rank}.jsonl" for rank in range(ranks)]
        for name in names:
            assert (run / name).stat().st_size > 0, name
        assert list((run / "tensorboard").iterdir())
    assert list((dcgan / "samples").glob("*.png"))


def test_headers_are_the_documented_ones(dcgan, vit):
    for run, metrics in (
        (dcgan, {"loss_d", "loss_g", "d_x", "d_g_z1", "d_g_z2", "val_swd"}),
        (vit[0], {"loss", "accuracy", "val_loss", "val_accuracy"}),
    ):
        timing = (run / "timing.csv").read_text().splitlines()
        assert timing[0] == TIMING
        header = (run / "metrics.csv").read_text().splitlines()[0].split(",")
        assert header[:2] == ["step", "epoch"]
        assert set(header[2:]) == metrics | {"samples_per_second"}


def test_metrics_are_means_over_ranks(dcgan):
    by_step = {}
    for event in events(dcgan, "metric"):
        if "loss_d" in event["values"]:
            by_step.setdefault(event["step"], []).append(event["values"]["loss_d"])
    for row in rows(dcgan / "metrics.csv"):
        values = by_step[int(row["step"])]
        assert len(values) == 2
        assert float(row["loss_d"]) == pytest.approx(sum(values) / 2, rel=1e-12)


def test_events_are_in_order_and_complete(dcgan):
    kinds = [event["kind"] for event in events(dcgan, rank=0)]
    assert kinds[0] == "init" and kinds[-1] == "exit"
    expected = {"init", "phase", "iteration", "metric", "epoch", "checkpoint"}
    assert expected | {"resource", "exit"} <= set(kinds)
    assert kinds.count("iteration") == 4 and kinds.count("epoch") == 2
    for event in events(dcgan):
        assert {"v", "kind", "time", "rank", "node"} <= set(event)
    merged = (dcgan / "events.jsonl").read_text().splitlines()
    assert len(merged) == len(events(dcgan))


def test_tensorboard_reads_scalars_and_images(dcgan):
    board = EventAccumulator(
        str(dcgan / "tensorboard"), size_guidance={"scalars": 0, "images": 0}
    )
    board.Reload()
    tags = board.Tags()
    table = rows(dcgan / "metrics.csv")
    for name in ("loss_d", "loss_g", "val_swd"):
        assert name in tags["scalars"]
        ours = {int(r["step"]): float(r[name]) for r in table if r[name]}
        theirs = {one.step: one.value for one in board.Scalars(name)}
        assert theirs == pytest.approx(ours, rel=1e-6)
    assert set(tags["images"]) == {"fake", "real"}
    image = board.Images("fake")[-1]
    assert (image.width, image.height) == grid_size(64, 16)
    assert image.encoded_image_string.startswith(b"\x89PNG")


def grid_size(count, side):
    """torchvision's make_grid: 8 a row, 2 pixels around each."""
    columns, lines = min(8, count), -(-count // 8)
    return columns * (side + 2) + 2, lines * (side + 2) + 2


def test_picture_grids(dcgan):
    fake = Image.open(dcgan / "samples" / "fake-000004.png")
    assert fake.mode == "RGB" and fake.size == grid_size(64, 16)
    real = Image.open(dcgan / "samples" / "real-000004.png")
    assert real.size == grid_size(12, 16)
    # Padding is black, pictures are not.
    assert real.getpixel((0, 0)) == (0, 0, 0)
    assert len(set(real.crop((2, 2, 18, 18)).tobytes())) > 10


def test_a_generator_loads_into_pytorch(dcgan):
    """Our weights in PyTorch draw the very pictures that we drew."""
    state = load_file(dcgan / "checkpoints" / "last.safetensors")
    generator = Generator(16, 3, 8, 4)
    part = {k[10:]: v for k, v in state.items() if k.startswith("generator.")}
    generator.load_state_dict(part)  # strict: every name and shape
    part = {k[14:]: v for k, v in state.items() if k.startswith("discriminator.")}
    Discriminator(16, 3, 4).load_state_dict(part)
    rest = [k for k in state if not k.startswith(("generator.", "discriminator."))]
    assert rest and all(k.startswith("lockstep.") for k in rest)
    generator.eval()
    torch.manual_seed(1000003)  # the noise of the grids is fixed by the seed
    with torch.no_grad():
        images = generator(torch.randn(64, 8, 1, 1))
    drawn = Image.open(dcgan / "samples" / "fake-000004.png")
    for index in (0, 9, 63):
        x, y = 2 + index % 8 * 18, 2 + index // 8 * 18
        ours = torch.tensor(numpy.asarray(drawn.crop((x, y, x + 16, y + 16))).reshape(-1, 3))
        theirs = ((images[index] + 1) * 127.5).round().permute(1, 2, 0).reshape(-1, 3)
        assert (ours - theirs).abs().max() <= 1


def test_vit_test_verb_repeats_the_validation(vit):
    run, words, _ = vit
    told = {
        int(row["step"]): row for row in rows(run / "metrics.csv") if row["val_loss"]
    }
    for name in ("best", "last"):
        path = run / "checkpoints" / f"{name}.safetensors"
        recipe, *rest = words
        done = trained(recipe, "test", *rest, f"checkpoint={path}")
        told_first = done.stdout.split("\n\n")[0]
        values = dict(line.split() for line in told_first.splitlines())
        row = told[int(metadata(path)["lockstep.step"])]
        for key in ("val_accuracy", "val_loss"):
            assert float(values[key]) == pytest.approx(float(row[key]), rel=1e-5)
    best = max(float(row["val_accuracy"]) for row in told.values())
    assert float(
        metadata(run / "checkpoints" / "best.safetensors")["lockstep.best"]
    ) == pytest.approx(best)


def test_a_vit_goes_to_pytorch_and_back(vit, tmp_path):
    run, words, _ = vit
    state = load_file(run / "checkpoints" / "best.safetensors")
    model = Vit(16, 8, 24, 2, 3)
    plain = {k: v for k, v in state.items() if not k.startswith("lockstep.")}
    model.load_state_dict(plain)
    # Pretrained weights with 5 classes: the head is kept as initialised.
    plain["head.weight"], plain["head.bias"] = torch.zeros(5, 24), torch.zeros(5)
    save_file(plain, tmp_path / "weights.safetensors")
    done = trained(
        *words[:-1],
        f"model.weights={tmp_path / 'weights.safetensors'}",
        "trainer.max_steps=1",
        "optim.lr=1e-30",
        f"out={tmp_path / 'run'}",
    )
    assert "kept     head.weight [10, 24]: the file has [5, 24]" in done.stderr
    assert "kept     head.bias [10]: the file has [5]" in done.stderr
    after = load_file(tmp_path / "run" / "checkpoints" / "last.safetensors")
    assert torch.equal(after["blocks.0.attn.qkv.weight"], plain["blocks.0.attn.qkv.weight"])
    assert after["head.weight"].shape == (10, 24)


def test_vit_learns(vit):
    table = [row for row in rows(vit[0] / "metrics.csv") if row["val_accuracy"]]
    assert float(table[-1]["val_loss"]) < float(table[0]["val_loss"])


def test_the_logbook_has_the_key_facts(dcgan):
    text = (dcgan / "logbook.md").read_text().replace("\\_", "_")
    for word in ("dcgan", "loss_d", "val_swd", "samples", "checkpoints", "tensorboard"):
        assert word in text, word
    assert "lockstep-train dcgan data=synthetic" in text  # repeats it
    plots = [line for line in text.splitlines() if "](plots/" in line]
    assert plots
    for line in plots:
        name = line.split("](")[1].split(")")[0]
        svg = (dcgan / name).read_text()
        assert svg.lstrip().startswith(("<svg", "<?xml"))


def test_the_end_says_what_happened(vit):
    run, _, done = vit
    assert "done: 72 steps" in done.stdout and "samples/s" in done.stdout
    assert f"run directory: {run}" in done.stdout


def test_help_lists_every_key():
    text = trained("vit", "--help").stdout
    for key in ("trainer.max_epochs", "data.batch_size", "optim.lr", "model.weights"):
        assert key in text
    assert "experiment=tiny" in text and "data=cifar10|" in text
    assert "usage: lockstep-train" in trained("--help").stdout
    listed = trained("--list").stdout
    for word in ("dcgan", "vit", "data=cifar10", "trainer=ddp", "experiment=tiny"):
        assert word in listed
    assert trained("--version").stdout.startswith("lockstep-train 0.")


@pytest.mark.parametrize("words", [VIT, DCGAN, ["vit", "experiment=tiny"], ["dcgan"]])
def test_print_config_round_trip(tmp_path, words):
    printed = trained(*words, "--print-config").stdout
    file = tmp_path / "config.yaml"
    file.write_text(printed)
    assert trained(words[0], "--config", file, "--print-config").stdout == printed
    changed = trained(words[0], "--config", file, "optim.lr=0.125", "--print-config")
    assert "0.125" in changed.stdout


def test_a_printed_config_trains_the_same(tmp_path, vit):
    run, words, _ = vit
    printed = trained(*words[:-1], "--print-config").stdout
    (tmp_path / "config.yaml").write_text(printed)
    trained("vit", "--config", tmp_path / "config.yaml", f"out={tmp_path / 'run'}")
    assert [row["loss"] for row in rows(tmp_path / "run" / "metrics.csv")] == [
        row["loss"] for row in rows(run / "metrics.csv")
    ]
    logbook = (tmp_path / "run" / "logbook.md").read_text()
    assert f"lockstep-train vit --config {tmp_path / 'config.yaml'}" in logbook


def test_an_experiment_file_sets_many_keys(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("optim: {lr: 0.5}\ntrainer: {max_epochs: 3}\n")
    text = trained("vit", f"experiment={file}", "--print-config").stdout
    assert "lr: 0.5" in text and "max_epochs: 3" in text


def test_max_seconds_ends_in_time(tmp_path):
    run = tmp_path / "run"
    trained(
        *VIT,
        "trainer.max_epochs=100000",
        "trainer.max_seconds=1",
        f"out={run}",
    )
    (last,) = [e for e in events(run, "checkpoint")][-1:]
    assert last["step"] == int(rows(run / "metrics.csv")[-1]["step"])
    assert float(metadata(run / "checkpoints" / "last.safetensors")["lockstep.seconds"]) >= 1
