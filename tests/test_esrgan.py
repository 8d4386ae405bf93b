"""The recipe esrgan from the outside: phases, folders with bad images, resume,
two ranks, sample sheets, upscaling with and without tiles."""

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch_models import EsrganGenerator, Vgg19Features
from trainer import assert_same_checkpoint, events
from trainer import Ranks, metrics, refused, run_ranks, train, trained

# One dense residual block, 32 x 24: a step takes some hundredths of a second.
SMALL = [
    "esrgan",
    "model.residual_blocks=1",
    "model.filters=8",
    "hr_height=32",
    "hr_width=24",
    "data.batch_size=2",
    "data.workers=1",
    "trainer.device=cpu",
    "trainer.log_every=1",
    "warmup_batches=2",
    "sample_interval=3",
]


def picture(path, seed, size=(40, 36)):
    """A few soft blobs: something that can be enlarged."""
    noise = numpy.random.default_rng(seed).integers(0, 256, (6, 6, 3), numpy.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise).resize(size, Image.BICUBIC).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for i in range(8):
        picture(root / "train" / f"{i}.png", i)
    for i in range(4):
        picture(root / "val" / f"{i}.jpg", 100 + i)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory, folder):
    out = tmp_path_factory.mktemp("esrgan") / "run"
    done = trained(*SMALL, f"data.root={folder}", f"out={out}")
    assert done.stderr.count("without the content term") == 1
    return out


def test_defaults():
    """Those of the original, under the names of this project."""
    text = trained("esrgan", "--print-config").stdout
    wanted = """max_epochs: 2 batch_size: "1" lr: 0.0002 beta1: 0.9 beta2: 0.999
    decay_epoch: 10 workers: 8 hr_height: 128 hr_width: 128 channels: 3
    sample_interval: 5 checkpoint_every: 5000 residual_blocks: 23
    warmup_batches: 500 lambda_adv: 0.005 lambda_pixel: 0.01"""
    words = wanted.split()
    for key, value in zip(words[::2], words[1::2]):
        assert f"{key} {value}" in text, key


def test_phases_metrics_and_pictures(run):
    kinds = [e for e in events(run) if e["kind"] in ("phase", "iteration")]
    seen = []
    for event in kinds:
        if event["kind"] == "phase":
            phase = event["name"]
        else:
            seen.append((event["step"], phase))
    assert seen[:3] == [(1, "warm-up"), (2, "warm-up"), (3, "train")]
    assert {phase for _, phase in seen[2:]} == {"train"}
    assert len(seen) == 8
    table = {int(row["step"]): row for row in metrics(run)}
    assert float(table[2]["loss_d"]) == 0 and float(table[2]["loss_adv"]) == 0
    assert table[2]["loss_g"] == table[2]["loss_pixel"]
    assert float(table[3]["loss_d"]) > 0.1 and float(table[3]["loss_adv"]) > 0.1
    assert float(table[3]["loss_content"]) == 0
    assert 0 < float(table[8]["val_ssim"]) <= 1
    assert float(table[8]["val_psnr"]) > 3
    sheets = sorted((run / "samples").glob("*sheet*.png"))
    assert len(sheets) == 3
    # Low, bicubic and ours beside each other, a row for each held-out image.
    assert Image.open(sheets[0]).size == (3 * (24 + 2) + 2, 4 * (32 + 2) + 2)
    names = load_file(run / "checkpoints" / "last.safetensors")
    assert any(n.endswith("optim.generator.conv1.weight.exp_avg") for n in names)
    assert any(n.endswith("optim.discriminator.model.0.bias.exp_avg_sq") for n in names)


