"""Tables of HDF5 and NPY that a forest learns from, written by h5py and numpy:
shapes, types, filters, damage."""

import json

import h5py
import numpy as np
import pytest
from safetensors import safe_open
from trainer import metrics, refused, tensors, train, trained

SMALL = ["forest", "forest.trees=12", "forest.depth=8"]


def assert_same_model(run, other):
    a, b = (tensors(r / "checkpoints" / "last.safetensors") for r in (run, other))
    assert a == b


def write_h5(path, **sets):
    with h5py.File(path, "w") as file:
        for name, values in sets.items():
            file[name] = values
    return path


def test_data_sets_of_hdf5_that_do_not_fit(tmp_path):
    out = f"out={tmp_path / 'r'}"
    x, y = np.arange(100.0), np.arange(100) % 2

    def error(*parts, **sets):
        path = write_h5(tmp_path / "t.h5", **sets)
        refused(train(*SMALL, f"data.train={path}", out), str(path), *parts)

    error("the shape 100 x 2", "one number a row", x=x, label=np.stack([y, y], 1))
    error("'img' has the shape 100 x 8 x 8", img=np.zeros((100, 8, 8)), label=y)
    error("'x' has 99 rows, 'label' has 100", x=x[:99], label=y)
    twice = {"x": np.stack([x, x], 1), "x.0": x, "label": y}
    error("column 'x.0' stands twice", **twice)
    words = np.array(["a", "b"], dtype=h5py.string_dtype())[y]
    error("data.label=label", "holds no numbers", x=x, label=words)
    path = write_h5(tmp_path / "t.h5", x=x, label=y.reshape(-1, 1), name=words)
    done = trained(*SMALL, f"data.train={path}", out)
    assert "'name' is passed over: it holds no numbers" in done.stderr


def test_a_damaged_data_set_of_hdf5_is_not_passed_over(tmp_path):
    """Else the forest would be grown without that column."""
    x = np.arange(100.0)
    path = write_h5(tmp_path / "t.h5", a=x, b=x, label=np.arange(100) % 2)
    with h5py.File(path) as file:
        where = h5py.h5o.get_info(file["b"].id).addr
    whole = bytearray(path.read_bytes())
    whole[where : where + 16] = b"\xff" * 16
    path.write_bytes(whole)
    done = train(*SMALL, f"data.train={path}", f"out={tmp_path / 'r'}")
    refused(done, str(path), "data sets is damaged or cut off")


def test_a_filter_of_hdf5_that_is_not_here_is_named(tmp_path):
    """The file is not damaged, whatever the library says."""
    path, out = tmp_path / "t.h5", f"out={tmp_path / 'r'}"
    x = np.repeat(np.arange(10.0), 40)  # a chunk that grew would be left as it is
    write_h5(path, label=np.arange(400) % 2)

    def packed(**how):
        with h5py.File(path, "r+") as file:
            if "x" in file:
                del file["x"]
            file.create_dataset("x", data=x, chunks=(100,), **how)
        return train(*SMALL, f"data.train={path}", out)

    told = [str(path), "'x' is compressed with lzf, which is not supported"]
    text = refused(packed(compression="lzf"), *told, "accepted: gzip")
    assert "damaged" not in text
    done = packed(compression="gzip", shuffle=True, fletcher32=True)
    assert done.returncode == 0, done.stderr


def test_booleans_of_hdf5_are_0_and_1(tmp_path):
    rng = np.random.default_rng(0)
    flag = rng.integers(0, 2, 400).astype(bool)
    sets = {"noise": rng.normal(size=400), "flag": flag}
    for name, label in [("number", flag.astype(int)), ("bool", flag)]:
        path = write_h5(tmp_path / f"{name}.h5", **sets, label=label)
        run = tmp_path / name
        trained(*SMALL, f"data.train={path}", "forest.features=2", f"out={run}")
        assert float(metrics(run)[-1]["test_accuracy"]) == 1
    assert_same_model(tmp_path / "number", tmp_path / "bool")
    with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
        assert json.loads(file.metadata()["lockstep.classes"]) == ["0", "1"]


@pytest.mark.parametrize("kind", ["<f2", ">f2", ">f4", ">f8", ">i4", "<u2", "|i1", "?"])
def test_numbers_of_npy(kind, tmp_path):
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(300, 3)) * 20).astype(kind)
    if kind == "<f2":
        x[:3, 0] = [6e-8, -6e-5, 65504]
    y = rng.integers(0, 2, 300)
    for name, numbers in [("a", x), ("b", x.astype("<f4"))]:
        np.save(tmp_path / f"{name}.npy", numbers)
        np.save(tmp_path / "y.npy", y.astype(">i8" if name == "a" else "<i8"))
        words = [f"data.train={tmp_path / name}.npy", f"data.label={tmp_path / 'y.npy'}"]
        trained(*SMALL, *words, f"out={tmp_path / name}")
    assert_same_model(tmp_path / "a", tmp_path / "b")
