"""Many ranks against one, and the known flaws of today's scripts, each of which
must be absent: equal noise on all ranks, an order that never changes, samples
seen twice, a timer without data loading, ranks that write over each other."""

import json
import re
from collections import Counter

import pytest
from PIL import Image
from trainer import DCGAN, VIT, Ranks, events, metrics, rows, run_ranks, trained

# So small that fp32 weights stay as they are: a loss then names its sample.
FROZEN = ["optim.lr=1e-30", "optim.weight_decay=0"]


def floats(table, column):
    return [float(row[column]) for row in table if row.get(column)]


@pytest.mark.parametrize(
    "world, batch, extra",
    [
        (2, 4, []),
        (4, 2, []),
        (1, 4, ["trainer.accumulate=2"]),
        (2, 2, ["trainer.accumulate=2"]),
    ],
)
def test_ranks_equal_one_rank_at_the_global_batch(tmp_path, world, batch, extra):
    """8 samples a step, however they are split: the same losses over 12 steps
    and the same validation within float tolerance."""
    words = [*VIT, "flip=false", "optim.lr=1e-3"]
    one = tmp_path / "one"
    trained(*words, "data.batch_size=8", f"out={one}")
    many = tmp_path / "many"
    run_ranks(
        tmp_path, [*words, f"data.batch_size={batch}", *extra, f"out={many}"], world
    )
    left, right = metrics(one), metrics(many)
    assert len(left) == 12 and [r["step"] for r in left] == [r["step"] for r in right]
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert floats(right, column) == pytest.approx(
            floats(left, column), rel=1e-4, abs=1e-5
        ), column
    losses = floats(left, "loss")
    assert losses[-1] != losses[0]