def test_the_sheet_shows_nearest_and_bicubic(run, folder):
    sheet = numpy.asarray(Image.open(sorted((run / "samples").glob("*.png"))[0]))
    low = sheet[2:34, 2:26].astype(int)
    for i in range(4):
        assert (low[i::4] == low[::4]).all() and (low[:, i::4] == low[:, ::4]).all()
    tensor = torch.from_numpy(low[::4, ::4].copy()).permute(2, 0, 1)[None].double()
    bicubic = functional.interpolate(tensor, scale_factor=4, mode="bicubic")
    shown = sheet[2:34, 28:52].transpose(2, 0, 1)
    assert numpy.abs(bicubic[0].clamp(0, 255).numpy() - shown).max() < 3


def test_resume_is_bit_equal(tmp_path, folder, run):
    """Stopped in the warm-up and again in the midst of an epoch after it."""
    out = tmp_path / "run"
    words = [*SMALL, f"data.root={folder}", f"out={out}", "trainer.resume=auto"]
    for steps in (1, 6):
        trained(*words, f"trainer.max_steps={steps}")
    trained(*words)
    for name in ("last", "best"):
        name = f"checkpoints/{name}.safetensors"
        assert_same_checkpoint(out / name, run / name)


def test_two_ranks_are_one_large_batch(tmp_path, folder):
    """In the warm-up nothing depends on a rank's own batch: equal weights."""
    words = [*SMALL, f"data.root={folder}", "warmup_batches=100", "sample_interval=0"]
    one = tmp_path / "one"
    trained(*words, "data.batch_size=4", "trainer.max_steps=3", f"out={one}")
    two = tmp_path / "two"
    run_ranks(tmp_path, [*words, "trainer.max_steps=3", f"out={two}"])
    a = load_file(one / "checkpoints" / "last.safetensors")
    b = load_file(two / "checkpoints" / "last.safetensors")
    for name in a:
        if name.startswith("generator."):
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-4)


def test_two_ranks_train(tmp_path, folder):
    out = tmp_path / "run"
    words = [*SMALL, f"data.root={folder}", f"out={out}", "trainer.max_epochs=1"]
    words += ["warmup_batches=1"]
    run_ranks(tmp_path, words)
    row = metrics(out)[-1]
    assert float(row["val_psnr"]) > 3
    assert {e["name"] for e in events(out, "phase", 1)} >= {"warm-up", "train"}


def test_fewer_held_out_images_than_ranks(tmp_path):
    root = tmp_path / "images"
    for i in range(6):
        picture(root / "train" / f"{i}.png", i)
    picture(root / "val" / "0.png", 100)
    out = tmp_path / "run"
    words = [*SMALL, f"data.root={root}", f"out={out}", "trainer.max_epochs=1"]
    run_ranks(tmp_path, [*words, "data.batch_size=1"], world=3)
    assert float(metrics(out)[-1]["val_psnr"]) > 3
    assert list((out / "samples").glob("*sheet*.png"))


def test_bad_held_out_images_are_told_before_training(tmp_path):
    root = tmp_path / "images"
    for name in ("train", "val"):
        for i in range(4):
            picture(root / name / f"{i}.png", i)
    (root / "val" / "3.png").write_bytes(b"no image")
    words = [*SMALL, f"data.root={root}", f"out={tmp_path / 'run'}"]
    said = refused(train(*words), "1 of 4", str(root / "val" / "3.png"))
    assert "step 1" not in said
    trained(*words, "data.max_skipped=0.3", "trainer.max_steps=1")


@pytest.mark.parametrize("bad", ["train", "val"])
def test_bad_images_of_all_ranks_count_together(tmp_path, bad):
    """Three of twenty: no rank meets more than the share of a tenth alone."""
    root = tmp_path / "images"
    for name in ("train", "val"):
        for i in range(20):
            picture(root / name / f"{i:02}.png", i)
    for i in (0, 7, 13):
        (root / bad / f"{i:02}.png").write_bytes(b"no image")
    words = [*SMALL, f"data.root={root}", "trainer.max_epochs=3", "warmup_batches=99"]
    words += ["sample_interval=0", "validation_samples=0" if bad == "train" else ""]
    words = [word for word in words if word]
    with Ranks(tmp_path, [*words, f"out={tmp_path / 'run'}"], 3) as ranks:
        codes = ranks.wait()
        said = ranks.output()
    assert codes == [2, 2, 2], said
    for rank in range(3):
        assert "3 of 20 images are no good" in ranks.output(rank), said
    assert said.count("passed over") - said.count("be passed over") <= 3
    # By the end of the first epoch; of held-out images before the first step.
    steps = 4 if bad == "train" else 0
    assert len(events(tmp_path / "run", "iteration", 0)) == steps


