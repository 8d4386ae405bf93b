"""What PyTorch does on the same GPU, as people write it: bf16 autocast, fused
optimisers, eager or torch.compile. One JSON line a call.

    python3 bench/peer_gpu.py vit --batch 384 --steps 30 [--compile]
    python3 bench/peer_gpu.py largest
    python3 bench/peer_gpu.py dcgan --batch 16 --steps 100 [--compile]
    python3 bench/peer_gpu.py deepcoral --batch 32 --steps 30 [--compile]
    python3 bench/peer_gpu.py train --root DIR --epochs 26 --lr 2.5e-4 [--compile]
    python3 bench/peer_gpu.py gemm
"""

import time

STARTED = time.perf_counter()  # importing PyTorch is part of a training's start

import argparse
import json
import math
import pathlib

import numpy
import torch
import torch.nn.functional as functional
from torch import nn

import resnet

WIDTH, HEADS, DEPTH, PATCH, SIZE = 768, 12, 12, 32, 224
DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, length, 3, HEADS, width // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(attended.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, tokens):
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Vit(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        length = (SIZE // PATCH) ** 2 + 1
        self.patch_embed = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 1e-6)
        self.pos_embed = nn.Parameter(torch.randn(1, length, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images):
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)
        classes = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([classes, patches], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def vit_optimizer(model, lr, beta2=0.999):
    decayed = [p for p in model.parameters() if p.dim() >= 2 and p.size(0) != 1]
    plain = [p for p in model.parameters() if p.dim() < 2 or p.size(0) == 1]
    groups = [{"params": decayed, "weight_decay": 0.05},
              {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr, (0.9, beta2), fused=True)


def make_step(model, optimizer, clip=0):
    def step(images, labels):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(images)
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss
    return step


def timed(step, steps, warmup=5):
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def vit(batch, steps, compiled):
    torch.manual_seed(0)
    model = Vit().to(DEVICE)
    optimizer = vit_optimizer(model, 5e-4)
    step = make_step(torch.compile(model) if compiled else model, optimizer)
    images = torch.randn(batch, 3, SIZE, SIZE, device=DEVICE)
    labels = torch.randint(10, (batch,), device=DEVICE)
    seconds = timed(lambda: step(images, labels), steps)
    return {"step_ms": seconds * 1e3, "samples_per_second": batch / seconds}


def largest():
    """The largest multiple of 64 that one step of eager PyTorch takes."""
    torch.manual_seed(0)
    model = Vit().to(DEVICE)
    optimizer = vit_optimizer(model, 5e-4)
    step = make_step(model, optimizer)

    def fits(batch):
        try:
            images = torch.zeros(batch, 3, SIZE, SIZE, device=DEVICE)
            labels = torch.zeros(batch, dtype=torch.long, device=DEVICE)
            step(images, labels)
            torch.cuda.synchronize()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            optimizer.zero_grad(set_to_none=True)
            images = labels = None
            torch.cuda.empty_cache()

    low, high = 64, 192
    fits(64)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * 64) else (low, middle)
    return {"largest": low * 64}


def deepcoral(batch, steps, compiled):
    """ResNet-50 at 224, both domains in one call, channels_last."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    model = resnet.TransferNet(50, 31).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.groups(1e-3), 1e-3, momentum=0.9, weight_decay=5e-4, fused=True
    )
    run = torch.compile(model) if compiled else model
    source, target = (
        torch.randn(batch, 3, SIZE, SIZE, device=DEVICE).to(
            memory_format=torch.channels_last
        )
        for _ in range(2)
    )
    labels = torch.randint(31, (batch,), device=DEVICE)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            logits, apart = run(source, target)
        (functional.cross_entropy(logits.float(), labels) + 10 * apart).backward()
        optimizer.step()

    seconds = timed(step, steps)
    return {"step_ms": seconds * 1e3, "samples_per_second": batch / seconds}


def dcgan(batch, steps, compiled):
    from peer_dcgan import NOISE, Discriminator, Generator

    torch.manual_seed(0)
    # Inductor's backward of a transposed convolution asserts strides that cuDNN
    # does not give for channels_last weights; the plain layout compiles.
    layout = torch.contiguous_format if compiled else torch.channels_last
    generator = Generator(3, 64).to(DEVICE, memory_format=layout)
    critic = Discriminator(3, 64).to(DEVICE, memory_format=layout)
    adam = [torch.optim.Adam(m.parameters(), 2e-4, (0.5, 0.999), fused=True)
            for m in (generator, critic)]
    bce = nn.BCEWithLogitsLoss()
    real = torch.randn(batch, 3, 64, 64, device=DEVICE).contiguous(memory_format=layout)
    ones, zeros = torch.ones(batch, device=DEVICE), torch.zeros(batch, device=DEVICE)
    g = torch.compile(generator) if compiled else generator
    d = torch.compile(critic) if compiled else critic

    def step():
        noise = torch.randn(batch, NOISE, 1, 1, device=DEVICE)
        adam[1].zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            fake = g(noise)
            on_real, on_fake = d(real).flatten(), d(fake.detach()).flatten()
        (bce(on_real.float(), ones) + bce(on_fake.float(), zeros)).backward()
        adam[1].step()
        adam[0].zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            on_fake = d(fake).flatten()
        bce(on_fake.float(), ones).backward()
        adam[0].step()

    seconds = timed(step, steps, 10)
    return {"step_ms": seconds * 1e3, "samples_per_second": batch / seconds}


def esrgan(batch, steps, compiled):
    """The full phase at HR 128, VGG19 included."""
    from peer_esrgan import Discriminator, Generator, Step, make_vgg

    torch.manual_seed(0)
    last = torch.channels_last
    networks = [
        module.to(DEVICE, memory_format=last)
        for module in (Generator(), Discriminator(), make_vgg())]
    adam = [torch.optim.Adam(m.parameters(), 2e-4, fused=True) for m in networks[:2]]
    if compiled:
        networks = [torch.compile(module) for module in networks]
    step = Step(*networks, adam, lambda: torch.autocast(DEVICE, torch.bfloat16))
    high = torch.randn(batch, 3, 128, 128, device=DEVICE).to(memory_format=last)
    low = torch.randn(batch, 3, 32, 32, device=DEVICE).to(memory_format=last)
    seconds = timed(lambda: step(low, high), steps)
    return {"step_ms": seconds * 1e3, "samples_per_second": batch / seconds}


def read_cifar(root, names):
    rows = numpy.concatenate([
        numpy.fromfile(pathlib.Path(root) / name, numpy.uint8).reshape(-1, 3073)
        for name in names])
    pixels = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32).copy())
    return pixels.to(DEVICE), torch.from_numpy(rows[:, 0].astype("int64")).to(DEVICE)


def prepared(pixels):
    images = functional.interpolate(
        pixels.float(), SIZE, mode="bilinear", antialias=True)
    return images / 127.5 - 1


def moved(pixels, padding):
    if padding > 0:
        padded = functional.pad(pixels, [padding] * 4)
        span = 2 * padding + 1
        count = len(pixels)
        down = torch.randint(span, (count, 1), device=DEVICE) + torch.arange(32, device=DEVICE)
        across = torch.randint(span, (count, 1), device=DEVICE) + torch.arange(32, device=DEVICE)
        index = torch.arange(count, device=DEVICE).view(-1, 1, 1)
        pixels = padded.permute(0, 2, 3, 1)[
            index, down.unsqueeze(2), across.unsqueeze(1)].permute(0, 3, 1, 2)
    mask = torch.rand(len(pixels), device=DEVICE) < 0.5
    return torch.where(mask.view(-1, 1, 1, 1), pixels.flip(3), pixels)


def train(options):
    """The same recipe as ours; the data set lies on the GPU. No checkpoints are
    written. Seconds count from the start of the process."""
    torch.manual_seed(options.seed)
    pixels, labels = read_cifar(
        options.root, [f"data_batch_{i}.bin" for i in range(1, 6)])
    test_pixels, test_labels = read_cifar(options.root, ["test_batch.bin"])
    model = Vit().to(DEVICE)
    optimizer = vit_optimizer(model, options.lr, options.beta2)
    plain = make_step(model, optimizer, options.clip)
    # An epoch's last, smaller batch and the validation stay eager: for the few there
    # are, compiling other shapes takes longer than it saves, and shapes that vary
    # would make the whole batches slower.
    fast = torch.compile(model) if options.compile else model
    whole = make_step(fast, optimizer, options.clip)
    per_epoch = math.ceil(len(pixels) / options.batch)
    total = per_epoch * options.epochs
    done = 0
    curve = []
    for epoch in range(options.epochs):
        order = torch.randperm(len(pixels), device=DEVICE)
        for i in range(per_epoch):
            chosen = order[i * options.batch:(i + 1) * options.batch]
            done += 1
            if done <= options.warmup:
                lr = options.lr * done / options.warmup
            else:
                share = (done - 1 - options.warmup) / (total - options.warmup)
                lr = options.lr * (1 + math.cos(math.pi * share)) / 2
            for group in optimizer.param_groups:
                group["lr"] = lr
            step = whole if len(chosen) == options.batch else plain
            step(prepared(moved(pixels[chosen], options.padding)), labels[chosen])
        right = 0
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            for i in range(0, len(test_pixels), 1000):
                logits = model(prepared(test_pixels[i:i + 1000]))
                right += (logits.argmax(1) == test_labels[i:i + 1000]).sum().item()
        curve.append({"epoch": epoch, "val_accuracy": right / len(test_pixels),
                      "seconds": time.perf_counter() - STARTED})
        print(json.dumps(curve[-1]), flush=True)
    return {"curve": curve, "seconds": time.perf_counter() - STARTED}


def gemm():
    """TFLOP/s of the products of ViT-B/32 at batch 2048, by share of time."""
    rows = 2048 * 50
    work = spent = 0
    for n, k in ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)):
        for a, b in (((rows, k), (k, n)), ((rows, n), (n, k)), ((n, rows), (rows, k))):
            left = torch.randn(a, device=DEVICE, dtype=torch.bfloat16)
            right = torch.randn(b, device=DEVICE, dtype=torch.bfloat16)
            spent += timed(lambda: left @ right, 10, 3)
            work += 2 * a[0] * a[1] * b[1]
    return {"tflops": work / spent / 1e12}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["vit", "largest", "dcgan", "esrgan", "deepcoral", "train", "gemm"]
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--root", default="")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--padding", type=int, default=4)
    parser.add_argument("--clip", type=float, default=1)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if options.what == "vit":
        result = vit(options.batch, options.steps, options.compile)
    elif options.what == "largest":
        result = largest()
    elif options.what == "dcgan":
        result = dcgan(options.batch, options.steps, options.compile)
    elif options.what == "esrgan":
        result = esrgan(options.batch, options.steps, options.compile)
    elif options.what == "deepcoral":
        result = deepcoral(options.batch, options.steps, options.compile)
    elif options.what == "train":
        result = train(options)
    else:
        result = gemm()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
