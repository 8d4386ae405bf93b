"""The forest against scikit-learn, on one rank and several, from every kind of
file, and what it says to bad input. Its model file is read here by the
safetensors package and walked by a few lines of numpy."""

import csv
import json
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from sklearn.datasets import load_digits, make_classification, make_friedman1
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split
from trainer import LOCKSTEP, TRAIN, Ranks, clean_environment, events, metrics
from trainer import refused, run_ranks, train, trained

MPIRUN = shutil.which("mpirun")
SMALL = ["forest", "forest.trees=12", "forest.depth=8"]


def write_csv(path, x, y, names=None):
    names = names or [f"f{i}" for i in range(x.shape[1])]
    with open(path, "w") as file:
        file.write(",".join([*names, "label"]) + "\n")
        for row, label in zip(x, y):
            file.write(",".join([*(repr(float(v)) for v in row), str(label)]) + "\n")
    return path


def values(run):
    return {name: float(value) for name, value in metrics(run)[-1].items()}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A small table as CSV, NPY and HDF5."""
    folder = tmp_path_factory.mktemp("table")
    x, y = make_classification(
        n_samples=3000, n_features=8, n_informative=5, n_classes=3, random_state=1
    )
    x = x.astype(np.float32)
    write_csv(folder / "t.csv", x, y)
    np.save(folder / "t.npy", np.column_stack([x, y]).astype(np.float32))
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.int64))
    with h5py.File(folder / "t.h5", "w") as file:
        for i in range(x.shape[1]):
            file[f"f{i}"] = x[:, i]
        file["label"] = y.astype(np.int16)
    return folder


def model(run):
    return load_file(run / "checkpoints" / "last.safetensors")


def assert_same_model(run, other):
    a, b = model(run), model(other)
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def alone(table, tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    trained(*SMALL, f"data.train={table / 't.csv'}", f"out={run}", "forest.threads=1")
    return run


def sets():
    """Rows, labels, and over how many splits of them the scores are averaged."""
    x, y = make_classification(
        n_samples=24000,
        n_features=16,
        n_informative=10,
        n_classes=4,
        random_state=0,
    )
    yield pytest.param(x, y, 1, id="made")
    x, y = make_classification(
        n_samples=16000, n_features=30, n_informative=12, random_state=3
    )
    yield pytest.param(x, y, 1, id="two-classes")
    yield pytest.param(*load_digits(return_X_y=True), 4, id="digits")


def fit_both(x, y, seed, folder):
    """The peer, our run and the scores of both on the same split."""
    xa, xb, ya, yb = train_test_split(
        x.astype(np.float32), y, test_size=0.3, random_state=seed
    )
    folder.mkdir()
    for name, px, py in [("a", xa, ya), ("b", xb, yb)]:
        np.save(folder / f"{name}.npy", np.column_stack([px, py]).astype("f4"))
    run = folder / "run"
    trained(
        "forest",
        f"data.train={folder / 'a.npy'}",
        f"data.test={folder / 'b.npy'}",
        "forest.trees=100",
        "forest.out_of_bag=true",
        f"out={run}",
    )
    peer = RandomForestClassifier(
        100, criterion="entropy", max_depth=15, random_state=0, n_jobs=2, oob_score=True
    ).fit(xa, ya)
    ours = values(run)
    names = ["test_accuracy", "train_accuracy", "out_of_bag_accuracy"]
    scores = [peer.score(xb, yb), peer.score(xa, ya), peer.oob_score_]
    return peer, run, [ours[name] for name in names], scores


@pytest.mark.parametrize("x, y, splits", list(sets()))
def test_as_accurate_as_scikit_learn(x, y, splits, tmp_path):
    both = [fit_both(x, y, i, tmp_path / f"{i}") for i in range(splits)]
    ours = np.mean([one[2] for one in both], axis=0)
    theirs = np.mean([one[3] for one in both], axis=0)
    print("test, training, out of bag:", ours, theirs)
    # Half a point, on 1,620 rows to test at the least.
    assert ours[0] > theirs[0] - 0.005
    assert ours[1] > theirs[1] - 0.01
    assert abs(ours[2] - theirs[2]) < 0.01
    peer, run = both[0][:2]
    lines = (run / "importances.csv").read_text().splitlines()[1:]
    weights = np.array([float(line.split(",")[1]) for line in lines])
    assert abs(weights.sum() - 1) < 1e-6
    assert np.corrcoef(weights, peer.feature_importances_)[0, 1] > 0.9
    assert (run / "plots" / "importances.svg").exists()
    assert (run / "test" / "confusion.csv").exists()


def test_numbers_as_well_as_scikit_learn(tmp_path):
    x, y = make_friedman1(n_samples=4000, random_state=3)
    xa, xb, ya, yb = train_test_split(x, y, test_size=0.3, random_state=0)
    for name, px, py in [("a", xa, ya), ("b", xb, yb)]:
        np.save(tmp_path / f"{name}.npy", np.column_stack([px, py]))
    run = tmp_path / "run"
    trained(
        "forest",
        f"data.train={tmp_path / 'a.npy'}",
        f"data.test={tmp_path / 'b.npy'}",
        "forest.criterion=squared_error",
        "forest.features=10",
        "forest.trees=60",
        f"out={run}",
    )
    peer = RandomForestRegressor(60, max_depth=15, random_state=0, n_jobs=2).fit(xa, ya)
    assert values(run)["test_r2"] > peer.score(xb, yb) - 0.01


def walk_numbers(path, x):
    _, mean = walk(path, x)
    with safe_open(path, "np") as file:
        return mean[:, 0] + float(file.metadata()["lockstep.offset"])


@pytest.mark.parametrize("offset", [0, 1e7, 1.7e9, -1e12])
def test_labels_large_compared_with_their_spread(offset, tmp_path):
    x = np.random.default_rng(1).normal(size=(2000, 3))
    y = offset + 100 * x[:, 0]
    path = tmp_path / "t.npy"
    np.save(path, np.column_stack([x, y]))
    run, out = tmp_path / "run", tmp_path / "p.csv"
    words = ["forest.criterion=squared_error", "forest.features=3", "forest.out_of_bag=true"]
    trained(*SMALL, *words, f"data.train={path}", f"out={run}")
    got = values(run)
    assert all(got[f"{name}_r2"] > 0.95 for name in ["train", "test", "out_of_bag"]), got
    file = run / "checkpoints" / "last.safetensors"
    trained("forest", "predict", f"checkpoint={file}", f"data.test={path}", f"predictions={out}")
    predictions = np.array([float(line) for line in out.read_text().splitlines()[1:]])
    assert np.sqrt(np.mean((predictions - y) ** 2)) < 10
    assert np.abs(predictions - walk_numbers(file, x.astype("f4"))).max() < 1e-2
    words += [f"data.train={path}", "forest.threads=2"]
    run_ranks(tmp_path, [*SMALL, *words, f"out={tmp_path / 'ranks'}"], world=2)
    assert_same_model(tmp_path / "ranks", run)
    offsets = []
    for one in [run, tmp_path / "ranks"]:
        with safe_open(one / "checkpoints" / "last.safetensors", "np") as opened:
            offsets.append(opened.metadata()["lockstep.offset"])
    assert offsets[0] == offsets[1]
    done = trained("forest", "test", f"checkpoint={file}", f"data.test={path}")
    assert float(done.stdout.split("test_r2 ")[1].split()[0]) > 0.95


def test_small_labels_beside_large_ones(tmp_path):
    """A leaf a label: each is found again, but for a step of fixed point."""
    y = 10 ** np.linspace(-2, 6, 200)
    path = write_csv(tmp_path / "t.csv", np.arange(200.0)[:, None], y)
    words = ["forest.criterion=squared_error", "forest.bootstrap=false", "forest.trees=1"]
    words += ["forest.depth=0", "data.held_out=0", f"data.train={path}"]
    trained("forest", *words, f"out={tmp_path / 'r'}")
    file, out = tmp_path / "r" / "checkpoints" / "last.safetensors", tmp_path / "p.csv"
    trained("forest", "predict", f"checkpoint={file}", f"data.test={path}", f"predictions={out}")
    predictions = np.array([float(line) for line in out.read_text().splitlines()[1:]])
    assert (np.abs(predictions - y) < 1e6 / 2**30 + 1e-6 * y).all()


def test_a_model_without_an_offset_has_whole_leaves(tmp_path):
    x = np.arange(200.0)
    path = write_csv(tmp_path / "t.csv", x[:, None], 3 * x + 1000)
    run, out = tmp_path / "run", tmp_path / "p.csv"
    trained(*SMALL, "forest.criterion=squared_error", f"data.train={path}", f"out={run}")
    file = run / "checkpoints" / "last.safetensors"
    words = ["forest", "predict", f"data.test={path}", f"predictions={out}"]
    trained(*words, f"checkpoint={file}")
    new = np.array([float(line) for line in out.read_text().splitlines()[1:]])
    tensors = load_file(file)
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors["leaf.value"] += np.float32(metadata.pop("lockstep.offset"))
    save_file(tensors, tmp_path / "old.safetensors", metadata)
    trained(*words, f"checkpoint={tmp_path / 'old.safetensors'}")
    old = np.array([float(line) for line in out.read_text().splitlines()[1:]])
    assert np.abs(old - new).max() < 1e-3
    save_file(tensors, tmp_path / "bad.safetensors", {**metadata, "lockstep.offset": "nan"})
    done = train(*words, f"checkpoint={tmp_path / 'bad.safetensors'}")
    refused(done, "not a forest of lockstep", "lockstep.offset")


def test_an_outlier_among_labels_is_told(tmp_path):
    x = np.random.default_rng(1).normal(size=(300, 2))
    y = x[:, 0].copy()
    words = [*SMALL, "forest.criterion=squared_error", f"out={tmp_path / 'r'}"]
    path = write_csv(tmp_path / "t.csv", x, y)
    assert "outliers" not in trained(*words, f"data.train={path}").stderr
    y[:2] = 1e12
    path = write_csv(tmp_path / "o.csv", x, y)
    done = trained(*words, f"data.train={path}", "data.held_out=0")
    assert "told apart by 931" in done.stderr and "outliers" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["forest.threads=2"],
        ["forest.threads=4"],
    ],
)
def test_same_model_with_threads(words, table, alone, tmp_path):
    run = tmp_path / "run"
    trained(*SMALL, f"data.train={table / 't.csv'}", f"out={run}", *words)
    assert_same_model(run, alone)


@pytest.mark.parametrize("exchange", ["rows", "histograms"])
def test_same_model_on_ranks(exchange, table, alone, tmp_path):
    run = tmp_path / "run"
    words = [*SMALL, f"data.train={table / 't.csv'}", f"out={run}"]
    words += [f"forest.exchange={exchange}", "forest.local_rows=100"]
    run_ranks(tmp_path, words, world=3)
    assert_same_model(run, alone)
    assert values(run)["test_accuracy"] == values(alone)["test_accuracy"]
    assert {e["rank"] for e in events(run) if e["kind"] == "iteration"} == {0, 1, 2}


def test_each_tree_is_grown_of_all_rows_whoever_counts(table, alone, tmp_path):
    """Samples of all ranks together do not depend on their number."""
    runs = {"alone": alone}
    for exchange in ["rows", "histograms"]:
        runs[exchange] = tmp_path / exchange
        words = [*SMALL, f"data.train={table / 't.csv'}", f"out={runs[exchange]}"]
        run_ranks(tmp_path, [*words, f"forest.exchange={exchange}"], world=2)
    for name, run in runs.items():
        rows = int(events(run, "init", 0)[0]["facts"]["rows"])
        for kind in ["iteration", "epoch"]:
            assert sum(e["samples"] for e in events(run, kind)) == 12 * rows, (name, kind)


def test_same_model_under_launchers(table, alone, tmp_path):
    words = [TRAIN, *SMALL, f"data.train={table / 't.csv'}"]
    commands = {"lockstep": [LOCKSTEP, "run", "--procs", "2"]}
    commands["lockstep"] += ["--runs-dir", str(tmp_path / "runs"), "--"]
    if MPIRUN:
        commands["mpirun"] = [MPIRUN, "--allow-run-as-root", "--oversubscribe"]
        commands["mpirun"] += ["-np", "2"]
    for name, command in commands.items():
        run = tmp_path / name
        subprocess.run(
            [*command, *words, f"out={run}", f"trainer.checkpoint_dir={run / 'checkpoints'}"],
            env=clean_environment(),
            check=True,
            timeout=120,
            capture_output=True,
        )
        assert_same_model(run, alone)


def test_same_model_from_every_file(table, alone, tmp_path):
    for i, words in enumerate(
        [
            [f"data.train={table / 't.h5'}"],
            [f"data.train={table / 't.npy'}"],
            [f"data.train={table / 'x.npy'}", f"data.label={table / 'y.npy'}"],
        ]
    ):
        run = tmp_path / str(i)
        trained(*SMALL, *words, f"out={run}")
        assert_same_model(run, alone)


def test_npy_with_its_columns_together(table, alone, tmp_path):
    """As pandas gives them to numpy."""
    whole = np.load(table / "t.npy")
    for name, array in [("t", whole), ("x", whole[:, :-1])]:
        np.save(tmp_path / f"{name}.npy", np.asfortranarray(array))
        assert b"'fortran_order': True" in (tmp_path / f"{name}.npy").read_bytes()[:100]
    labels = f"data.label={table / 'y.npy'}"
    for i, words in enumerate([["t"], ["x", labels]]):
        run = tmp_path / str(i)
        train_words = [f"data.train={tmp_path / words[0]}.npy", *words[1:]]
        trained(*SMALL, *train_words, f"out={run}")
        assert_same_model(run, alone)


def walk(path, x):
    """Shares of classes as docs/forest.md says that they are found."""
    t = load_file(path)
    with safe_open(path, "np") as file:
        classes = json.loads(file.metadata()["lockstep.classes"])
    total = np.zeros((len(x), max(1, len(classes))))
    starts = zip(t["tree.node_start"][:-1], t["tree.value_start"][:-1])
    for node_start, value_start in starts:
        at = np.full(len(x), node_start)
        while True:
            feature = t["node.feature"][at]
            inner = feature >= 0
            if not inner.any():
                break
            right = x[np.arange(len(x)), np.maximum(feature, 0)] > t["node.threshold"][at]
            child = node_start + t["node.link"][at].astype(np.int64) + right
            at = np.where(inner, child, at)
        total += t["leaf.value"][value_start + t["node.link"][at].astype(np.int64)]
    return classes, total / (len(t["tree.node_start"]) - 1)


def test_predictions_are_those_of_the_documented_model(table, alone, tmp_path):
    file = alone / "checkpoints" / "last.safetensors"
    out = tmp_path / "p.csv"
    words = ["forest", "predict", f"checkpoint={file}", f"predictions={out}"]
    trained(*words, f"data.test={table / 't.csv'}", "probabilities=true")
    x = np.load(table / "x.npy")
    classes, shares = walk(file, x)
    lines = [line.split(",") for line in out.read_text().splitlines()]
    assert lines[0] == ["prediction", *classes]
    got = np.array([[float(v) for v in line[1:]] for line in lines[1:]])
    assert np.abs(got - shares).max() < 1e-5
    assert [line[0] for line in lines[1:]] == [classes[i] for i in got.argmax(1)]
    # Without a label column, and by two ranks, each its part.
    bare = tmp_path / "bare.csv"
    whole = (table / "t.csv").read_text().splitlines()
    bare.write_text("\n".join(line.rpartition(",")[0] for line in whole) + "\n")
    trained(*words, f"data.test={bare}")
    assert out.read_text().splitlines()[1:] == [line[0] for line in lines[1:]]
    run_ranks(tmp_path, [*words, f"data.test={table / 't.csv'}"])
    parts = [(tmp_path / f"p-{rank}.csv").read_text().splitlines() for rank in (0, 1)]
    assert parts[0][1:] + parts[1][1:] == [line[0] for line in lines[1:]]


def test_a_failed_prediction_leaves_the_old_file(table, alone, tmp_path):
    file = alone / "checkpoints" / "last.safetensors"
    words = ["forest", "predict", f"checkpoint={file}"]
    lines = (table / "t.csv").read_text().splitlines()
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*lines, lines[1].replace(",", ",x", 1)]) + "\n")
    out = tmp_path / "p.csv"
    out.write_text("old\n")
    refused(train(*words, f"data.test={bad}", f"predictions={out}"), "is not a number")
    assert out.read_text() == "old\n"
    # A link is followed, and nothing is left behind.
    link = tmp_path / "link.csv"
    link.symlink_to(out)
    trained(*words, f"data.test={table / 't.csv'}", f"predictions={link}")
    assert link.is_symlink() and len(out.read_text().splitlines()) == len(lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv", "link.csv", "p.csv"]


def test_predictions_never_replace_an_input(table, alone, tmp_path):
    file = alone / "checkpoints" / "last.safetensors"
    one = tmp_path / "in" / "one.csv"
    one.parent.mkdir()
    shutil.copy(table / "t.csv", one)
    link = tmp_path / "link.csv"
    link.symlink_to(one)
    words = ["forest", "predict", f"checkpoint={file}", f"data.test={one}"]
    whole, model_bytes = one.read_bytes(), file.read_bytes()
    for target in [one, link, file]:
        refused(train(*words, f"predictions={target}"), "is read by this very command")
    refused(train(*words, f"predictions={tmp_path}"), "not a regular file")
    words[-1] = f"data.test={one.parent}"
    refused(train(*words, f"predictions={one.parent / 'p.csv'}"), "whose files are the table")
    assert one.read_bytes() == whole and file.read_bytes() == model_bytes
    # A table that a folder has by a link, by either of its names.
    links = tmp_path / "links"
    links.mkdir()
    (links / "x.csv").symlink_to(one)
    words[-1] = f"data.test={links}"
    for target in [links / "x.csv", one]:
        refused(train(*words, f"predictions={target}"), "is read by this very command")
    other = tmp_path / "other.txt"
    other.write_text("other")
    (links / "p.txt").symlink_to(other)
    refused(train(*words, f"predictions={links / 'p.txt'}"), "whose files are the table")
    assert one.read_bytes() == whole and other.read_text() == "other"
    target = tmp_path / "nx" / "dir" / "p.csv"
    refused(train(*words, f"predictions={target}"), f"there is no folder {target.parent}")


def test_labels_of_a_file_are_of_one_table(table, tmp_path):
    """A test table of as many rows must not be scored with the training labels."""
    out = f"out={tmp_path / 'r'}"
    y = np.load(table / "y.npy")
    np.save(tmp_path / "turned.npy", np.load(table / "x.npy")[::-1])
    np.save(tmp_path / "labels.npy", y[::-1])
    words = [*SMALL, f"data.train={table / 'x.npy'}", f"data.label={table / 'y.npy'}", out]
    test = f"data.test={tmp_path / 'turned.npy'}"
    refused(train(*words, test), "data.test_label=FILE.npy")
    trained(*words, test, f"data.test_label={tmp_path / 'labels.npy'}")
    assert values(tmp_path / "r")["test_accuracy"] > 0.75
    file = f"checkpoint={tmp_path / 'r' / 'checkpoints' / 'last.safetensors'}"
    trained("forest", "test", file)
    refused(train("forest", "test", file, test), "data.test_label=FILE.npy")
    for key in ["label", "test_label"]:
        done = trained("forest", "test", file, test, f"data.{key}={tmp_path / 'labels.npy'}")
        assert float(done.stdout.split("test_accuracy ")[1].split()[0]) > 0.75
    trained("forest", "predict", file, test, f"predictions={tmp_path / 'p.csv'}")
    # Nor do they belong to each of several tables.
    several = tmp_path / "several"
    several.mkdir()
    for name in ["a", "b"]:
        shutil.copy(table / "x.npy", several / f"{name}.npy")
    words[3] = f"data.train={several}"
    refused(train(*words), "several tables", "accepted: a folder with one .npy")
    refused(train(*words, "data.label="), "data.label is empty")


def predicted(folder, training, label, tests):
    """What a forest of `training` says of each of `tests`, as texts."""
    run = folder / f"run-{training}"
    trained(*SMALL, f"data.train={folder / training}", f"data.label={label}", f"out={run}")
    file = f"checkpoint={run / 'checkpoints' / 'last.safetensors'}"
    texts = []
    for name in tests:
        out = folder / f"{name}.out"
        trained("forest", "predict", file, f"data.test={folder / name}", f"predictions={out}")
        texts.append(out.read_text())
    return texts


def test_predict_knows_the_label_of_its_model(table, tmp_path):
    lines = (table / "t.csv").read_text().splitlines()
    for name, label in [("a", "0"), ("b", "unknown")]:
        rows = [f"{line.rpartition(',')[0]},{label},r{i}" for i, line in enumerate(lines)]
        rows[0] = lines[0].replace("label", "y") + ",note"
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    whole = [lines[0].replace("label", "y"), *lines[1:]]
    (tmp_path / "train.csv").write_text("\n".join(whole) + "\n")
    a, b = predicted(tmp_path, "train.csv", "y", ["a.csv", "b.csv"])
    assert a == b
    # NPY: columns beside a label in the middle, which a table without it has too.
    whole = np.load(table / "t.npy")
    np.save(tmp_path / "m.npy", np.roll(whole, 4, axis=1))
    x = np.delete(np.load(tmp_path / "m.npy"), 3, axis=1)
    np.save(tmp_path / "x.npy", x)
    m, x = predicted(tmp_path, "m.npy", "3", ["m.npy", "x.npy"])
    assert m == x


def test_predict_looks_at_no_label_of_a_folder(table, tmp_path):
    lines = (table / "t.csv").read_text().splitlines()
    bare = [line.rpartition(",")[0] for line in lines]
    third = len(lines) // 3
    parts = {
        "a": [lines[0], *(f"{line},cloud" for line in bare[1:third])],
        "b": [bare[0], *bare[third : 2 * third]],
        "c": [lines[0], *lines[2 * third :]],
    }
    (tmp_path / "all").mkdir()
    for name, rows in parts.items():
        (tmp_path / "all" / f"{name}.csv").write_text("\n".join(rows) + "\n")
    shutil.copy(table / "t.csv", tmp_path)
    whole, folder = predicted(tmp_path, "t.csv", "label", ["t.csv", "all"])
    assert folder == whole


def test_predictions_are_not_named_as_other_tables(table, alone, tmp_path):
    file = alone / "checkpoints" / "last.safetensors"
    words = ["forest", "predict", f"checkpoint={file}", f"data.test={table / 't.csv'}"]
    told = ["a table as text is written", "accepted: a name that ends in .csv"]
    for name in ["p.npy", "p.h5", "p.HDF5"]:
        refused(train(*words, f"predictions={tmp_path / name}"), name, *told)
    # Nor by a link to such a name.
    (tmp_path / "p.npy").write_text("old")
    (tmp_path / "p.csv").symlink_to(tmp_path / "p.npy")
    refused(train(*words, f"predictions={tmp_path / 'p.csv'}"), "p.npy", *told)
    assert (tmp_path / "p.npy").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.csv", "p.npy"]


def test_a_new_model_leaves_the_old_one(table, tmp_path):
    run = tmp_path / "run"
    trained(*SMALL, f"data.train={table / 't.csv'}", f"out={run}")
    old = (run / "checkpoints" / "last.safetensors").read_bytes()
    words = ["forest", "forest.trees=1", f"data.train={table / 't.csv'}", f"out={run}"]
    trained(*words)
    assert (run / "checkpoints" / "previous-last.safetensors").read_bytes() == old
    assert len(model(run)) and (run / "checkpoints" / "last.safetensors").read_bytes() != old


def test_verb_test_scores_a_table(table, alone):
    file = alone / "checkpoints" / "last.safetensors"
    done = trained("forest", "test", f"checkpoint={file}", f"data.test={table / 't.csv'}")
    score = float(done.stdout.split("test_accuracy ")[1].split()[0])
    assert score > 0.75


@pytest.mark.parametrize(
    "text, parts, words",
    [
        ("a,b\n1,2\n", ["data.label=label", "no such column"], []),
        ("a,labl\n1,2\n", ["did you mean 'labl'"], []),
        ("a,label\nx,1\n2,0\n", ["t.csv:2", "'x' is not a number"], []),
        ("a,label\n+2,1\n+-2,0\n", ["t.csv:3", "'+-2' is not a number"], []),
        ("a,label\n1,1\nnan,0\n2,0\n", ["t.csv:3", "data.missing=drop"], []),
        ("a,label\n1,1\n2,0\n3,7\n", ["label '7'", "accepted: 0, 1"], ["data.classes=[0,1]"]),
        ("a,label\n1,1\n2,1.5\n", ["label '1.5'", "squared_error"], ["data.classes=[0,1]"]),
        (
            "a,label\n1,1\n2,0\n3,70\n",
            ["accepted: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... and 15 more"],
            [f"data.classes={list(range(25))}".replace(" ", "")],
        ),
        ("a,label\n1,1\n2,0\n", ["data.classes: '0' stands twice"], ["data.classes=[0,0.0,1]"]),
        (
            "a,label\n1,1\n2,0\n",
            ["data.classes with forest.criterion=squared_error"],
            ["data.classes=[0,1]", "forest.criterion=squared_error"],
        ),
        (
            "a,label\n1,1\n2,0\n",
            ["forest.class_weights with forest.criterion=squared_error"],
            ["forest.class_weights=balanced", "forest.criterion=squared_error"],
        ),
        (
            "a,label\n1,1\n2,-1e300\n",
            ["t.csv:3", "label -1e+300 is outside of float32", "3.4e38"],
            ["forest.criterion=squared_error"],
        ),
        (
            "a,label\n1,1\n2,9007199254740993\n",
            ["t.csv:3: column 'label': label 9007199254740992 cannot be told", "2^53"],
            [],
        ),
        ("a,label\n1,1\n2,-1e16\n", ["t.csv:3", "label -10000000000000000 cannot"], []),
        ("a,label\n1,1\n1e300,0\n", ["t.csv:3: column 'a' is", "outside of float32"], []),
        ("a,label\n1,1\n1e400,0\n", ["t.csv:3: column 'a' is", "outside of float32"], []),
        ("a,label\n1,1\n2\0,0\n", ["'2\\x00' is not a number"], []),
        ("a,label\n1,1\n", ["1 rows"], []),
        ("a,label\n1,1\n2,1\n3,1\n", ["every label is '1'"], []),
        ("", ["no header"], []),
        ("a,label\n1,b\n2,a\n", ["words"], ["forest.criterion=squared_error"]),
        ("a,label\n1,1\n2,0\n", ["forest.features=3"], ["forest.features=3"]),
        ("a,label\n1,1\n2,0\n", ["3 weights for 2"], ["forest.class_weights=1,2,3"]),
    ],
)
def test_bad_tables(text, parts, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    done = train(
        "forest", f"data.train={path}", "data.held_out=0", f"out={tmp_path / 'r'}", *words
    )
    refused(done, *parts)


def test_classes_of_held_out_rows_are_known(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,label\n" + "".join(f"{i},r{i}\n" for i in range(50)))
    run = tmp_path / "r"
    trained(*SMALL, f"data.train={path}", f"out={run}")
    assert values(run)["test_accuracy"] == 0
    with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
        assert len(json.loads(file.metadata()["lockstep.classes"])) == 50
    # Fractions may be classes, but rarely are.
    path.write_text("a,label\n" + "".join(f"{i},{i / 4}\n" for i in range(50)))
    done = trained(*SMALL, f"data.train={path}", f"out={run}")
    assert "50 different labels are taken for classes" in done.stderr


def test_ranks_agree_on_what_labels_are(tmp_path):
    """-0 is 0, on whichever rank it is first seen; and there are as many classes
    as all ranks see together."""
    x = np.arange(400.0)
    y = np.where(x % 40 < 20, 0.0, 1.0)
    y[200:][y[200:] == 0] = -0.0
    np.save(tmp_path / "t.npy", np.column_stack([x, y]))
    runs = [tmp_path / "one", tmp_path / "two"]
    words = [*SMALL, f"data.train={tmp_path / 't.npy'}", "data.classes=[0,1]"]
    for accepted in [words, words[:-1]]:
        trained(*accepted, f"out={runs[0]}")
        run_ranks(tmp_path, [*accepted, f"out={runs[1]}"], world=2)
        assert_same_model(*runs)
        for run in runs:
            with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
                assert json.loads(file.metadata()["lockstep.classes"]) == ["0", "1"]
    x = np.arange(1500.0)
    np.save(tmp_path / "t.npy", np.column_stack([x, x]))
    words = [*SMALL, f"data.train={tmp_path / 't.npy'}", f"out={tmp_path / 'many'}"]
    refused(train(*words), "more than 1000 different labels", "squared_error")
    with Ranks(tmp_path, words, world=2) as ranks:
        assert ranks.wait() == [2, 2], ranks.output()
        assert "more than 1000 different labels" in ranks.output()


def test_a_score_of_no_rows_is_none(table, alone, tmp_path):
    path = write_csv(tmp_path / "t.csv", np.arange(4.0)[:, None], [0, 1, 0, 1])
    run = tmp_path / "r"
    done = trained(*SMALL, f"data.train={path}", "data.held_out=0.0001", f"out={run}")
    assert "no row of so few was held out" in done.stderr
    assert "test_accuracy" not in values(run)
    words = ["forest.trees=1", "forest.sample=2", "forest.out_of_bag=true", "data.held_out=0"]
    path = write_csv(tmp_path / "two.csv", np.arange(2.0)[:, None], [0, 1])
    done = trained("forest", *words, f"data.train={path}", f"out={run}")
    assert "not scored out of bag" in done.stderr
    assert "out_of_bag_accuracy" not in values(run)
    names = (table / "t.csv").read_text().splitlines()[0]
    (tmp_path / "none.csv").write_text(names + "\n")
    none = f"data.test={tmp_path / 'none.csv'}"
    words = [*SMALL, f"data.train={table / 't.csv'}", f"out={tmp_path / 'n'}"]
    refused(train(*words, none), "none.csv: a table without rows")
    assert not list((tmp_path / "n").rglob("*.safetensors"))
    file = f"checkpoint={alone / 'checkpoints' / 'last.safetensors'}"
    refused(train("forest", "test", file, none), "no whole row to test on")


def test_a_bad_test_table_is_refused_before_trees_are_grown(table, tmp_path):
    words = [*SMALL, f"data.train={table / 't.csv'}", f"out={tmp_path / 'r'}"]
    other = tmp_path / "other.csv"
    lines = (table / "t.csv").read_text().splitlines()
    bare = [line.rpartition(",")[0] for line in lines]
    for text, part in [
        ("f0,f1,label\n1,2,0\n", "no column 'f2', 'f3'"),
        ("\n".join(bare) + "\n", "data.label=label"),
        (None, "no such table"),
    ]:
        if text is None:
            other.unlink()
        else:
            other.write_text(text)
        refused(train(*words, f"data.test={other}"), "other.csv", part)
        assert not list(tmp_path.rglob("*.safetensors"))


def damaged(file, path, change):
    """A copy of a model with one of its tensors changed."""
    tensors = load_file(file)
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    change(tensors)
    save_file(tensors, path, metadata)
    return path


@pytest.mark.parametrize(
    "name, value, part",
    [
        ("leaf.value", np.nan, "a leaf's share"),
        ("leaf.value", 5, "a leaf's share"),
        ("leaf.value", -1, "a leaf's share"),
        ("bin.edge", np.nan, "do not ascend"),
        ("bin.edge", 1e30, "do not ascend"),
        ("node.threshold", 1e30, "node.bin and node.threshold of tree 0 disagree"),
        ("node.bin", 255, "node.bin and node.threshold of tree 0 disagree"),
    ],
)
def test_numbers_of_a_model_that_cannot_be(name, value, part, table, alone, tmp_path):
    def change(tensors):
        tensors[name].reshape(-1)[0] = value

    file = alone / "checkpoints" / "last.safetensors"
    bad = damaged(file, tmp_path / "bad.safetensors", change)
    done = train("forest", "test", f"checkpoint={bad}", f"data.test={table / 't.csv'}")
    refused(done, "not a forest of lockstep", part)


def test_bad_files(table, tmp_path):
    out = f"out={tmp_path / 'r'}"
    refused(train("forest", out), "data.train is not set")
    refused(train("forest", "data.train=/none.csv", out), "/none.csv", "no such table")
    refused(train("dcgan", "predict"), "'predict' is neither a verb", "train, test")
    for name, size in [("t.h5", 3000), ("t.npy", 3000), ("t.npy", 40), ("t.h5", 100)]:
        cut = tmp_path / name
        cut.write_bytes((table / name).read_bytes()[:size])
        refused(train("forest", f"data.train={cut}", out), str(cut), "cut off")
    refused(train("forest", "predict"), "checkpoint=MODEL")


@pytest.mark.parametrize("text", ["nan,1", "inf,1", "1,-2", "0,0", "1,", "", "1;2", "1e308,1,1"])
def test_bad_class_weights(text, table):
    done = train("forest", f"data.train={table / 't.csv'}", f"forest.class_weights={text}")
    refused(done, "forest.class_weights", "accepted: none, balanced")


def test_out_of_bag_needs_a_bag(table):
    words = ["forest.out_of_bag=true", "forest.bootstrap=false"]
    refused(train("forest", f"data.train={table / 't.csv'}", *words), *words)


def test_names_with_commas_are_quoted(tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f'{i},{i},"{"low, or 0" if i < 40 else "high"}"\n' for i in range(80))
    path.write_text('"a, m","b ""x""",y\n' + rows)
    run, out = tmp_path / "r", tmp_path / "p.csv"
    trained("forest", f"data.train={path}", "data.label=y", "forest.trees=5", f"out={run}")
    with open(run / "importances.csv") as file:
        assert [row[0] for row in csv.reader(file)][1:] == ["a, m", 'b "x"']
    file = f"checkpoint={run / 'checkpoints' / 'last.safetensors'}"
    words = [f"data.test={path}", f"predictions={out}", "probabilities=true"]
    trained("forest", "predict", file, *words)
    with open(out) as file:
        read = list(csv.reader(file))
    assert read[0] == ["prediction", "high", "low, or 0"]
    assert read[1][0] == "low, or 0" and all(len(row) == 3 for row in read)
    path.write_text("a,y\n1,p\n2,\n3,q\n")
    refused(train("forest", f"data.train={path}", "data.label=y"), "t.csv:3: column 'y' has no")


