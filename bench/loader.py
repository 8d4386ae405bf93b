"""Images a second of the loader on one core, against PyTorch on one thread.

Seconds are CPU seconds of each process, so that other work on the machine does
not count; on an idle one they are the wall clock's.

The peer does what a PyTorch training does with the same pixels in one process
without workers: index the array, to float, interpolate(antialias=True),
normalise, for batches of 32; files are decoded with Pillow. Both sides run
in turn on one core in this run. Numbers: $LOCKSTEP_BUILD/bench/loader.json.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", ROOT / "build"))
BATCH = 32
REQUIRED = {"rgb_32_to_64": 15000, "rgb_32_to_64_worker": 15000}


def make_folders(root, count=64):
    """Smooth pictures with a little noise: they pack like photographs."""
    import numpy
    import PIL.Image

    generator = numpy.random.default_rng(0)
    y, x = numpy.mgrid[0:256, 0:256]
    for kind in ("png", "jpg"):
        (root / kind / "class").mkdir(parents=True)
    for i in range(count):
        waves = [128 + 90 * numpy.sin(x / (9 + i + c) + y / (7 + c)) for c in range(3)]
        pixels = numpy.stack(waves, 2) + generator.normal(0, 6, (256, 256, 3))
        image = PIL.Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))
        image.save(root / "png/class" / f"{i}.png")
        image.save(root / "jpg/class" / f"{i}.jpg", quality=90)


def rate(step, seconds, rounds=5):
    """Images a second: the best of the rounds."""
    step()
    best = 0.0
    for _ in range(rounds):
        images = 0
        begun = time.process_time()
        while time.process_time() - begun < seconds / rounds:
            images += step()
        best = max(best, images / (time.process_time() - begun))
    return best


def peer(folder, seconds):
    """Prints its lines; runs as a process of its own."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import numpy
    import PIL.Image
    import torch

    torch.set_num_threads(1)
    order = iter(())

    def finish(pixels, size, mode, last):
        images = pixels.permute(0, 3, 1, 2).float().div_(255)
        if last:
            images = images.contiguous(memory_format=torch.channels_last)
        images = torch.nn.functional.interpolate(
            images, (size, size), mode=mode, antialias=True, align_corners=False
        )
        return images.sub_(0.5).div_(0.5)

    def indices(count):
        nonlocal order
        batch = next(order, None)
        if batch is None:
            order = iter(torch.randperm(count).split(BATCH))
            batch = next(order)
        return batch

    def from_memory(side, channels, size, mode="bilinear", last=True):
        nonlocal order
        order = iter(())
        pixels = torch.randint(0, 256, (8192, side, side, channels), dtype=torch.uint8)

        def step():
            chosen = indices(len(pixels))
            return len(finish(pixels[chosen], size, mode, last))

        return rate(step, seconds)

    def from_folder(kind):
        nonlocal order
        order = iter(())
        paths = sorted((pathlib.Path(folder) / kind / "class").iterdir())

        def step():
            images = [
                numpy.array(PIL.Image.open(paths[i]).convert("RGB"))
                for i in indices(len(paths)).tolist()
            ]
            return len(finish(torch.from_numpy(numpy.stack(images)), 128, "bilinear", True))

        return rate(step, seconds)

    results = {"rgb_32_to_64": from_memory(32, 3, 64)}
    results["rgb_32_to_64_worker"] = results["rgb_32_to_64"]
    results["rgb_32_to_64_planes"] = from_memory(32, 3, 64, last=False)
    results["rgb_32_to_64_bicubic"] = from_memory(32, 3, 64, "bicubic", False)
    results["rgb_32_to_224"] = from_memory(32, 3, 224)
    results["gray_28_to_64"] = from_memory(28, 1, 64)
    results["png_256_to_128"] = from_folder("png")
    results["jpeg_256_to_128"] = from_folder("jpg")
    for name, value in results.items():
        print(name, value)


def read_rates(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr}")
    return {
        name: float(value)
        for name, value in (line.split() for line in done.stdout.splitlines())
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--only", help="cases whose name has this in it")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments, _ = parser.parse_known_args()
    seconds = 0.3 if arguments.quick else 3.0
    if arguments.peer:
        peer(arguments.peer, seconds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_folders(pathlib.Path(folder))
        ours = read_rates(
            [
                str(BUILD / "bin/loader_bench"),
                f"{folder}/png",
                f"{folder}/jpg",
                str(seconds),
            ]
        )
        quick = ["--quick"] if arguments.quick else []
        theirs = read_rates([sys.executable, __file__, "--peer", folder, *quick])
    lines = []
    for name, value in ours.items():
        if arguments.only and arguments.only not in name:
            continue
        required = REQUIRED.get(name)
        verdict = "info" if not required else "ok" if value >= required else "MISSED"
        lines.append(
            {
                "name": f"loader/{name}",
                "ours": value,
                "peer": theirs[name],
                "ratio": value / theirs[name],
                "required": required,
                "verdict": verdict,
                "unit": "images/s",
            }
        )
        print(
            f"loader/{name} {value:.0f} {theirs[name]:.0f} "
            f"{value / theirs[name]:.2f} {f'>={required}' if required else '-'} "
            f"{verdict} [images/s]"
        )
    target = BUILD / "bench"
    target.mkdir(parents=True, exist_ok=True)
    (target / "loader.json").write_text(json.dumps(lines, indent=1) + "\n")
    return 1 if any(line["verdict"] == "MISSED" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
