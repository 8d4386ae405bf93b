"""The readers of data/ against files that other programs write."""

import io
import os
import pathlib
import pickle
import struct
import subprocess
import zlib

import numpy
import PIL.Image
import pytest

PROBE = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", "build")) / "bin/data_probe"
GENERATOR = numpy.random.default_rng(0)


def decode(folder, name, content):
    source, target = folder / name, folder / "out.raw"
    source.write_bytes(content)
    done = subprocess.run(
        [PROBE, "decode", source, target], capture_output=True, text=True
    )
    if done.returncode != 0:
        assert done.returncode == 1, done.stderr
        raise ValueError(done.stderr)
    height, width = map(int, done.stdout.split())
    return numpy.fromfile(target, dtype=numpy.uint8).reshape(height, width, 3)


def encode(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


def noise(*shape):
    return GENERATOR.integers(0, 256, shape, dtype=numpy.uint8)


def smooth(height, width):
    y, x = numpy.mgrid[0:height, 0:width]
    return numpy.stack(
        [x * 255 // width, y * 255 // height, (x + y) % 256], axis=2
    ).astype(numpy.uint8)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_png_modes_are_exact(tmp_path, mode):
    image = PIL.Image.fromarray(noise(33, 21, 3)).convert(mode)
    wanted = numpy.asarray(image.convert("RGB"))
    got = decode(tmp_path, "a.png", encode(image, format="PNG"))
    assert (got == wanted).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_png_alpha_lies_over_white(tmp_path, mode):
    image = PIL.Image.fromarray(noise(33, 21, 4), "RGBA").convert(mode)
    white = PIL.Image.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    wanted = numpy.asarray(white.convert("RGB")).astype(int)
    got = decode(tmp_path, "a.png", encode(image, format="PNG")).astype(int)
    assert abs(got - wanted).max() <= 1


def test_png_transparent_colour(tmp_path):
    image = PIL.Image.fromarray(noise(8, 8, 3))
    image.putpixel((2, 3), (10, 20, 30))
    content = encode(image, format="PNG", transparency=(10, 20, 30))
    got = decode(tmp_path, "a.png", content)
    assert (got[3, 2] == 255).all()
    assert (got[0, 0] == numpy.asarray(image)[0, 0]).all()


def test_png_16_bit_is_rounded(tmp_path):
    values = GENERATOR.integers(0, 65536, (9, 7), dtype=numpy.uint16)
    image = PIL.Image.fromarray(values)
    got = decode(tmp_path, "a.png", encode(image, format="PNG"))
    wanted = numpy.rint(values / 257.0).astype(int)
    assert abs(got[:, :, 0].astype(int) - wanted).max() <= 1


def png_chunk(kind, content):
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def test_png_interlaced(tmp_path):
    pixels = noise(11, 13, 3)
    lines = b""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)]
    passes += [(0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for x, y, dx, dy in passes:
        for row in pixels[y::dy, x::dx]:
            if len(row):
                lines += b"\0" + row.tobytes()
    header = struct.pack(">IIBBBBB", 13, 11, 8, 2, 0, 0, 1)
    content = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    content += png_chunk(b"IDAT", zlib.compress(lines)) + png_chunk(b"IEND", b"")
    assert (numpy.asarray(PIL.Image.open(io.BytesIO(content))) == pixels).all()
    assert (decode(tmp_path, "a.png", content) == pixels).all()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpeg_as_pillow(tmp_path, mode, options):
    image = PIL.Image.fromarray(smooth(45, 70)).convert(mode)
    content = encode(image, format="JPEG", quality=90, **options)
    wanted = numpy.asarray(PIL.Image.open(io.BytesIO(content)).convert("RGB"))
    got = decode(tmp_path, "a.jpg", content)
    # Two builds of libjpeg may differ in the last bits of their transforms.
    assert abs(got.astype(int) - wanted).max() <= 4


def test_jpeg_cmyk(tmp_path):
    image = PIL.Image.fromarray(smooth(32, 32)).convert("CMYK")
    content = encode(image, format="JPEG", quality=95)
    wanted = numpy.asarray(PIL.Image.open(io.BytesIO(content)).convert("RGB"))
    got = decode(tmp_path, "a.jpg", content)
    assert abs(got.astype(int) - wanted).max() <= 8


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_truncated(tmp_path, kind, part):
    content = encode(PIL.Image.fromarray(smooth(64, 64)), format=kind)
    with pytest.raises(ValueError, match=rf"cut\.img: bad {kind}: "):
        decode(tmp_path, "cut.img", content[: int(len(content) * part)])


def dataset(name, root, split, index, target):
    done = subprocess.run(
        [PROBE, "dataset", name, root, split, str(index), target],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    size, channels, label, height, width = map(int, done.stdout.split())
    pixels = numpy.fromfile(target, dtype=numpy.uint8)
    return size, label, pixels.reshape(height, width, channels)


LABELS = [3, 1, 4, 1, 5, 9]


def refused_dataset(folder):
    done = subprocess.run(
        [PROBE, "dataset", "cifar10", folder, "test", "0", folder / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("labels", ["list", "<i8", ">i8", "i4", "u1"])
@pytest.mark.parametrize("text", [False, True], ids=["bytes", "text"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_python_3(tmp_path, protocol, text, labels):
    """People save CIFAR-10's batches again, with what Python they have."""
    data = noise(6, 3072)
    data[5, :256] = numpy.arange(256)  # each byte, as encoded text too
    batch = {
        "batch_label": b"testing batch 1 of 1",
        "labels": LABELS if labels == "list" else numpy.array(LABELS, dtype=labels),
        "data": data,
        "filenames": [f"{i}.png" for i in range(6)],
    }
    if not text:
        batch = {key.encode(): value for key, value in batch.items()}
    content = pickle.dumps(batch, protocol=protocol)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / name).write_bytes(content)
    size, label, pixels = dataset("cifar10", tmp_path, "train", 5, tmp_path / "out")
    assert (size, label) == (30, 9)
    wanted = data[5].reshape(3, 32, 32).transpose(1, 2, 0)
    assert (pixels == wanted).all()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "change, told",
    [
        ({"data": numpy.asfortranarray(noise(6, 3072))}, "Fortran order"),
        ({"data": noise(6, 3072).astype("i1")}, "unsigned bytes"),
        ({"data": noise(6, 3072).astype("f4")}, "unsigned bytes"),
        ({"labels": numpy.array(LABELS) - 9}, "label -6 is out of range"),
        ({"labels": numpy.array(LABELS) + 300}, "label 303 is out of range"),
        ({"labels": numpy.array([LABELS])}, "one dimension"),
    ],
)
def test_pickles_of_other_arrays(tmp_path, protocol, change, told):
    batch = {"labels": LABELS, "data": noise(6, 3072), **change}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    text = refused_dataset(tmp_path)
    assert "bad pickle" in text and told in text, text


def test_pickles_that_encode_without_end(tmp_path):
    """One text, encoded again and again, would fill the memory."""
    (tmp_path / "test_batch").write_bytes(
        b"\x80\x02X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\0"
        b"X\x06\0\0\0latin1q\x01" + b"c_codecs\nencode\nh\0h\x01\x86R" * 9 + b"."
    )
    assert "more text than it has" in refused_dataset(tmp_path)


def test_hostile_pickle_runs_nothing(tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps(Hostile(), protocol=2))
    done = subprocess.run(
        [PROBE, "dataset", "cifar10", tmp_path, "test", "0", tmp_path / "out"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "only NumPy arrays are accepted" in done.stderr
    assert not (tmp_path / "ran").exists()