def test_names_that_are_not_utf_8_are_refused(tmp_path):
    """A model could not be written, which nobody should learn after the fit."""
    path = tmp_path / "t.csv"
    words = [*SMALL, f"data.train={path}", f"out={tmp_path / 'r'}"]
    path.write_bytes(b"caf\xe9,label\n1,0\n2,1\n3,0\n4,1\n")
    refused(train(*words), "t.csv:1: the name of column 'caf\\xe9' is not UTF-8")
    path.write_bytes(b"a,label\n1,x\n2,\xe9t\xe9\n3,x\n4,y\n")
    refused(train(*words), "t.csv:3: label '\\xe9t\\xe9' is not UTF-8")
    path.write_text("caf\u00e9,label\n1,\u00e9t\u00e9\n2,y\n3,y\n4,y\n", "utf-8")
    trained(*words, "data.held_out=0")


def test_constant_features_are_harmless(tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f"5,{i},5,{int(i >= 40)}\n" for i in range(80))
    path.write_text("a,b,c,label\n" + rows)
    run = tmp_path / "r"
    trained("forest", f"data.train={path}", "forest.features=1", f"out={run}")
    assert values(run)["test_accuracy"] > 0.9
    lines = (run / "importances.csv").read_text().splitlines()
    assert lines[1] == "a,0" and lines[2] == "b,1"


def test_a_table_of_other_columns_is_refused(alone, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("f0,f1,label\n1,2,0\n")
    file = alone / "checkpoints" / "last.safetensors"
    done = train("forest", "predict", f"checkpoint={file}", f"data.test={path}")
    refused(done, "no column 'f2', 'f3'")
