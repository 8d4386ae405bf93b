"""CIFAR-10 for a GPU machine that has no network and takes little at a time:
its official binary layout as a few files, 53% as large, and back bit for bit.

    python3 bench/pack_cifar.py pack ROOT OUT [--part-bytes 50MB]
    python3 bench/pack_cifar.py unpack PART... --to ROOT
    python3 bench/pack_cifar.py verify ROOT

`pack` writes OUT/part-1, OUT/part-2 and so on; `unpack` takes any of them, in any
order, in as many calls as it likes; `verify` compares the SHA-256 of each file with
the one that the trainer's own download demands.

A value is predicted from its left, upper and upper left neighbour (the median edge
detector of LOCO-I), of red and blue what they differ from green, and what differs from
the prediction goes through LZMA. Of the pixels this leaves 0.534, 98.4 MB, in two
minutes of one core (a sample of 2,000 images: 0.538, 2 ms each). Of 1,000 images
lossless WebP in large sheets left 0.543, 8 to 9 ms each, and PNG 0.706.
"""

import argparse
import hashlib
import lzma
import pathlib
import re
import struct
import sys

import numpy

FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
IMAGES = 10000  # a file
SIDE, ROW = 32, 3073  # a label, then red, green and blue
CHUNK = 2500  # images compressed together
GREEN, OTHERS = 1, (0, 2)
# Before each chunk: mark, number of the file, first image, images, bytes that follow.
HEAD = struct.Struct("<4sIIII")
MARK = b"LSC1"
# The byte before tells best how large the next one is: four bits of it choose
# the probabilities, where its place (which pb counts) tells nothing.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME,
            "lc": 4, "lp": 0, "pb": 0}]
CATALOG = pathlib.Path(__file__).resolve().parent.parent / "lockstep/fetch/catalog.cpp"


def predicted(plane, y, x):
    """What the pixel at y, x of every image should be, by those before it."""
    if y == 0:
        return plane[0, x - 1] if x else 0
    if x == 0:
        return plane[y - 1, 0]
    left, upper, corner = plane[y, x - 1], plane[y - 1, x], plane[y - 1, x - 1]
    return numpy.clip(
        left + upper - corner, numpy.minimum(left, upper), numpy.maximum(left, upper))


def places():
    return ((y, x) for y in range(SIDE) for x in range(SIDE))


def compress(rows):
    pixels = rows[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(1, 2, 3, 0)
    pixels = numpy.ascontiguousarray(pixels, numpy.int16)
    green = pixels[GREEN]
    left = numpy.empty(pixels.shape, numpy.uint8)
    for channel in (GREEN, *OTHERS):
        plane = green if channel == GREEN else pixels[channel] - green
        for y, x in places():
            left[channel, y, x] = (plane[y, x] - predicted(plane, y, x)) & 255
    data = rows[:, 0].tobytes() + left.transpose(0, 3, 1, 2).tobytes()
    return lzma.compress(data, check=lzma.CHECK_CRC64, filters=FILTERS)


def decompress(data, count):
    data = numpy.frombuffer(lzma.decompress(data), numpy.uint8)
    left = data[count:].reshape(3, count, SIDE, SIDE).transpose(0, 2, 3, 1)
    left = numpy.ascontiguousarray(left)
    pixels = numpy.zeros(left.shape, numpy.int16)
    for channel in (GREEN, *OTHERS):
        # Green is done first and then known: what was cut to eight bits is clear.
        base = pixels[GREEN] if channel != GREEN else numpy.zeros_like(pixels[GREEN])
        plane = numpy.zeros_like(base)
        for y, x in places():
            value = base[y, x] + predicted(plane, y, x) + left[channel, y, x]
            plane[y, x] = (value & 255) - base[y, x]
        pixels[channel] = plane + base
    rows = numpy.empty((count, ROW), numpy.uint8)
    rows[:, 0] = data[:count]
    rows[:, 1:] = pixels.transpose(3, 0, 1, 2).reshape(count, ROW - 1)
    return rows


def chunks(root):
    for number, name in enumerate(FILES):
        rows = numpy.fromfile(root / name, numpy.uint8).reshape(IMAGES, ROW)
        for first in range(0, IMAGES, CHUNK):
            some = rows[first:first + CHUNK]
            data = compress(some)
            yield HEAD.pack(MARK, number, first, len(some), len(data)) + data


def pack(root, out, most):
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("part-[0-9]*"):
        old.unlink()  # unpacked with the new ones, they would be mixed
    parts = 0
    size = most + 1  # the first chunk begins the first part
    for chunk in chunks(root):
        if size + len(chunk) > most:
            parts, size = parts + 1, 0
        with open(out / f"part-{parts}", "ab") as part:
            part.write(chunk)
        size += len(chunk)
    for part in sorted(out.glob("part-[0-9]*")):
        print(part.name, part.stat().st_size, "bytes")
    return 0


def unpack(paths, root):
    root.mkdir(parents=True, exist_ok=True)
    for path in paths:
        data = path.read_bytes()
        at = 0
        while at < len(data):
            mark, number, first, count, size = HEAD.unpack_from(data, at)
            if mark != MARK:
                raise SystemExit(f"{path}: no part of CIFAR-10 at byte {at}")
            at += HEAD.size
            rows = decompress(data[at:at + size], count)
            at += size
            # What another part has may be there already, and stays.
            file = root / FILES[number]
            file.touch()
            with open(file, "r+b") as whole:
                whole.truncate(IMAGES * ROW)
                whole.seek(first * ROW)
                whole.write(rows.tobytes())
        print(f"{path.name}: unpacked", flush=True)
    return 0


def verify(root):
    # The catalog breaks a digest over two lines.
    catalog = re.sub(r'"\s+"', "", CATALOG.read_text())
    wrong = 0
    for name in FILES:
        wanted = re.search(rf'"{name}",\s*\d+,\s*"([0-9a-f]{{64}})"', catalog).group(1)
        file = root / name
        found = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "-"
        wrong += found != wanted
        print(found, name, "ok" if found == wanted else "WRONG", flush=True)
    return 1 if wrong else 0


def byte_count(text):
    digits = text.upper().removesuffix("MB")
    return int(digits) * (1 if digits == text else 1_000_000)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    words = verbs.add_parser("pack", help="the six files as a few smaller ones")
    words.add_argument("root", type=pathlib.Path)
    words.add_argument("out", type=pathlib.Path)
    words.add_argument("--part-bytes", type=byte_count, default=50_000_000)
    words = verbs.add_parser("unpack", help="the six files again, or a part of them")
    words.add_argument("parts", type=pathlib.Path, nargs="+")
    words.add_argument("--to", type=pathlib.Path, required=True)
    words = verbs.add_parser("verify", help="SHA-256 of each file")
    words.add_argument("root", type=pathlib.Path)
    options = parser.parse_args()
    if options.verb == "pack":
        return pack(options.root, options.out, options.part_bytes)
    if options.verb == "unpack":
        return unpack(options.parts, options.to)
    return verify(options.root)


if __name__ == "__main__":
    sys.exit(main())
