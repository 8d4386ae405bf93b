"""Makes a folder of drawings for ESRGAN: shapes, lines and words with sharp edges,
that a small generator learns within minutes on a CPU (docs/recipes.md).

    python3 bench/drawings.py FOLDER [--train 256] [--val 16] [--side 192] [--seed 0]

FOLDER/train and FOLDER/val hold PNG files; the same words give the same files.
"""

import argparse
import pathlib
import random

from PIL import Image, ImageDraw, ImageFont

WORDS = ("LOCKSTEP", "train", "RANK 0", "epoch", "$0.40", "batch", "AdamW", "1234", "loss")
SCALE = 4  # drawn larger and made small again, so that edges are smooth


def color(random_):
    return tuple(random_.randrange(256) for _ in range(3))


def place(random_, side):
    return random_.randrange(-side // 8, side), random_.randrange(-side // 8, side)


def drawing(random_, side):
    whole = side * SCALE
    image = Image.new("RGB", (whole, whole), color(random_))
    pen = ImageDraw.Draw(image)
    for _ in range(random_.randint(4, 8)):
        x, y = place(random_, whole)
        size = random_.randrange(whole // 10, whole // 2)
        shape = random_.choice(("ellipse", "rectangle", "polygon"))
        if shape == "polygon":
            points = [(x + random_.randrange(size), y + random_.randrange(size))
                      for _ in range(3)]
            pen.polygon(points, fill=color(random_))
        else:
            getattr(pen, shape)((x, y, x + size, y + size), fill=color(random_))
    for _ in range(random_.randint(2, 5)):
        pen.line((place(random_, whole), place(random_, whole)), fill=color(random_),
                 width=random_.randrange(SCALE, 5 * SCALE))
    for _ in range(random_.randint(1, 3)):
        font = ImageFont.load_default(size=random_.randrange(whole // 10, whole // 5))
        pen.text(place(random_, whole * 3 // 4), random_.choice(WORDS),
                 fill=color(random_), font=font)
    return image.resize((side, side), Image.Resampling.LANCZOS)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--train", type=int, default=256)
    parser.add_argument("--val", type=int, default=16)
    parser.add_argument("--side", type=int, default=192)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    for part, count in (("train", options.train), ("val", options.val)):
        folder = options.folder / part
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            drawing(random_, options.side).save(folder / f"{number:04d}.png")


if __name__ == "__main__":
    main()