def test_the_verb_test_without_held_out_images(tmp_path):
    """A folder without them is told; training that took none leaves them all."""
    root = tmp_path / "images"
    for i in range(4):
        picture(root / f"{i}.png", i)
    out = tmp_path / "run"
    words = [*SMALL, f"data.root={root}", f"out={out}", "trainer.max_steps=1"]
    trained(*words)
    checkpoint = f"checkpoint={out / 'checkpoints' / 'last.safetensors'}"
    words = ["esrgan", "test", checkpoint, "trainer.device=cpu"]
    refused(train(*words), "no held-out images", str(root), "neither test/ nor val/")
    picture(root / "val" / "0.png", 100)
    assert "val_psnr" in trained(*words, "validation_samples=0").stdout


def test_learning_rate_decays(tmp_path, folder):
    """From decay_epoch 0 of 2 epochs the second runs at half the rate: its steps
    of Adam are half as long. Also where the steps alone say how many they are."""
    words = [*SMALL, f"data.root={folder}", "warmup_batches=1000", "sample_interval=0"]
    lengths = []
    for decay, epochs in ((0, 2), (10, 2), (0, 0)):
        out = tmp_path / f"{decay}-{epochs}"
        words_now = [*words, f"decay_epoch={decay}", f"out={out}", "trainer.resume=auto"]
        words_now += [f"trainer.max_epochs={epochs}"]
        weights = []
        for steps in (4, 5):
            trained(*words_now, f"trainer.max_steps={steps}")
            file = load_file(out / "checkpoints" / "last.safetensors")
            weights.append(file["generator.conv1.weight"])
        lengths.append((weights[1] - weights[0]).norm().item())
    assert lengths[0] == pytest.approx(lengths[1] / 2, rel=1e-2)
    assert lengths[2] == lengths[0]
    timed = ["trainer.max_epochs=0", "trainer.max_seconds=0.01", f"out={tmp_path / 'time'}"]
    assert trained(*words, *timed).stderr.count("decay_epoch=10 does nothing") == 1


def test_content_term_from_a_file(tmp_path, folder):
    vgg = tmp_path / "vgg.safetensors"
    state = {n: t * 3 for n, t in Vgg19Features().state_dict().items()}
    save_file(state, vgg)
    words = [*SMALL, f"data.root={folder}", "trainer.max_steps=3", "sample_interval=0"]
    out = tmp_path / "run"
    done = trained(*words, f"model.vgg={vgg}", f"out={out}")
    assert "without the content term" not in done.stderr
    assert float(metrics(out)[-1]["loss_content"]) > 0
    # Weights with a wrong shape, and those of something else, are named.
    wrong = tmp_path / "wrong.safetensors"
    save_file(state | {"features.5.weight": torch.zeros(128, 64, 5, 5)}, wrong)
    bad = [*words, f"out={tmp_path / 'bad'}"]
    refused(train(*bad, f"model.vgg={wrong}"), "features.5.weight", str(wrong))
    save_file({"features.0.weight": state["features.0.weight"]}, wrong)
    refused(train(*bad, f"model.vgg={wrong}"), "no VGG19", "features.0.bias")
    refused(train(*bad, f"model.vgg={tmp_path / 'none'}"), str(tmp_path / "none"))


