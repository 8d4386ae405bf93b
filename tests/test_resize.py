"""The resize of data/ against PyTorch's interpolate(antialias=True).

Tolerance: 1e-6 of the pixel range for bilinear, 2e-6 for bicubic (8-bit
pixels / 255, float results).
"""

import os
import pathlib
import subprocess

import numpy
import pytest
import torch

PROBE = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", "build")) / "bin/data_probe"
TOLERANCE = {"bilinear": 1e-6, "bicubic": 2e-6}
SIZES = [
    # in height, in width, out height, out width
    (32, 32, 64, 64),
    (28, 28, 64, 64),
    (32, 32, 224, 224),
    (32, 32, 32, 32),
    (64, 64, 16, 16),
    (218, 178, 64, 64),
    (37, 53, 19, 71),
    (53, 37, 71, 19),
    (7, 5, 13, 11),
    (13, 11, 7, 5),
    (100, 64, 64, 64),
    (64, 100, 64, 64),
    (3, 300, 64, 64),
    (1, 1, 8, 8),
    (9, 9, 1, 1),
    (601, 799, 224, 224),
]


def ours(folder, pixels, height, width, mode, layout="last", flip=False):
    source, target = folder / "in.raw", folder / "out.raw"
    source.write_bytes(pixels.tobytes())
    words = [source, *pixels.shape, height, width, mode, layout, int(flip), target]
    subprocess.run([PROBE, "resize", *map(str, words)], check=True)
    values = numpy.fromfile(target, dtype=numpy.float32)
    channels = pixels.shape[2]
    if layout == "planes":
        return values.reshape(channels, height, width)
    return values.reshape(height, width, channels).transpose(2, 0, 1)


def peer(pixels, height, width, mode):
    image = torch.from_numpy(pixels.astype(numpy.float32) / 255)
    image = image.permute(2, 0, 1).unsqueeze(0)
    return torch.nn.functional.interpolate(
        image, (height, width), mode=mode, antialias=True, align_corners=False
    )[0].numpy()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("channels", [1, 3])
def test_equal_to_pytorch(tmp_path, size, channels, mode):
    in_height, in_width, height, width = size
    generator = numpy.random.default_rng(sum(size) + channels)
    pixels = generator.integers(
        0, 256, (in_height, in_width, channels), dtype=numpy.uint8
    )
    wanted = peer(pixels, height, width, mode)
    for layout in ("last", "planes"):
        got = ours(tmp_path, pixels, height, width, mode, layout)
        assert numpy.abs(got - wanted).max() <= TOLERANCE[mode]
    got = ours(tmp_path, pixels, height, width, mode, "planes", flip=True)
    assert numpy.abs(got - wanted[:, :, ::-1]).max() <= TOLERANCE[mode]
