"""What ranks and tables agree on before trees are grown: the same files, and
labels that mean the same in each."""

import json
import shutil

from safetensors import safe_open
from trainer import Ranks, refused, run_ranks, tensors, train, trained


def write(path, labels):
    rows = [f"{i},{label}\n" for i, label in enumerate(labels)]
    path.write_text("a,label\n" + "".join(rows))
    return path


def test_ranks_that_see_other_files_are_told(tmp_path):
    """Each rank in a folder of its own, as hosts with disks of their own are."""
    table = write(tmp_path / "t.csv", ["a", "b"] * 50)
    for name, trees in [("m", 2), ("other", 3)]:
        run = tmp_path / name
        words = ["forest", f"forest.trees={trees}", f"data.train={table}", f"out={run}"]
        trained(*words, f"trainer.checkpoint_dir={run}")
    folders = [tmp_path / f"host-{rank}" for rank in (0, 1)]
    for folder in folders:
        folder.mkdir()
        shutil.copy(table, folder)
        shutil.copy(tmp_path / "m" / "last.safetensors", folder)
    write(folders[1] / "t.csv", ["a", "b"] * 49)

    def said(*words):
        with Ranks(tmp_path, ["forest", *words], cwd=lambda rank: folders[rank]) as ranks:
            assert ranks.wait() == [2, 2], ranks.output()
            return ranks.output()

    rows = "another table than rank 0: 98 rows in t.csv, 100 rows in t.csv"
    model_of = "checkpoint=last.safetensors"
    assert rows in said("data.train=t.csv", "out=r")
    assert rows in said(f"data.train={table}", "data.test=t.csv", "out=r")
    assert rows in said("predict", model_of, "data.test=t.csv")
    shutil.copy(tmp_path / "other" / "last.safetensors", folders[1])
    for verb in ["test", "predict"]:
        text = said(verb, model_of, f"data.test={table}")
        assert "another model than rank 0: 3 trees of" in text
    assert not list(tmp_path.rglob("predictions*"))


def test_labels_that_look_like_numbers_are_looked_up_as_the_model_has_them(tmp_path):
    train_table, test_table = tmp_path / "t.csv", tmp_path / "s.csv"
    run = tmp_path / "r"
    words = ["forest.trees=3", f"data.train={train_table}", "data.held_out=0", f"out={run}"]

    def classes(*more):
        trained("forest", *words, *more)
        with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
            return json.loads(file.metadata()["lockstep.classes"])

    def scored(*labels):
        write(test_table, labels)
        file = f"checkpoint={run / 'checkpoints' / 'last.safetensors'}"
        return train("forest", "test", file, f"data.test={test_table}")

    # A word among them keeps all as they are written.
    write(train_table, ["01", "02", "x3"] * 5)
    assert classes() == ["01", "02", "x3"]
    for labels in [["01", "02"], ["01", "x3"]]:
        done = scored(*labels)
        assert "test_accuracy" in done.stdout, done.stderr
    refused(scored("01", "3"), "s.csv:3: label '3' is not one of the classes")
    write(train_table, ["01", "02"] * 5)
    assert classes("data.classes=[01,02,x3]") == ["01", "02", "x3"]
    assert classes() == classes("data.classes=[1.0,2]") == ["1", "2"]
    assert "test_accuracy" in scored("1.0", "02").stdout
    # A word that no learned row has leaves numbers: the same order on all ranks.
    write(train_table, ["02", "1", "01", "2"] * 5)
    with open(train_table, "a") as file:
        file.write(",x3\n")
    more = ["data.missing=drop", "forest.threads=1"]
    assert classes(*more) == ["01", "1", "02", "2"]
    run_ranks(tmp_path, ["forest", *words[:-1], f"out={tmp_path / 'two'}", *more])
    models = [one / "checkpoints" / "last.safetensors" for one in [run, tmp_path / "two"]]
    assert tensors(models[0]) == tensors(models[1])
    # Whole numbers stay whole, however large.
    write(train_table, ["9007199254740991", "-1e15"] * 5)
    assert classes() == ["-1000000000000000", "9007199254740991"]
