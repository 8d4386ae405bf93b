"""make bench-gpu: each row of the table of docs/benchmarks.md (GPU), ours beside
PyTorch eager and torch.compile, all measured in this run on this GPU.

    LOCKSTEP_BUILD=build-cuda python3 bench/gpu.py [--root DIR] [--out FILE]
        [--only vit,cifar,largest,dcgan,esrgan,deepcoral,profile] [--no-compile]

Ours is lockstep-train itself: loader, loop, events and all; its steps are
counted from its own iteration events after the warm-up. Without --root (a folder
with CIFAR-10 in the official binary layout) random pixels in that layout are made,
and `cifar`, which trains to an accuracy, is left out.
torch.compile takes minutes where models are deep; --no-compile leaves it out.
Lines: name ours eager compiled ratio-to-eager required verdict [unit].
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from esrgan import write_vgg

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD", HERE.parent / "build-cuda"))
# Forward and backward of one sample: 3 x 8.8 GFLOP, less the gradient of pixels.
FLOPS_A_SAMPLE = 26.2e9
# Of the training on CIFAR-10 from scratch.
ACCURACY, EPOCHS = .637, 26

# torch.compile of ESRGAN's 23 dense blocks was not over after three minutes.
PEER_SECONDS = 240
# Eager PyTorch took 171 s for the 26 epochs; a compiled one compiles first.
PEER_TRAINING_SECONDS = 300
COMPILE = "--compile"
left_out = set()  # words of peers that nobody wants


def peer(*words, seconds=PEER_SECONDS):
    """What the peer printed last, and how long its whole process took."""
    if left_out.intersection(words):
        return {}
    begun = time.monotonic()
    try:
        process = subprocess.run(
            [sys.executable, str(HERE / "peer_gpu.py"), *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            timeout=seconds)
    except subprocess.TimeoutExpired:
        print(f"# peer {' '.join(map(str, words))} was not done in {seconds} s",
              flush=True)
        return {}
    if process.returncode != 0:
        last = process.stderr.strip().splitlines()[-1:] or ["?"]
        print(f"# peer {' '.join(map(str, words))} failed: {last[0]}", flush=True)
        return {}
    wall = time.monotonic() - begun
    return {**json.loads(process.stdout.strip().splitlines()[-1]), "wall": wall}


def events(folder, kind):
    found = []
    for path in sorted(pathlib.Path(folder).rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["kind"] == kind and event["rank"] == 0:
                found.append(event)
        if found:
            break
    return found


def run_ours(arguments, folder):
    """What lockstep-train printed; None when it failed."""
    process = subprocess.run(
        [str(BUILD / "bin/lockstep-train"), *arguments, f"out={folder}"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if process.returncode != 0:
        print(f"# ours {' '.join(arguments)} failed:\n{process.stdout[-2000:]}",
              flush=True)
        return None
    return process.stdout


def ours(arguments, warmup):
    """Milliseconds a step, and everything lockstep-train printed."""
    with tempfile.TemporaryDirectory() as folder:
        text = run_ours(arguments, folder)
        if text is None:
            return {}
        steps = events(folder, "iteration")[warmup:]
        seconds = [event["total"] for event in steps]
        most = max(event["samples"] for event in steps)  # an epoch's last has fewer
        full = [event["total"] for event in steps if event["samples"] == most]
        init = events(folder, "init")[0]
        return {"step_ms": statistics.mean(seconds) * 1e3,
                "full_ms": statistics.median(full) * 1e3,
                "rate": sum(event["samples"] for event in steps) / sum(seconds),
                "facts": init.get("facts", {}), "text": text}


def fake_cifar(folder):
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        rows = bytearray(os.urandom(10000 * 3073))
        for i in range(10000):
            rows[i * 3073] %= 10
        (pathlib.Path(folder) / name).write_bytes(rows)


class Table:
    def __init__(self):
        self.rows = []

    def add(self, name, value, eager, compiled, required, larger=True, unit=""):
        ratio = value / eager if value and eager else float("nan")
        good = value and (value >= required if larger else value <= required)
        verdict = "info" if required is None else "ok" if good else "MISSED"
        show = lambda v: f"{v:.5g}" if v else "-"
        print(name, show(value), show(eager), show(compiled), f"{ratio:.2f}",
              f"{'>=' if larger else '<='}{required}", verdict, f"[{unit}]", flush=True)
        self.rows.append(dict(name=name, ours=value, eager=eager, compiled=compiled,
                              required=required, verdict=verdict, unit=unit))


def vit_words(root, batch, steps, *more):
    return ["vit", "data=cifar10", f"data.root={root}", f"data.batch_size={batch}",
            "data.workers=8", "trainer.device=cuda", "trainer.precision=bf16",
            f"trainer.max_steps={steps}", "trainer.max_epochs=1000",
            "trainer.log_every=1000", "optim.warmup_steps=100", *more]


def measure_vit(table, root):
    limit = peer("gemm").get("tflops", 0)
    print(f"# products of these shapes alone: {limit:.0f} TFLOP/s", flush=True)
    for batch, steps, required in ((2048, 60, 13500), (384, 200, 12500)):
        mine = ours(vit_words(root, batch, steps), 20)
        eager = peer("vit", "--batch", batch, "--steps", 20)
        compiled = peer("vit", "--batch", batch, "--steps", 20, COMPILE)
        rate = mine.get("rate", 0)
        table.add(f"vit/b{batch}", rate, eager.get("samples_per_second"),
                  compiled.get("samples_per_second"), required, unit="samples/s")
        print(f"#   {rate * FLOPS_A_SAMPLE / 1e12:.0f} TFLOP/s of the plain model's "
              f"arithmetic, {100 * rate * FLOPS_A_SAMPLE / 695e12:.0f}% of 695", flush=True)


def cifar_words(root):
    """As in docs/logbook/vit-cifar10-h200, "A lower rate learns faster", but of
    26 epochs. Validation and a checkpoint follow each epoch, as by default."""
    return ["vit", "data=cifar10", f"data.root={root}", "data.batch_size=384",
            "data.workers=6", "trainer.device=cuda", "trainer.precision=bf16",
            f"trainer.max_epochs={EPOCHS}", "trainer.log_every=50", "optim.lr=2.5e-4",
            "optim.beta2=0.98", "optim.warmup_steps=150", "optim.clip=1",
            "crop_padding=1"]


def ours_on_cifar(root):
    """The wall clock of the whole process and, from its start, the seconds at
    which each validation's accuracy was known and on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()  # the clock of the events
        if run_ours(cifar_words(root), folder) is None:
            return {}
        wall = time.time() - begun
        saved = [(event["step"], event["time"])
                 for event in events(folder, "checkpoint")]
        curve = []
        for event in events(folder, "metric"):
            if "val_accuracy" not in event["values"]:
                continue
            # Checkpoints are written behind training: who stops the run at an
            # accuracy has it only when the first one with it is complete.
            step, known = event["step"], event["time"]
            written = min((at for of, at in saved if of >= step), default=begun + wall)
            curve.append({"epoch": event["epoch"],
                          "val_accuracy": event["values"]["val_accuracy"],
                          "seconds": max(known, written) - begun})
        return {"wall": wall, "curve": curve}


