"""The forest against scikit-learn and Dask, two cores, all in one run.

    LOCKSTEP_BUILD=build .venv/bin/python3 bench/forest.py [--quick]

140,000 x 16 rows to fit and 60,000 to test (make_classification, seed 0, ten
informative features, four classes), 150 trees, depth 15, entropy. Wall clock and
CPU seconds of fitting and of predicting, each side by its own clock; ours by the
run's events. Two more data sets for accuracy; time over rows from 10^5 to 10^7
with its memory; two ranks against two threads. --quick: a tenth of the rows.
"""

import csv
import math
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import measure
import numpy as np

TREES = 150
# Runs of threads and of ranks in alternation, at the least: they take two
# seconds, in which anything else that the machine does shows.
PAIRS = 5


def cpu_below():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def made(rows, features=16, informative=10, classes=4, seed=0):
    from sklearn.datasets import make_classification

    x, y = make_classification(
        n_samples=rows,
        n_features=features,
        n_informative=informative,
        n_classes=classes,
        random_state=seed,
    )
    return x.astype(np.float32), y


def save(folder, x, y):
    from sklearn.model_selection import train_test_split

    xa, xb, ya, yb = train_test_split(x, y, test_size=0.3, random_state=0)
    for name, px, py in [("a", xa, ya), ("b", xb, yb)]:
        np.save(folder / f"{name}.npy", np.column_stack([px, py]).astype(np.float32))
    return xa, xb, ya, yb


def ours(folder, *words, ranks=1, threads=2, trees=TREES):
    """metrics.csv of one run, its CPU seconds and its largest memory."""
    run = folder / f"run-{time.time_ns()}"
    binary = measure.BUILD / "bin"
    command = [binary / "lockstep-train", "forest", f"out={run}"]
    if ranks > 1:
        command = [binary / "lockstep", "run", "--procs", ranks]
        command += ["--runs-dir", folder / "runs", "--", binary / "lockstep-train"]
        command += ["forest", f"out={run}"]
    command += [f"data.train={folder / 'a.npy'}", f"forest.trees={trees}"]
    command += [f"forest.threads={threads}", *words]
    before = cpu_below()
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise measure.BenchError(measure.tail(done.stdout + done.stderr))
    with open(run / "metrics.csv") as file:
        values = {key: float(v) for key, v in list(csv.DictReader(file))[-1].items()}
    values["cpu"] = cpu_below() - before
    values["model"] = run / "checkpoints" / "last.safetensors"
    return values


def sklearn_fit(x, y, jobs=2):
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(
        TREES, criterion="entropy", max_depth=15, random_state=0, n_jobs=jobs
    )
    begun, cpu = time.time(), time.process_time()
    model.fit(x, y)
    return model, time.time() - begun, time.process_time() - cpu


def dask_fit(x, y):
    import dask
    import joblib
    from distributed import Client, LocalCluster
    from sklearn.ensemble import RandomForestClassifier

    dask.config.set({"distributed.worker.daemon": True})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as c:
        with Client(c), joblib.parallel_backend("dask"):
            model = RandomForestClassifier(
                TREES, criterion="entropy", max_depth=15, random_state=0
            )
            begun = time.time()
            model.fit(x, y)
            return time.time() - begun


def more_sets(quick):
    from sklearn.datasets import load_digits

    yield "two-classes-30", *made(8000 if quick else 40000, 30, 12, 2, seed=3)
    x, y = load_digits(return_X_y=True)
    yield "digits", x.astype(np.float32), y


def peak_bytes(folder, words):
    """Largest resident set of a run of ours."""
    command = [sys.executable, "-c", PEAK, str(measure.BUILD / "bin" / "lockstep-train")]
    done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise measure.BenchError(measure.tail(done.stdout + done.stderr))
    return int(done.stdout.split()[-1]) * 1024


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def scaling(folder, table, quick):
    """Seconds to fit ten trees, by rows; memory at the most."""
    points = []
    for rows in [10**4, 10**5] if quick else [10**5, 10**6, 10**7]:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((rows, 17), dtype=np.float32)
        x[:, 16] = (x[:, 0] * x[:, 1] + x[:, 2] > 0) + 2 * (x[:, 3] > x[:, 4])
        np.save(folder / "a.npy", x)
        del x
        fit = ours(folder, "data.held_out=0", trees=10)
        words = ["forest", f"data.train={folder / 'a.npy'}", "data.held_out=0"]
        words += ["forest.trees=10", f"out={folder / f'peak-{rows}'}"]
        peak = peak_bytes(folder, words)
        print(f"# rows {rows} fit {fit['fit_seconds']:.3f} s read "
              f"{fit['read_seconds']:.3f} s peak {peak / 2**30:.2f} GiB", flush=True)
        points.append({"rows": rows, "seconds": fit["fit_seconds"], "bytes": peak})
    growth = points[-1]["seconds"] / points[-2]["seconds"]
    table.add("forest-linear", growth, 10, "<=1.5", "growth of time for 10x rows")
    table.add("forest-memory", points[-1]["bytes"] / 2**30, 6, "<=1.0", "GiB")
    table.runs["scaling"] = points
    plot(
        [{"rows": p["rows"], "seconds": p["seconds"] / 10} for p in points],
        measure.BUILD / "bench" / "forest-linear.svg",
    )


