"""The DCGAN that people run today: plain PyTorch, DDP over Gloo.

    torchrun --nproc-per-node 2 bench/peer_dcgan.py --batch-size 16 --steps 30

Each D pass has its own backward, so DDP's in-place broadcast of BatchNorm
buffers never touches what a pending backward needs. D is reduced three times
a step, as in the originals.
"""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import peer_harness

NOISE = 100
WIDTH = 64


class Generator(nn.Module):
    def __init__(self, channels, image_size):
        super().__init__()
        width = WIDTH * image_size // 8
        layers = [
            nn.ConvTranspose2d(NOISE, width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(True),
        ]
        while width > WIDTH:
            layers += [
                nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width // 2),
                nn.ReLU(True),
            ]
            width //= 2
        layers += [
            nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False),
            nn.Tanh(),
        ]
        self.main = nn.Sequential(*layers)

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, channels, image_size):
        super().__init__()
        width = WIDTH
        layers = [
            nn.Conv2d(channels, width, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        while width < WIDTH * image_size // 8:
            layers += [
                nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width * 2),
                nn.LeakyReLU(0.2, inplace=True),
            ]
            width *= 2
        layers += [nn.Conv2d(width, 1, 4, 1, 0, bias=False), nn.Sigmoid()]
        self.main = nn.Sequential(*layers)

    def forward(self, images):
        return self.main(images).flatten()


def main():
    arguments = peer_harness.parse_arguments(__doc__, 16, 64, 30)
    rank, world = peer_harness.join_group()
    torch.manual_seed(arguments.seed)
    images = peer_harness.Images(arguments.data, arguments.image_size)
    loader = peer_harness.make_loader(images, arguments)
    generator = Generator(images.channels, arguments.image_size)
    discriminator = Discriminator(images.channels, arguments.image_size)
    generator = DistributedDataParallel(generator)
    discriminator = DistributedDataParallel(discriminator)
    criterion = nn.BCELoss()
    g_optimizer = torch.optim.Adam(generator.parameters(), 2e-4, (0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), 2e-4, (0.5, 0.999))

    def judge(batch, target):
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            output = discriminator(batch)
        output = output.float()
        return output, criterion(output, torch.full_like(output, target))

    losses = []
    stopwatch = peer_harness.Stopwatch(arguments.warmup)
    for real, _ in peer_harness.batches(loader, arguments.steps):
        discriminator.zero_grad()
        on_real, loss_real = judge(real, 1.0)
        loss_real.backward()
        noise = torch.randn(len(real), NOISE, 1, 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            fake = generator(noise)
        on_fake, loss_fake = judge(fake.detach(), 0.0)
        loss_fake.backward()
        d_optimizer.step()

        generator.zero_grad()
        on_fake_again, g_loss = judge(fake, 1.0)
        g_loss.backward()
        g_optimizer.step()
        # What the originals print each iteration.
        losses.append(
            [
                (loss_real + loss_fake).item(),
                g_loss.item(),
                on_real.mean().item(),
                on_fake.mean().item(),
                on_fake_again.mean().item(),
            ]
        )
        stopwatch.step_ended()

    result = stopwatch.result(arguments.batch_size * world)
    count = lambda module: sum(p.numel() for p in module.parameters())
    result.update(
        generator=count(generator),
        discriminator=count(discriminator),
        first_losses=losses[0],
        last_losses=losses[-1],
    )
    peer_harness.report(result, arguments)


if __name__ == "__main__":
    main()