def peer_on_cifar(root, *more):
    """The same recipe. The peer's script writes no checkpoints, and its data set
    lies on the GPU."""
    return peer("train", "--root", root, "--batch", 384, "--epochs", EPOCHS,
                "--lr", 2.5e-4, "--beta2", .98, "--warmup", 150, "--clip", 1,
                "--padding", 1, *more, seconds=PEER_TRAINING_SECONDS)


def reached(who, result):
    """Seconds until ACCURACY, or None; tells at which epoch, and the best."""
    curve = result.get("curve")
    if not curve:
        return None
    best = max(curve, key=lambda row: row["val_accuracy"])
    first = next((row for row in curve if row["val_accuracy"] >= ACCURACY), None)
    at = f"in epoch {first['epoch'] + 1} of {EPOCHS}" if first else "never reached"
    print(f"#   {who}: {ACCURACY} {at}, best {best['val_accuracy']:.4f} in epoch "
          f"{best['epoch'] + 1}", flush=True)
    return first["seconds"] if first else None


def measure_cifar(table, root):
    if not root:
        print("# cifar is left out: it trains to an accuracy, which needs --root with "
              "the real CIFAR-10", flush=True)
        return
    # One training of each serves both rows.
    results = {"ours": ours_on_cifar(root), "eager": peer_on_cifar(root),
               "compiled": peer_on_cifar(root, COMPILE)}
    table.add(f"cifar10/to-{ACCURACY}",
              *(reached(who, result) for who, result in results.items()),
              150, larger=False, unit="s, start-up to checkpoint")
    table.add(f"cifar10/{EPOCHS}-epochs",
              *(result.get("wall") for result in results.values()),
              160, larger=False, unit="s, end to end")
    table.rows[-1]["curves"] = {
        who: result.get("curve") for who, result in results.items()}