def test_bad_images_are_named_and_passed_over(tmp_path):
    root = tmp_path / "images"
    for i in range(20):
        picture(root / f"{i:02}.png", i)
    (root / "03.png").write_bytes((root / "03.png").read_bytes()[:60])
    picture(root / "11.png", 0, (40, 7))
    words = [*SMALL, f"data.root={root}", "trainer.max_epochs=1", "sample_interval=0"]
    words += ["warmup_batches=100"]
    done = trained(*words, f"out={tmp_path / 'run'}")
    assert done.stderr.count("passed over") == 2
    assert "03.png" in done.stderr and "11.png is too small: 40 x 7" in done.stderr
    picture(root / "12.png", 0, (40, 7))
    refused(train(*words, f"out={tmp_path / 'bad'}"), "3 of 20", "data.max_skipped")
    trained(*words, "data.max_skipped=0.2", "trainer.max_steps=1", f"out={tmp_path / 'more'}")


def test_bad_input(tmp_path, folder):
    words = [*SMALL, f"out={tmp_path / 'run'}"]
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(train(*words, f"data.root={empty}"), "no images", str(empty))
    refused(train(*words), "data.root")
    good = [*words, f"data.root={folder}"]
    refused(train(*good, "hr_height=30"), "hr_height=30", "multiples of 4")
    refused(train(*good, "trainer=fsdp"), "fsdp")
    refused(train(*good, "data.batch_size=auto"), "batch_size")
    refused(train(*good, "data.batch_size=200"), "larger than a rank's shard")
    refused(train("esrgan", "upscal"), "upscale")
    refused(train("vit", "upscale"), "upscale")


# Upscaling.


def upscaled(image, checkpoint, out, *words):
    return trained(
        "esrgan", "upscale", f"image={image}", f"checkpoint={checkpoint}",
        f"out={out}", "trainer.device=cpu", *words,
    )


def test_upscale_any_size_and_folders(tmp_path, run):
    checkpoint = run / "checkpoints" / "best.safetensors"
    images = tmp_path / "images"
    for name, size in (("wide.png", (31, 5)), ("one.jpg", (1, 1)), ("b.png", (9, 17))):
        picture(images / name, 3, size)
    (images / "notes.txt").write_text("no image")
    (images / "._b.png").write_text("what a Mac writes beside b.png")
    out = tmp_path / "out"
    upscaled(images, checkpoint, out)
    sizes = {path.name: Image.open(path).size for path in out.iterdir()}
    assert sizes == {
        "wide-x4.png": (124, 20),
        "one-x4.png": (4, 4),
        "b-x4.png": (36, 68),
    }
    done = train(
        "esrgan", "test", f"checkpoint={checkpoint}", "trainer.device=cpu",
        "data.batch_size=2",
    )
    assert done.returncode == 0 and "val_psnr" in done.stdout, done.stderr


def test_upscale_of_a_folder_makes_all_it_can(tmp_path, run):
    """Names that differ by their endings only, and an image that is damaged."""
    images, out = tmp_path / "images", tmp_path / "out"
    for name, size in (("same.png", (8, 4)), ("same.jpg", (5, 4)), ("z.png", (3, 3))):
        picture(images / name, 3, size)
    (images / "bad.png").write_bytes(b"no image")
    done = train(
        "esrgan", "upscale", f"image={images}", f"out={out}", "trainer.device=cpu",
        f"checkpoint={run / 'checkpoints' / 'best.safetensors'}",
    )
    refused(done, str(images / "bad.png"), code=1)
    sizes = {path.name: Image.open(path).size for path in out.iterdir()}
    assert sizes == {
        "same-x4.png": (20, 16),
        "same.png-x4.png": (32, 16),
        "z-x4.png": (12, 12),
    }


def test_upscale_replaces_none_of_its_images(tmp_path, run):
    images = tmp_path / "images"
    for name, size in (("a.png", (3, 4)), ("a-x4.png", (5, 4))):
        picture(images / name, 3, size)
    before = (images / "a-x4.png").read_bytes()
    trained(
        "esrgan", "upscale", f"image={images}", f"out={images}", "trainer.device=cpu",
        f"checkpoint={run / 'checkpoints' / 'best.safetensors'}",
    )
    assert (images / "a-x4.png").read_bytes() == before
    sizes = {path.name: Image.open(path).size for path in images.iterdir()}
    assert sizes == {
        "a.png": (3, 4),
        "a-x4.png": (5, 4),
        "a.png-x4.png": (12, 16),
        "a-x4-x4.png": (20, 16),
    }


