"""The batch that fits: data.batch_size=auto, trainer.recompute, and a batch
that is too large, alone and on several ranks."""

import os
import re
import resource
import subprocess

import pytest
from testbed_limits import Limits
from trainer import (
    TRAIN,
    VIT,
    Ranks,
    assert_same_checkpoint,
    clean_environment,
    events,
    metrics,
    run_ranks,
    train,
    trained,
)

# A sample takes about 0.9 MiB in backward, the program alone about 140 MiB.
WORDS = [
    "vit",
    "data=synthetic",
    "data.length=512",
    "data.image_size=32",
    "model.name=vit_tiny_patch16_224",
    "model.patch=4",
    "model.dim=24",
    "model.depth=8",
    "model.heads=3",
    "trainer.device=cpu",
    "trainer.max_steps=3",
    "trainer.log_every=1",
]
LIMIT = "trainer.memory_limit=240MiB"
FOUND = re.compile(
    r"batch (\d+): ([\d.]+) MiB of ([\d.]+) MiB a rank \(10% are kept free\), "
    r"(\d+) trials?, recompute (\w+)"
)


def found(text):
    match = FOUND.search(text)
    assert match, text
    batch, used, limit, trials, mode = match.groups()
    assert float(used) <= 0.9 * float(limit) + 0.1
    assert int(trials) < 20
    return int(batch), float(used), mode


def peak_resident(run):
    return max(e["resident_bytes"] for e in events(run, "resource"))


