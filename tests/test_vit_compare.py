"""The experiment from its job files, small and on CPUs: DDP on two hosts, FSDP
on one, and a comparison that runs both and writes one logbook."""

import csv
import json
import os
import pathlib
import re
import subprocess

import pytest
from control import LOCKSTEP, Control
from testbed import ROOT, Hosts, needs_root
from trainer import TRAIN

TRAINER = os.environ.get("LOCKSTEP_TRAINER_BIN", TRAIN)
pytestmark = pytest.mark.skipif(
    not os.path.exists(TRAINER), reason="no lockstep-train"
)

SMALL = [
    "data=synthetic",
    "data.length=64",
    "data.image_size=16",
    "data.batch_size=auto:8",
    "model.name=vit_tiny_patch16_224",
    "model.patch=8",
    "model.dim=24",
    "model.depth=2",
    "model.heads=3",
    "optim.warmup_steps=2",
    "crop_padding=2",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.max_epochs=2",
    "trainer.log_every=1",
]


@pytest.fixture
def control(tmp_path):
    made = Control(tmp_path)
    made.environment["LOCKSTEP_TRAINER_BIN"] = TRAINER
    made.environment["OMP_NUM_THREADS"] = "1"
    yield made
    made.end_all()


def run(control, file, *words, cwd=ROOT, **environment):
    return subprocess.run(
        [LOCKSTEP, "run", file, "--runs-dir", control.runs_dir, *words],
        cwd=cwd,
        env={**control.environment, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )


def comparison(done):
    """The page and the table of the comparison that a command told of."""
    told = re.search(r"^comparison: (.*)$", done.stdout, re.M)
    assert told, done.stdout + done.stderr
    page = pathlib.Path(told.group(1))
    with open(page.parent / "comparison.csv") as file:
        head, *body = csv.reader(file)
    table = {row[0]: dict(zip(head[1:], row[1:])) for row in body}
    return page, table


def check_pictures(page):
    links = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page.read_text())
    assert "plots/val_accuracy.svg" in links and "plots/memory.svg" in links
    for link in links:
        assert (page.parent / link).read_text().lstrip().startswith("<")


def write_jobs(folder, **variants):
    lines = ["name: both", "compare:"]
    for name, words in variants.items():
        (folder / f"{name}.yaml").write_text(
            f"procs_per_node: {words['procs']}\n"
            f"train: {{recipe: vit, trainer: {{strategy: {words['strategy']}}}}}\n"
        )
        lines.append(f"  {name}: {name}.yaml")
    (folder / "both.yaml").write_text("\n".join(lines) + "\n")
    return folder / "both.yaml"