def test_upscale_of_a_folder_again_makes_the_same(tmp_path, run):
    """Also of names that differ by their endings, and on two ranks."""
    images = tmp_path / "images"
    picture(images / "a.png", 3, (3, 4))
    picture(images / "a.jpg", 4, (5, 4))
    picture(images / "b.png", 5, (2, 2))
    picture(images / "b-x4.png", 5, (2, 2))
    picture(images / "b.png-x4.png", 5, (2, 2))
    words = ["esrgan", "upscale", f"image={images}", "trainer.device=cpu",
             f"checkpoint={run / 'checkpoints' / 'best.safetensors'}"]
    for ranks in (1, 1, 2):
        if ranks == 1:
            trained(*words)
        else:
            run_ranks(tmp_path, words)
        sizes = {path.name: Image.open(path).size for path in images.iterdir()}
        assert sizes == {
            "a.png": (3, 4),
            "a.png-x4.png": (12, 16),
            "a.jpg": (5, 4),
            "a-x4.png": (20, 16),
            "b.png": (2, 2),
            "b.png-x4-x4.png": (8, 8),
            "b-x4.png": (2, 2),
            "b-x4-x4.png": (8, 8),
            "b.png-x4.png": (2, 2),
            "b.png-x4.png-x4.png": (8, 8),
        }


def test_upscale_passes_over_results_that_are_too_large_to_read(tmp_path, run):
    images = tmp_path / "images"
    images.mkdir()
    Image.new("1", (3000, 2500)).save(images / "a.png")
    Image.new("1", (12000, 10000)).save(images / "a-x4.png")
    picture(images / "b.png", 3, (3, 4))
    (images / "a.png").write_bytes((images / "a.png").read_bytes()[:100])
    done = train(
        "esrgan", "upscale", f"image={images}", "trainer.device=cpu",
        f"checkpoint={run / 'checkpoints' / 'best.safetensors'}",
    )
    said = refused(done, str(images / "a.png"), code=1)  # the damaged one alone
    assert "a-x4.png" not in said and "b-x4.png" in said


def generator_file(path, blocks, filters=8):
    """A generator whose blocks matter, under the plain names."""
    torch.manual_seed(1)
    model = EsrganGenerator(3, blocks, filters)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.5
    save_file(model.state_dict(), path)
    return model


def normal(image):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    pixels = torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1)[None]
    return (pixels / 255 - mean) / deviation, mean, deviation


@pytest.mark.parametrize("blocks", [1, 4])
def test_tiles_have_no_seams(tmp_path, blocks):
    """One block sees 20 pixels, less than the margin of 32: equal, but for the
    rounding of one in a thousand values. Four see 65: nobody sees a difference."""
    checkpoint = tmp_path / "generator.safetensors"
    model = generator_file(checkpoint, blocks)
    image = tmp_path / "image.png"
    rng = numpy.random.default_rng(5)
    noise = rng.integers(0, 256, (90, 110, 3), numpy.uint8)
    Image.fromarray(noise).save(image)
    found = []
    for tile in (0, 40):
        out = tmp_path / str(tile)
        upscaled(image, checkpoint, out, f"tile={tile}")
        found.append(numpy.asarray(Image.open(out / "image-x4.png")).astype(int))
    assert found[0].shape == (360, 440, 3)
    difference = numpy.abs(found[0] - found[1])
    assert difference.max() <= 1
    assert (difference > 0).mean() < (1e-3 if blocks == 1 else 1e-2)
    low, mean, deviation = normal(Image.open(image))
    with torch.no_grad():
        wanted = (model(low) * deviation + mean).clamp(0, 1) * 255
    apart = numpy.abs(wanted[0].permute(1, 2, 0).numpy() - found[0])
    assert apart.max() < 0.51


