"""Writes a table of made rows for examples/forest.yaml: 8 features, 3 classes.

    python3 examples/forest_data.py forest.csv [rows]
"""

import random
import sys


def main(path, rows=20000):
    draw = random.Random(1)
    with open(path, "w") as file:
        file.write(",".join([f"x{i}" for i in range(8)] + ["class"]) + "\n")
        for _ in range(rows):
            x = [draw.gauss(0, 1) for _ in range(8)]
            score = x[0] * x[1] + x[2] + 0.5 * draw.gauss(0, 1)
            name = "low" if score < -0.7 else "high" if score > 0.7 else "middle"
            file.write(",".join([f"{v:.5f}" for v in x] + [name]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
