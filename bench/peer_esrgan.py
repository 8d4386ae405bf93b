"""The ESRGAN that people run today: plain PyTorch, DDP over Gloo.

    torchrun --nproc-per-node 2 bench/peer_esrgan.py --batch-size 4 --steps 20

The usual script: G's step evaluates D on real and on generated images, D's step
does so again. VGG19 has random weights, which cost the same.
"""

import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import peer_harness

LAMBDA_ADV, LAMBDA_PIXEL = 5e-3, 1e-2


def conv(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class DenseBlock(nn.Module):
    def __init__(self, filters):
        super().__init__()
        self.convs = nn.ModuleList(
            conv(filters * (i + 1), filters) for i in range(5)
        )

    def forward(self, x):
        maps = x
        for i, layer in enumerate(self.convs):
            out = layer(maps)
            if i < 4:
                out = functional.leaky_relu(out)
                maps = torch.cat([maps, out], 1)
        return out * 0.2 + x


class Rrdb(nn.Module):
    def __init__(self, filters):
        super().__init__()
        self.blocks = nn.Sequential(*(DenseBlock(filters) for _ in range(3)))

    def forward(self, x):
        return self.blocks(x) * 0.2 + x


class Generator(nn.Module):
    def __init__(self, blocks=23, filters=64, channels=3):
        super().__init__()
        self.first = conv(channels, filters)
        self.blocks = nn.Sequential(*(Rrdb(filters) for _ in range(blocks)))
        self.middle = conv(filters, filters)
        layers = []
        for _ in range(2):
            layers += [conv(filters, 4 * filters), nn.LeakyReLU(), nn.PixelShuffle(2)]
        layers += [conv(filters, filters), nn.LeakyReLU(), conv(filters, channels)]
        self.tail = nn.Sequential(*layers)

    def forward(self, low):
        first = self.first(low)
        return self.tail(first + self.middle(self.blocks(first)))


class Discriminator(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        layers = []
        width = channels
        for out in (64, 128, 256, 512):
            layers.append(conv(width, out))
            layers += [nn.BatchNorm2d(out)] if width != channels else []
            layers += [nn.LeakyReLU(0.2, inplace=True), conv(out, out, 2)]
            layers += [nn.BatchNorm2d(out), nn.LeakyReLU(0.2, inplace=True)]
            width = out
        self.main = nn.Sequential(*layers, conv(width, 1))

    def forward(self, images):
        return self.main(images)


def make_vgg():
    """torchvision's vgg19().features[:35], frozen."""
    layers = []
    width = 3
    for out, times in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(times):
            layers += [conv(width, out), nn.ReLU(inplace=True)]
            width = out
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers[:35]).eval().requires_grad_(False)


class Step:
    """Both updates of one batch; everything else is the caller's."""

    def __init__(self, generator, discriminator, vgg, adam, autocast):
        self.g, self.d, self.vgg = generator, discriminator, vgg
        self.adam_g, self.adam_d = adam
        self.autocast = autocast
        self.bce = nn.BCEWithLogitsLoss()

    def __call__(self, low, high):
        with self.autocast():
            made = self.g(low)
            with torch.no_grad():
                on_real = self.d(high).float()
            on_fake = self.d(made).float()
            content = 0
            if self.vgg is not None:
                with torch.no_grad():
                    wanted = self.vgg(high).float()
                content = functional.l1_loss(self.vgg(made).float(), wanted)
        ones, zeros = torch.ones_like(on_real), torch.zeros_like(on_real)
        pixel = functional.l1_loss(made.float(), high)
        adversarial = self.bce(on_fake - on_real.mean(0, keepdim=True), ones)
        loss_g = content + LAMBDA_ADV * adversarial + LAMBDA_PIXEL * pixel
        self.adam_g.zero_grad(set_to_none=True)
        loss_g.backward()
        self.adam_g.step()
        self.adam_d.zero_grad(set_to_none=True)
        with self.autocast():
            # One pass, so that DDP's broadcast of buffers between two does not
            # touch what a pending backward needs.
            both = self.d(torch.cat([high, made.detach()])).float()
        on_real, on_fake = both.chunk(2)
        loss_d = self.bce(on_real - on_fake.mean(0, keepdim=True), ones)
        loss_d = loss_d + self.bce(on_fake - on_real.mean(0, keepdim=True), zeros)
        (loss_d / 2).backward()
        self.adam_d.step()
        return loss_g, loss_d / 2


def main():
    arguments = peer_harness.parse_arguments(
        __doc__,
        4,
        64,
        20,
        lambda parser: (
            parser.add_argument("--blocks", type=int, default=1),
            parser.add_argument("--no-vgg", action="store_true"),
        ),
    )
    _, world = peer_harness.join_group()
    torch.manual_seed(arguments.seed)
    images = peer_harness.Images("synthetic", arguments.image_size)
    loader = peer_harness.make_loader(images, arguments)
    generator = DistributedDataParallel(Generator(arguments.blocks))
    discriminator = DistributedDataParallel(Discriminator())
    adam = [
        torch.optim.Adam(m.parameters(), 2e-4, (0.9, 0.999))
        for m in (generator, discriminator)
    ]
    step = Step(
        generator,
        discriminator,
        None if arguments.no_vgg else make_vgg(),
        adam,
        lambda: torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16),
    )
    stopwatch = peer_harness.Stopwatch(arguments.warmup)
    losses = []
    for high, _ in peer_harness.batches(loader, arguments.steps):
        low = functional.interpolate(
            high, scale_factor=0.25, mode="bicubic", antialias=True
        )
        # What the originals print each iteration.
        losses.append([loss.item() for loss in step(low, high)])
        stopwatch.step_ended()
    result = stopwatch.result(arguments.batch_size * world)
    result.update(first_losses=losses[0], last_losses=losses[-1])
    peer_harness.report(result, arguments)


if __name__ == "__main__":
    main()