def measure_largest(table, root):
    eager = peer("largest").get("largest", 0)
    base = ours(vit_words(root, 2048, 30), 10)
    base_rate = base.get("rate", 0)
    print(f"# eager's largest batch {eager}; ours at 2048: {base_rate:.0f} samples/s",
          flush=True)
    for mode, times, slow in (("attention", 2, 0.15), ("block", 4, 0.25)):
        # Data enough for one batch: the training split is read as it is.
        mine = ours(vit_words(root, f"auto:{8 * eager or 65536}", 8,
                              f"trainer.recompute={mode}", "data.limit=50000"), 2)
        if not (mine and eager and base_rate):  # not measured is not met
            table.add(f"largest/{mode}", 0, eager, None, 1, unit="samples")
            continue
        batch = int(mine["facts"].get("batch_size", 0))
        rate = batch / mine["full_ms"] * 1e3
        table.add(f"largest/{mode}", batch, eager, None, times * eager, unit="samples")
        table.add(f"largest/{mode}/rate", rate, base_rate, None,
                  round(base_rate * (1 - slow)), unit="samples/s")
        print(f"#   {mine['facts'].get('batch_memory', '')}", flush=True)


def dcgan_words(root, batch, steps):
    return ["dcgan", "data=cifar10", f"data.root={root}", f"data.batch_size={batch}",
            "data.workers=8", "trainer.device=cuda", "trainer.precision=bf16",
            f"trainer.max_steps={steps}", "trainer.log_every=1000", "sample_every=0"]


def measure_dcgan(table, root):
    for batch, steps, required in ((16, 400, 1.5), (128, 300, 2.5)):
        mine = ours(dcgan_words(root, batch, steps), 50)
        eager = peer("dcgan", "--batch", batch, "--steps", 100)
        compiled = peer("dcgan", "--batch", batch, "--steps", 100, COMPILE)
        table.add(f"dcgan/b{batch}", mine.get("step_ms"), eager.get("step_ms"),
                  compiled.get("step_ms"), required, larger=False, unit="ms a step")


def esrgan_words(vgg, batch, steps):
    """The full phase at HR 128 with VGG19, whose weights are random."""
    return ["esrgan", "data=synthetic", "data.length=4096", f"data.batch_size={batch}",
            "data.workers=12", f"model.vgg={vgg}", "warmup_batches=0",
            "sample_interval=0", "validation_samples=0", "trainer.device=cuda",
            "trainer.precision=bf16", f"trainer.max_steps={steps}",
            "trainer.log_every=1000"]


def measure_esrgan(table, vgg, batch=16, required=260):
    mine = ours(esrgan_words(vgg, batch, 150), 30)
    eager = peer("esrgan", "--batch", batch, "--steps", 30)
    compiled = peer("esrgan", "--batch", batch, "--steps", 30, COMPILE)
    table.add(f"esrgan/b{batch}", mine.get("rate", 0), eager.get("samples_per_second"),
              compiled.get("samples_per_second"), required, unit="samples/s")