def plot(points, path):
    """Seconds over rows, both by powers of ten, as SVG; dashed: linear."""
    left, top, width, height = 70, 40, 480, 260
    xs = [math.log10(point["rows"]) for point in points]
    ys = [math.log10(point["seconds"]) for point in points]
    low, high = math.floor(min(ys)), math.ceil(max(ys))

    def place(x, y):
        right = left + width * (x - xs[0]) / (xs[-1] - xs[0])
        return right, top + height * (high - y) / (high - low)

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="600" height="360" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="600" height="360" fill="white"/>',
        f'<text x="{left}" y="22">Seconds to grow a tree over rows x 16 features</text>',
    ]
    for x in range(math.ceil(xs[0]), math.floor(xs[-1]) + 1):
        at, _ = place(x, low)
        parts.append(f'<path d="M{at:.1f} {top}V{top + height}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{top + height + 18}" text-anchor="middle">'
            f"{10**x:,}</text>"
        )
    for y in range(low, high + 1):
        _, at = place(xs[0], y)
        parts.append(f'<path d="M{left} {at:.1f}H{left + width}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**y:g}</text>'
        )
    ends = [place(xs[0], ys[0]), place(xs[-1], ys[0] + xs[-1] - xs[0])]
    dashed = " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)
    parts.append(
        f'<polyline points="{dashed}" fill="none" stroke="#999" stroke-dasharray="5 4"/>'
    )
    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in zip(xs, ys))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#0072b2"/>')
    for x, y in zip(xs, ys):
        at, up = place(x, y)
        parts.append(f'<circle cx="{at:.1f}" cy="{up:.1f}" r="4" fill="#0072b2"/>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def line(one):
    return f"fit {one['fit_seconds']:.2f} s, {one['cpu']:.2f} CPU seconds"


def main(argv=None):
    arguments = measure.parse_arguments(__doc__, argv)
    quick = arguments.quick
    table = measure.Table("forest")
    with tempfile.TemporaryDirectory(prefix="lockstep-forest-") as name:
        folder = pathlib.Path(name)
        xa, xb, ya, yb = save(folder, *made(20000 if quick else 200000))
        test = f"data.test={folder / 'b.npy'}"
        results = measure.interleave(
            {
                "threads": lambda: ours(folder, test),
                "ranks": lambda: ours(folder, test, ranks=2, threads=1),
            },
            max(arguments.rounds, 1 if quick else PAIRS),
            line,
        )
        words = [test, "forest.exchange=histograms"]
        results |= measure.interleave(
            {"histograms": lambda: ours(folder, *words, ranks=2, threads=1)},
            arguments.rounds,
            line,
        )
        table.runs["ours"] = {
            key: [{k: str(v) for k, v in one.items()} for one in runs]
            for key, runs in results.items()
        }
        model, wall, cpu = sklearn_fit(xa, ya)
        fit = measure.median(results["threads"], "fit_seconds")
        table.add("forest-fit", TREES / fit, TREES / wall, ">=25", "trees/s")
        used = measure.median(results["threads"], "cpu")
        table.add("forest-fit-cpu", TREES / used, TREES / cpu, None,
                  "trees a CPU second, ours with start, reading and scores")
        begun = time.time()
        score = model.score(xb, yb)
        predict = time.time() - begun
        ours_score = results["threads"][0]["test_accuracy"]
        table.add("forest-accuracy", ours_score, score, ">=0.9944", "test accuracy")
        table.add("forest-ranks", measure.median(results["ranks"], "fit_seconds"), fit,
                  "<=1.15", "s, two ranks over two threads")
        table.add("forest-histograms",
                  measure.median(results["histograms"], "fit_seconds"), fit, None,
                  "s, two ranks that exchange histograms")
        own = measure.median(results["threads"], "predict_seconds")
        table.add("forest-predict", len(yb) / own, len(yb) / predict, ">=5", "rows/s")
        table.add("forest-fit-dask", TREES / fit, TREES / dask_fit(xa, ya), None,
                  "trees/s, against two workers of Dask")
        for label, x, y in more_sets(quick):
            xa, xb, ya, yb = save(folder, x, y)
            peer, _, _ = sklearn_fit(xa, ya)
            got = ours(folder, test)["test_accuracy"]
            table.add(f"forest-accuracy-{label}", got, peer.score(xb, yb), ">=0.994",
                      "test accuracy")
        scaling(folder, table, quick)
    return table.write()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    sys.exit(main())