def test_a_ragged_last_batch_weighs_by_samples(tmp_path):
    """44 samples in steps of 9: the last step of an epoch has 8, which 3
    accumulated batches split into 3, 3 and 2."""
    words = [*VIT, "flip=false", "data.length=44"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    trained(*words, "data.batch_size=9", f"out={whole}")
    trained(*words, "data.batch_size=3", "trainer.accumulate=3", f"out={parts}")
    samples = [int(row["samples"]) for row in rows(parts / "timing.csv")]
    assert samples == [9, 9, 9, 9, 8] * 2
    left, right = metrics(whole), metrics(parts)
    for column in ("loss", "accuracy", "val_loss"):
        assert floats(right, column) == pytest.approx(
            floats(left, column), rel=1e-4
        ), column
    # Two ranks, 22 samples each in batches of 4: the last has 2.
    one, two = tmp_path / "one", tmp_path / "two"
    trained(*words, "data.batch_size=8", f"out={one}")
    run_ranks(tmp_path, [*words, "data.batch_size=4", f"out={two}"])
    assert floats(metrics(two), "loss") == pytest.approx(
        floats(metrics(one), "loss"), rel=1e-4
    )


def sample_losses(run, epoch):
    """By rank and step: with one sample a batch, whom each rank saw."""
    return [
        (event["rank"], round(event["values"]["loss"], 6))
        for event in events(run, "metric")
        if event["epoch"] == epoch and "loss" in event["values"]
    ]


def test_every_sample_once_an_epoch_in_a_new_order(tmp_path):
    words = [*VIT, *FROZEN, "flip=false", "data.batch_size=1", "data.length=20"]
    run_ranks(tmp_path, [*words, f"out={tmp_path / 'run'}"])
    first = sample_losses(tmp_path / "run", 0)
    second = sample_losses(tmp_path / "run", 1)
    seen = Counter(loss for _, loss in first)
    assert len(seen) == 20 and set(seen.values()) == {1}
    assert Counter(loss for _, loss in second) == seen
    assert first != second  # another order
    shard = {loss for rank, loss in first if rank == 0}
    assert shard != {loss for rank, loss in second if rank == 0}  # other shards


def test_padding_repeats_only_what_is_needed(tmp_path):
    words = [*VIT, *FROZEN, "flip=false", "data.batch_size=1", "data.length=19"]
    run_ranks(
        tmp_path, [*words, "trainer.max_epochs=1", f"out={tmp_path / 'run'}"], world=2
    )
    seen = Counter(loss for _, loss in sample_losses(tmp_path / "run", 0))
    assert len(seen) == 19
    assert sorted(seen.values()) == [1] * 18 + [2]


def test_noise_differs_by_rank_and_step(tmp_path):
    """Weights are equal on all ranks, so D(G(z)) of the first steps tells the
    noise apart."""
    run_ranks(tmp_path, [*DCGAN, *FROZEN, f"out={tmp_path / 'run'}"], world=3)
    seen = [
        event["values"]["d_g_z1"]
        for event in events(tmp_path / "run", "metric")
        if "d_g_z1" in event["values"]
    ]
    assert len(seen) == 3 * 2 * 4
    assert len(set(seen)) == len(seen)


def test_the_split_of_time_sums_to_the_total(tmp_path):
    run_ranks(tmp_path, [*DCGAN, f"out={tmp_path / 'run'}"])
    table = rows(tmp_path / "run" / "timing.csv")
    assert len(table) == 2 * 12
    for row in table:
        parts = [float(row[k]) for k in ("data", "compute", "communication", "wait")]
        assert sum(parts) == pytest.approx(float(row["total"]), abs=1e-6)
        assert min(parts) >= 0
        assert parts[0] > 0 and parts[1] > 0
    # The epoch's own clock runs over all of it, and its counts are the rank's own.
    for event in events(tmp_path / "run", "epoch"):
        inside = [
            row
            for row in table
            if int(row["rank"]) == event["rank"] and int(row["epoch"]) == event["epoch"]
        ]
        assert sum(float(row["total"]) for row in inside) <= event["seconds"] + 1e-6
        assert event["steps"] == len(inside)
        assert event["samples"] == sum(int(row["samples"]) for row in inside)


def test_the_timer_includes_data_loading(tmp_path):
    """Large pictures and a tiny network: decoding is most of an iteration."""
    folder = tmp_path / "pictures" / "one"
    folder.mkdir(parents=True)
    for i in range(4):
        picture = Image.effect_noise((800, 800), 60 + i).convert("RGB")
        picture.save(folder / f"{i}.png")
    done = trained(
        *DCGAN,
        "data=folder",
        f"data.root={tmp_path / 'pictures'}",
        "data.workers=0",
        "data.batch_size=2",
        "trainer.max_epochs=1",
        f"out={tmp_path / 'run'}",
    )
    table = rows(tmp_path / "run" / "timing.csv")
    assert "training without validation" in done.stderr
    data = sum(float(row["data"]) for row in table)
    assert data > 0.5 * sum(float(row["total"]) for row in table)


def test_pictures_have_one_writer(tmp_path):
    run = tmp_path / "run"
    run_ranks(tmp_path, [*DCGAN, "sample_every=5", f"out={run}"], world=2)
    expected = {
        f"{name}-{step:06}.png" for name in ("fake", "real") for step in (5, 10, 12)
    }
    assert {path.name for path in (run / "samples").iterdir()} == expected
    boards = list((run / "tensorboard").iterdir())
    assert len(boards) == 1
    assert not [p for p in run.rglob("*") if re.search(r"\.tmp|\.link", p.name)]


def test_rank_0_traces_the_steps_that_were_asked_for(tmp_path):
    run = tmp_path / "run"
    words = [*VIT, "trainer.max_epochs=5", "trainer.trace_steps=2", f"out={run}"]
    run_ranks(tmp_path, words, world=2)
    trace = json.loads((run / "trace.json").read_text())
    losses = [one for one in trace["traceEvents"] if one.get("name") == "aten::cross_entropy_loss"]
    assert len(losses) == 2


def test_a_run_that_is_too_short_to_be_traced_says_so(tmp_path):
    words = [*VIT, "trainer.max_steps=3", "trainer.trace_steps=2", f"out={tmp_path / 'run'}"]
    told = trained(*words).stderr
    assert "nothing was traced" in told and "ended after 3 steps" in told


def told_apart(tmp_path, words, texts):
    """What two ranks say whose c.yaml differ, each in a folder of its own."""
    folders = [tmp_path / f"host-{rank}" for rank in (0, 1)]
    for folder, text in zip(folders, texts):
        folder.mkdir(exist_ok=True)
        (folder / "c.yaml").write_text(text)
    words = [*words, "--config", "c.yaml"]
    with Ranks(tmp_path, words, cwd=lambda rank: folders[rank]) as ranks:
        assert ranks.wait() == [2, 2], ranks.output()
        return ranks.output(0), ranks.output(1)


@pytest.mark.parametrize(
    "texts, said",
    [
        (["optim: {lr: 0.001}", "optim: {lr: 0.02}"], "optim.lr is 0.02 here, on rank 0 0.001"),
        (["trainer: {seed: 1}", "trainer: {seed: 2}"], "trainer.seed is 2 here"),
        (["data: {workers: 1}", "mixup: 0.5"], "mixup is 0.5 here, on rank 0 0"),
    ],
)
def test_ranks_that_were_told_otherwise_do_not_begin(tmp_path, texts, said):
    words = [*VIT, f"out={tmp_path / 'run'}"]
    first, second = told_apart(tmp_path, words, texts)
    assert said in second and "rank 1 has another configuration" in first


def test_what_is_a_host_s_own_may_differ(tmp_path):
    folders = [tmp_path / f"host-{rank}" for rank in (0, 1)]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        text = f"data: {{workers: {rank}}}\ntrainer: {{log_every: {rank + 1}}}\n"
        (folder / "c.yaml").write_text(text)
    words = [word for word in VIT if "log_every" not in word]
    words += ["--config", "c.yaml", f"out={tmp_path / 'run'}"]
    with Ranks(tmp_path, words, cwd=lambda rank: folders[rank]) as ranks:
        ranks.done()


@pytest.mark.parametrize("recipe", ["vit", "dcgan", "esrgan"])
def test_ranks_that_see_other_data_do_not_begin(recipe, tmp_path):
    """One image fewer, or as many in other classes."""
    small = {
        "vit": [word for word in VIT if not word.startswith("data=")],
        "dcgan": [word for word in DCGAN if not word.startswith("data=")],
        "esrgan": ["esrgan", "hr_height=16", "hr_width=16", "data.batch_size=2",
                   "model.residual_blocks=1", "model.filters=4", "trainer.device=cpu"],
    }[recipe]
    for rank, last in [(0, "cow/5"), (1, "cow/6" if recipe == "esrgan" else "cat/9")]:
        names = [f"{kind}/{i}" for kind in ("cat", "cow") for i in range(5)]
        names += [last] if recipe != "esrgan" or rank else []
        for name in names:
            path = tmp_path / f"host-{rank}" / "set" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (9, 9, 9)).save(path)
    words = [*small, "data=folder", "data.root=set", f"out={tmp_path / 'run'}"]
    for said in told_apart(tmp_path, words, ["{}", "{}"]):
        assert "the data of rank 1 is not that of rank 0" in said


def test_validation_does_not_depend_on_the_number_of_ranks(tmp_path):
    """Fewer images are further apart: all are compared together."""
    trained(*DCGAN, "trainer.max_epochs=1", f"out={tmp_path / 'run'}")
    test = ["dcgan", "test", f"checkpoint={tmp_path / 'run/checkpoints/last.safetensors'}"]
    found = [re.search(r"val_swd (\S+)", trained(*test).stdout)[1]]
    for world in (2, 4):
        said = run_ranks(tmp_path / str(world), test, world).output(0)
        found.append(re.search(r"val_swd (\S+)", said)[1])
    one, *others = map(float, found)
    assert others == pytest.approx([one, one], rel=1e-4)