def test_narrow_tiles_have_no_seams(tmp_path):
    """65 pixels in tiles of 32 are parts of 21 and 22, narrower than two ramps."""
    checkpoint = tmp_path / "generator.safetensors"
    generator_file(checkpoint, 4)
    image = tmp_path / "image.png"
    Image.fromarray(numpy.full((65, 65, 3), 230, numpy.uint8)).save(image)
    found = []
    for tile in (0, 32):
        out = tmp_path / str(tile)
        upscaled(image, checkpoint, out, f"tile={tile}")
        found.append(numpy.asarray(Image.open(out / "image-x4.png")).astype(int))
    assert numpy.abs(found[0] - found[1]).max() <= 1


def test_upscale_bad_input(tmp_path, run, folder):
    checkpoint = run / "checkpoints" / "best.safetensors"
    image = folder / "val" / "0.jpg"
    words = ["esrgan", "upscale", "trainer.device=cpu"]
    refused(train(*words, f"checkpoint={checkpoint}"), "image=")
    refused(train(*words, f"image={image}"), "checkpoint=")
    both = [*words, f"image={image}", f"checkpoint={checkpoint}"]
    refused(train(*both, "tile=8"), "tile=8", "32")
    nowhere = tmp_path / "none.png"
    refused(train(*both, f"image={nowhere}"), str(nowhere))
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(train(*both, f"image={empty}"), "no images")
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(3)}, other)
    refused(train(*both, f"checkpoint={other}"), "no checkpoint of recipe esrgan")
    # Of images with four channels, and with a block of another width.
    file = tmp_path / "generator.safetensors"
    generator_file(file, 1)
    weights = load_file(file)
    save_file({**weights, "conv1.weight": torch.zeros(8, 4, 3, 3)}, file)
    refused(train(*both, f"checkpoint={file}"), "8 filters of 4 channels", "1 (grey) or 3")
    name = "res_blocks.0.dense_blocks.1.b2.0.weight"
    save_file({**weights, name: torch.zeros(8, 8, 3, 3)}, file)
    refused(train(*both, f"checkpoint={file}"), name, "[8, 8, 3, 3]")


def test_upscale_takes_every_kind_of_png(tmp_path, run):
    """Grey, palette, 16 bits and transparent ones: as Pillow reads them, the last
    over white. A folder that is named like an image is none."""
    checkpoint = run / "checkpoints" / "best.safetensors"
    images = tmp_path / "images"
    picture(images / "rgb.png", 3, (13, 7))
    rgb = Image.open(images / "rgb.png")
    grey = rgb.convert("L")
    grey.save(images / "grey.png")
    rgb.quantize(16).save(images / "palette.png")
    wide = numpy.asarray(grey).astype(numpy.uint16) * 257
    Image.fromarray(wide).save(images / "wide.png")
    clear = rgb.convert("RGBA")
    clear.putalpha(grey)
    clear.save(images / "clear.png")
    white = Image.new("RGBA", clear.size, "white")
    (images / "folder.png").mkdir()
    same = tmp_path / "same"
    same.mkdir()
    for name, other in [
        ("grey", grey.convert("RGB")),
        ("palette", Image.open(images / "palette.png").convert("RGB")),
        ("wide", grey.convert("RGB")),
        ("clear", Image.alpha_composite(white, clear).convert("RGB")),
    ]:
        other.save(same / f"{name}.png")
    upscaled(images, checkpoint, tmp_path / "a")
    upscaled(same, checkpoint, tmp_path / "b")
    assert len(list((tmp_path / "a").iterdir())) == 5
    for path in (tmp_path / "b").iterdir():
        wanted = numpy.asarray(Image.open(path)).astype(int)
        got = numpy.asarray(Image.open(tmp_path / "a" / path.name)).astype(int)
        # Two ways to round what lies over white.
        assert numpy.abs(got - wanted).max() <= (2 if "clear" in path.name else 0), path