def test_auto_finds_what_fits_and_trains_as_with_that_size(tmp_path):
    searched, given = tmp_path / "searched", tmp_path / "given"
    done = trained(*WORDS, LIMIT, "data.batch_size=auto", f"out={searched}")
    batch, used, mode = found(done.stdout)
    assert mode == "none" and 32 < batch < 512
    assert used > 0.8 * 240, "most of what may be used"
    assert peak_resident(searched) < 1.08 * 240 * 2**20
    trained(*WORDS, f"data.batch_size={batch}", f"out={given}")
    assert metrics(searched) == metrics(given)
    last = "checkpoints/last.safetensors"
    assert_same_checkpoint(searched / last, given / last)
    facts = events(searched, "init")[0]["facts"]
    assert facts["batch_size"] == str(batch)
    assert facts["batch_memory"].endswith("of 240.0 MiB")
    # What was found is not refused when it is asked for under the same limit.
    again = trained(*WORDS, LIMIT, f"data.batch_size={batch}", f"out={tmp_path / 'again'}")
    assert f"batch {batch}: " in again.stdout
    # A quarter more does not fit: the search left nothing behind.
    more = batch * 5 // 4
    refused = train(*WORDS, LIMIT, f"data.batch_size={more}", f"out={tmp_path / 'm'}")
    assert refused.returncode == 2
    text = refused.stdout + refused.stderr
    says = re.search(
        rf"data.batch_size={more} does not fit into 240.0 MiB a rank \(10% are kept "
        r"free\); the largest that fits with trainer.recompute=none is (\d+)",
        text,
    )
    assert says, text
    assert abs(int(says.group(1)) - batch) <= max(16, batch // 10)


# 30 MiB a sample: a real limit, at which the kernel kills instead of refusing.
LARGE = [
    "vit",
    "data=synthetic",
    "data.length=64",
    "data.image_size=128",
    "model.name=vit_tiny_patch16_224",
    "model.patch=4",
    "model.dim=96",
    "model.depth=4",
    "model.heads=3",
    "trainer.device=cpu",
    "trainer.max_steps=1",
]


@pytest.mark.parametrize("mebibytes", [320, 480])
def test_a_search_is_not_killed_where_memory_is_really_short(tmp_path, mebibytes):
    limits = Limits(f"batch-{os.getpid()}")

    def ended(*words):
        waiting = ["sh", "-c", 'read go; exec "$@"', "sh", TRAIN, *LARGE, *words]
        process = subprocess.Popen(
            waiting,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
        limits.memory("search", mebibytes << 20, lambda: [process.pid])
        said = process.communicate("go\n", timeout=120)[0]
        return process.returncode, said

    try:
        code, said = ended("data.batch_size=auto", f"out={tmp_path / 'a'}")
        assert code == 0 and 1 <= found(said)[0] < 16, said
        code, said = ended("data.batch_size=32", f"out={tmp_path / 'b'}")
        assert code == 2 and "data.batch_size=32 does not fit" in said, said
    finally:
        limits.remove()


def test_auto_is_capped_by_what_the_user_says_and_by_the_shard(tmp_path):
    done = trained(*WORDS, "data.batch_size=auto:24", f"out={tmp_path / 'a'}")
    assert "batch 24: " in done.stdout
    done = trained(
        *WORDS, "data.length=20", "data.batch_size=auto", f"out={tmp_path / 'b'}"
    )
    assert "batch 20: " in done.stdout


def test_the_average_of_weights_counts(tmp_path):
    """Of 5.3 million parameters it takes 20 MiB."""
    used = []
    for ema in (0, 0.9):
        done = trained(
            *WORDS,
            "data.image_size=16",
            "model.dim=192",
            "model.depth=12",
            "trainer.max_steps=1",
            "data.length=8",
            "trainer.memory_limit=900MiB",
            "data.batch_size=auto:1",
            f"ema={ema}",
            f"out={tmp_path / str(ema)}",
        )
        used.append(found(done.stdout)[1])
    assert used[1] - used[0] > 14


def test_ranks_agree_on_the_least(tmp_path):
    """Rank 1 may use less: both train with what fits it."""

    def words(rank):
        return "200MiB" if rank else "400MiB"

    files = []
    for rank in range(2):
        file = tmp_path / f"{rank}.yaml"
        file.write_text(f"trainer: {{memory_limit: {words(rank)}}}\n")
        files.append(file)
    run = tmp_path / "run"
    with Ranks(
        tmp_path,
        [*WORDS, "data.batch_size=auto", "--config", "mine.yaml", f"out={run}"],
        cwd=lambda rank: link(tmp_path / f"cwd{rank}", files[rank]),
    ) as ranks:
        ranks.done()
        batch, _, _ = found(ranks.output(0))
        assert "of 200.0 MiB" in ranks.output(0)
        assert "batch" not in ranks.output(1)
    sizes = {e["facts"]["batch_size"] for e in events(run, "init")}
    assert sizes == {str(batch)}
    alone = trained(*WORDS, LIMIT, "data.batch_size=auto", f"out={tmp_path / 'one'}")
    assert batch < found(alone.stdout)[0]


def link(folder, file):
    folder.mkdir()
    (folder / "mine.yaml").symlink_to(file)
    return folder


def test_recompute_trades_time_for_batch(tmp_path):
    """Equal steps, and more samples the more is computed again."""
    sizes = {}
    for mode in ("none", "attention", "block"):
        run = tmp_path / mode
        words = [f"trainer.recompute={mode}", f"out={run}"]
        trained(*WORDS, "data.batch_size=16", *words)
        assert metrics(run) == metrics(tmp_path / "none")
        assert_same_checkpoint(
            run / "checkpoints/last.safetensors",
            tmp_path / "none/checkpoints/last.safetensors",
        )
        done = trained(
            *WORDS,
            LIMIT,
            "data.length=4096",
            "trainer.max_steps=1",
            "data.batch_size=auto",
            f"trainer.recompute={mode}",
            f"out={tmp_path / (mode + '-auto')}",
        )
        batch, _, said = found(done.stdout)
        assert said == mode
        sizes[mode] = batch
    assert sizes["attention"] > 1.1 * sizes["none"]
    assert sizes["block"] > 1.5 * sizes["attention"]
    # auto takes the least that lets the asked batch fit.
    wanted = (sizes["none"] + sizes["attention"]) // 2
    for batch, mode in ((24, "none"), (wanted, "attention")):
        run = tmp_path / f"auto-{batch}"
        trained(
            *WORDS,
            LIMIT,
            "trainer.max_steps=1",
            f"data.batch_size={batch}",
            "trainer.recompute=auto",
            f"out={run}",
        )
        assert events(run, "init")[0]["facts"]["recompute"] == mode
    run = tmp_path / "auto-cap"
    done = trained(
        *WORDS,
        LIMIT,
        "data.length=4096",
        "trainer.max_steps=1",
        f"data.batch_size=auto:{(sizes['attention'] + sizes['block']) // 2}",
        "trainer.recompute=auto",
        f"out={run}",
    )
    assert found(done.stdout)[2] == "block"


def test_recompute_is_found_for_many_small_samples(tmp_path):
    """What eight samples take is nothing beside the limit: the later modes go
    on from what fits in the ones before."""
    done = trained(
        *WORDS,
        "data.length=3000",
        "data.image_size=16",
        "trainer.memory_limit=460MiB",
        "trainer.max_steps=1",
        "data.batch_size=auto:3000",
        "trainer.recompute=auto",
        f"out={tmp_path / 'run'}",
    )
    batch, _, mode = found(done.stdout)
    assert mode != "none" and batch == 3000


def test_recompute_on_several_ranks(tmp_path):
    """Hooks fire inside the nested backward: buckets leave, sums are equal."""
    for mode in ("none", "attention", "block"):
        run_ranks(
            tmp_path / f"{mode}-ranks",
            [*VIT, f"trainer.recompute={mode}", f"out={tmp_path / mode}"],
        )
        assert metrics(tmp_path / mode) == metrics(tmp_path / "none")
        assert_same_checkpoint(
            tmp_path / mode / "checkpoints/last.safetensors",
            tmp_path / "none/checkpoints/last.safetensors",
        )


def test_sharded_state_with_recompute_and_auto(tmp_path):
    """Blocks are gathered again for their second forward."""
    words = [*VIT, "trainer.strategy=fsdp"]
    for mode in ("none", "attention", "block"):
        run = tmp_path / mode
        run_ranks(
            tmp_path / f"{mode}-ranks",
            [*words, f"trainer.recompute={mode}", f"out={run}"],
        )
        assert metrics(run) == metrics(tmp_path / "none")
    run = tmp_path / "auto"
    ranks = run_ranks(
        tmp_path / "r", [*words, "data.batch_size=auto:4", f"out={run}"]
    )
    assert "batch 4: " in ranks.output(0)
    assert metrics(run) == metrics(tmp_path / "none")


def test_recompute_in_bf16(tmp_path):
    for mode in ("none", "block"):
        words = ["trainer.precision=bf16", f"trainer.recompute={mode}"]
        trained(*VIT, *words, f"out={tmp_path / mode}")
    assert metrics(tmp_path / "block") == metrics(tmp_path / "none")


def limited(*words, data_bytes):
    """Like train, with a kernel limit on the memory that may be mapped."""
    return subprocess.run(
        [TRAIN, *map(str, words)],
        env=clean_environment(),
        timeout=120,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_DATA, (data_bytes, data_bytes)
        ),
    )


def test_real_out_of_memory_is_survived_by_the_search(tmp_path):
    done = limited(
        *WORDS,
        "data.length=1000",
        "trainer.max_steps=1",
        "data.batch_size=auto",
        f"out={tmp_path / 'run'}",
        data_bytes=450 << 20,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"batch (\d+): .* (\d+) trials", done.stdout)
    assert match and 16 < int(match.group(1)) < 600, done.stdout
    assert int(match.group(2)) < 20


def test_where_allocation_fails_the_limit_is_not_blamed(tmp_path):
    done = limited(
        *WORDS,
        "data.length=20",
        "model.patch=1",
        "model.dim=192",
        "model.depth=24",
        "data.batch_size=auto",
        f"out={tmp_path / 'run'}",
        data_bytes=450 << 20,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert "allocation failed at a batch of 1 with" in text, text
    assert "not even a batch of 1 fits" not in text


def test_a_step_out_of_memory_names_the_largest_batch(tmp_path):
    """Nothing warned before: the machine has more than the process may map."""
    done = limited(
        *WORDS,
        "data.length=4096",
        "data.batch_size=1500",
        f"out={tmp_path / 'run'}",
        data_bytes=450 << 20,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    match = re.search(
        r"data.batch_size=1500 does not fit .* the largest that fits .* is (\d+)", text
    )
    assert match and 16 < int(match.group(1)) < 600, text
    assert "terminate called" not in text


@pytest.mark.parametrize(
    "words, parts",
    [
        (["data.batch_size=automatic"], ["data.batch_size", "automatic", "auto:MAX"]),
        (["data.batch_size=auto:0"], ["data.batch_size", "auto:0", "auto:MAX"]),
        (["data.batch_size=auto:x"], ["data.batch_size", "auto:x", "auto:MAX"]),
        (
            ["data.batch_size=auto", "data.global_batch_size=8"],
            ["data.global_batch_size", "leave out"],
        ),
        (["trainer.recompute=all"], ["recompute", "all", "attention"]),
        (["trainer.memory_limit=lots"], ["memory_limit", "lots"]),
        (["data.batch_size=auto", "trainer.memory_limit=1MiB"], ["not even a batch"]),
    ],
)
def test_bad_words(tmp_path, words, parts):
    done = train(*VIT, *words, f"out={tmp_path / 'run'}")
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    for part in parts:
        assert part in text, text


def test_recipes_that_cannot(tmp_path):
    for word, part in (
        ("data.batch_size=auto", "takes a number"),
        ("trainer.recompute=block", "trainer.recompute is for vit"),
    ):
        done = train("dcgan", "data=synthetic", word, cwd=tmp_path)
        assert done.returncode == 2 and part in done.stderr, done.stderr