def deepcoral_words(batch, steps):
    # Enough random images for the loader to give, few enough to test on.
    return ["deepcoral", "data=synthetic", f"data.length={8 * batch}",
            "data.classes=31", f"data.batch_size={batch}", "data.workers=12",
            "data.resize=224", "data.flip=false", "trainer.device=cuda",
            "trainer.precision=bf16", f"trainer.max_steps={steps}",
            "epoch_based_training=false", f"n_iter_per_epoch={steps}",
            "trainer.log_every=1000"]


def measure_deepcoral(table):
    for batch, steps, required in ((32, 150, 1600), (128, 80, 3000)):
        mine = ours(deepcoral_words(batch, steps), 30)
        eager = peer("deepcoral", "--batch", batch, "--steps", 30)
        compiled = peer("deepcoral", "--batch", batch, "--steps", 30, COMPILE)
        table.add(f"deepcoral/b{batch}", mine.get("rate"),
                  eager.get("samples_per_second"), compiled.get("samples_per_second"),
                  required, unit="source samples/s")


def measure_profile(root, vgg):
    # Whole batches alone, and epochs that end after steps 14 and 28: among the steps
    # that are traced, 21 to 25, there is no short batch, whose shapes would be tuned
    # there, and no validation. 50,000 images have both after step 25, and 24 whole
    # batches a validation after step 24.
    profile("vit, batch 2048", vit_words(root, 2048, 40, f"data.limit={14 * 2048}"))
    profile("dcgan, batch 128", dcgan_words(root, 128, 60))
    profile("esrgan, batch 16", esrgan_words(vgg, 16, 40))
    profile("deepcoral, batch 32", deepcoral_words(32, 40))
    profile("deepcoral, batch 128", deepcoral_words(128, 40))


def profile(title, words, steps=5):
    """Where the kernels of a training's steps spend their time."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [str(BUILD / "bin/lockstep-train"), *words, f"out={folder}",
             f"trainer.trace_steps={steps}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        traces = list(pathlib.Path(folder).rglob("trace.json"))
        if process.returncode != 0 or not traces:
            print(f"# {title} failed:\n{process.stdout[-1000:]}", flush=True)
            return
        spent, count = collections.Counter(), collections.Counter()
        begun, ended = [], []
        for event in json.loads(traces[0].read_text())["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                name = event["name"].replace("lockstep::kernels::(anonymous namespace)::", "")
                spent[name[:70]] += event["dur"] / steps
                count[name[:70]] += 1
                begun.append(event["ts"])
                ended.append(event["ts"] + event["dur"])
    total = sum(spent.values())
    print(f"# {title}: {total / 1e3:.2f} ms of kernels in "
          f"{(max(ended) - min(begun)) / steps / 1e3:.2f} ms a step")
    for name, micros in spent.most_common(25):
        print(f"#   {micros / 1e3:7.3f} ms {100 * micros / total:5.1f}% "
              f"{count[name] / steps:6.1f} x {name}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="vit,cifar,dcgan,esrgan,deepcoral,largest,profile")
    parser.add_argument("--root", default="")
    parser.add_argument("--out", default="")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    if options.no_compile:
        left_out.add(COMPILE)
    table = Table()
    chosen = options.only.split(",")
    with tempfile.TemporaryDirectory() as made:
        root = options.root
        if not root:
            fake_cifar(made)
            root = made
        vgg = pathlib.Path(made) / "vgg19.safetensors"
        if "esrgan" in chosen or "profile" in chosen:
            write_vgg(vgg)
        if "vit" in chosen:
            measure_vit(table, root)
        if "cifar" in chosen:
            measure_cifar(table, options.root)
        if "dcgan" in chosen:
            measure_dcgan(table, root)
        if "esrgan" in chosen:
            measure_esrgan(table, vgg)
        if "deepcoral" in chosen:
            measure_deepcoral(table)
        if "largest" in chosen:
            measure_largest(table, root)
        if "profile" in chosen:
            measure_profile(root, vgg)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(table.rows, indent=1))
    return 1 if any(row["verdict"] == "MISSED" for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