def test_a_comparison_runs_each_and_writes_one_logbook(control, tmp_path):
    file = write_jobs(
        tmp_path,
        one={"procs": 1, "strategy": "auto"},
        two={"procs": 2, "strategy": "ddp"},
    )
    done = run(control, file, *SMALL, "--price", "3.60", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page, table = comparison(done)
    assert table["state"] == {"one": "done", "two": "done"}
    assert table["ranks"]["two"].startswith("2 on")
    assert table["batch a rank"] == {"one": "8", "two": "8"}
    assert table["steps"] == {"one": "16", "two": "8"}
    for name in ("best val_accuracy", "last val_loss", "training time", "cost"):
        assert all(cell not in ("", "-") for cell in table[name].values()), name
    assert all("MiB" in cell for cell in table["memory of that batch"].values())
    for name in ("one", "two"):
        for key in ("best checkpoint", "TensorBoard", "logbook"):
            assert (page.parent / table[key][name]).exists(), table[key][name]
    check_pictures(page)
    # Each run stands for itself, too.
    names = sorted(path.name for path in control.runs_dir.iterdir())
    assert [n.rsplit("-", 3)[0] for n in names] == ["both-one", "both-two", "comparisons"]


def test_a_variant_that_fails_has_its_column(control, tmp_path):
    file = write_jobs(
        tmp_path,
        bad={"procs": 1, "strategy": "auto"},
        good={"procs": 1, "strategy": "auto"},
    )
    (tmp_path / "bad.yaml").write_text("run: 'exit 7'\n")
    (tmp_path / "good.yaml").write_text("run: 'true'\n")
    done = run(control, file, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    page, table = comparison(done)
    assert "failed" in table["state"]["bad"] and table["state"]["good"] == "done"
    assert "of which 1 did not end well" in page.read_text()


def test_json_is_one_document(control, tmp_path):
    (tmp_path / "a.yaml").write_text("run: echo of rank 0\n")
    (tmp_path / "z.yaml").write_text("run: 'exit 7'\n")
    (tmp_path / "c.yaml").write_text("compare: {a: a.yaml, z: z.yaml}\n")
    done = run(control, "c.yaml", "--output", "json", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["name"] for one in told["variants"]] == ["a", "z"]
    assert "of rank 0" in told["variants"][0]["plan"]["command"]

    done = run(control, "c.yaml", "--output", "json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "of rank 0" in done.stderr
    told = json.loads(done.stdout)
    assert told["name"] == "c"
    assert pathlib.Path(told["logbook"]) == pathlib.Path(told["folder"]) / "logbook.md"
    assert os.path.exists(told["logbook"])
    a, z = told["variants"]
    assert (a["name"], a["state"], z["name"]) == ("a", "done", "z")
    assert "failed" in z["state"] and z["report"]["state"] == "failed"
    words = [LOCKSTEP, "report", a["report"]["id"], "--output", "json"]
    report = subprocess.run(
        [*words, "--runs-dir", control.runs_dir],
        env=control.environment,
        capture_output=True,
        timeout=60,
    )
    assert json.loads(report.stdout) == a["report"]


def test_all_variants_are_read_before_the_first_runs(control, tmp_path):
    (tmp_path / "a.yaml").write_text("run: touch here\n")
    (tmp_path / "z.yaml").write_text("run: 'true'\nprocs_per_nod: 2\n")
    (tmp_path / "c.yaml").write_text("compare: {a: a.yaml, z: z.yaml}\n")
    done = run(control, tmp_path / "c.yaml", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "z.yaml:2: unknown key 'procs_per_nod'" in done.stderr, done.stderr
    assert not (tmp_path / "here").exists() and not control.runs_dir.exists()


@pytest.mark.parametrize(
    "text, parts",
    [
        ("compare: {a: a.yaml}\n", ["1 variant", "nothing to compare"]),
        ("compare: {a: a.yaml, b: gone.yaml}\n", ["compare.b", "gone.yaml"]),
        ("compare: {a: a.yaml, b: a.yaml}\nprocs: 2\n", ["unknown key 'procs'"]),
        ("compare: [a.yaml]\n", ["compare"]),
    ],
)
def test_a_comparison_that_makes_no_sense(control, tmp_path, text, parts):
    (tmp_path / "a.yaml").write_text("run: 'true'\n")
    (tmp_path / "c.yaml").write_text(text)
    done = run(control, tmp_path / "c.yaml", cwd=tmp_path)
    assert done.returncode in (2,), done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert not control.runs_dir.exists()


def test_a_comparison_is_not_detached(control, tmp_path):
    file = write_jobs(
        tmp_path,
        a={"procs": 1, "strategy": "auto"},
        b={"procs": 1, "strategy": "auto"},
    )
    done = run(control, file, "--detach", cwd=tmp_path)
    assert done.returncode == 2 and "--detach" in done.stderr
    done = run(control, file, "--dry-run", *SMALL, cwd=tmp_path)
    assert done.returncode == 0 and not control.runs_dir.exists(), done.stderr


@needs_root
def test_the_examples_small_on_two_hosts(control):
    """2 nodes x 2 ranks by DDP, 2 ranks by FSDP, as the files say but smaller."""
    with Hosts(2) as hosts:
        done = run(
            control,
            "examples/vit-compare.yaml",
            *SMALL,
            "procs_per_node=2",
            "--price",
            "0.10",
            **hosts.environment(),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    page, table = comparison(done)
    assert table["state"] == {"ddp": "done", "fsdp": "done"}
    assert table["ranks"] == {"ddp": "4 on 2 nodes", "fsdp": "2 on 1 node"}
    assert table["best val_accuracy"]["ddp"] and table["best val_accuracy"]["fsdp"]
    assert all("$" in cell for cell in table["cost"].values())
    check_pictures(page)
