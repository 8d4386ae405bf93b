"""The reference: DCGAN, ViT, ESRGAN and DeepCORAL in plain PyTorch, with the names that their
checkpoints use everywhere. Written from the papers and the published layer
lists; nothing here is shared with the C++ models."""

import torch
from torch import nn
from torch.nn import functional


class Generator(nn.Module):
    def __init__(self, size=64, channels=3, nz=100, ngf=64):
        super().__init__()
        width = ngf * size // 8
        layers = [
            nn.ConvTranspose2d(nz, width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        while width > ngf:
            layers += [
                nn.ConvTranspose2d(width, width // 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width // 2),
                nn.ReLU(),
            ]
            width //= 2
        layers += [nn.ConvTranspose2d(ngf, channels, 4, 2, 1, bias=False), nn.Tanh()]
        self.main = nn.Sequential(*layers)

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, size=64, channels=3, ndf=64):
        super().__init__()
        layers = [nn.Conv2d(channels, ndf, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        width = ndf
        while width < ndf * size // 8:
            layers += [
                nn.Conv2d(width, width * 2, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width * 2),
                nn.LeakyReLU(0.2),
            ]
            width *= 2
        layers += [nn.Conv2d(width, 1, 4, 1, 0, bias=False), nn.Sigmoid()]
        self.main = nn.Sequential(*layers)

    def forward(self, images):
        return self.main(images).flatten()


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (dim // self.heads) ** -0.5
        mixed = scores.softmax(-1) @ value
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, dim))


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, channels, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2)


class Vit(nn.Module):
    def __init__(
        self, size=224, patch=32, dim=768, depth=12, heads=12, classes=10, channels=3
    ):
        super().__init__()
        self.patch_embed = PatchEmbed(channels, dim, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, images):
        x = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def residual(self, x):
        return self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))


class BottleneckBlock(nn.Module):
    expansion = 4

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)

    def residual(self, x):
        x = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        return self.bn3(self.conv3(x))


class ResnetStage(nn.Sequential):
    """Blocks whose shortcut is the input, or a 1x1 convolution of it."""

    def forward(self, x):
        for block in self:
            past = block.downsample(x) if hasattr(block, "downsample") else x
            x = (block.residual(x) + past).relu()
        return x


class Resnet(nn.Module):
    """torchvision's, without `fc`."""

    def __init__(self, kind, depths):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inside = 64
        for stage, depth in enumerate(depths):
            width, blocks = 64 << stage, []
            for i in range(depth):
                stride = 2 if stage and not i else 1
                block = kind(inside, width, stride)
                out = width * kind.expansion
                if stride != 1 or inside != out:
                    block.downsample = nn.Sequential(
                        nn.Conv2d(inside, out, 1, stride, bias=False),
                        nn.BatchNorm2d(out),
                    )
                blocks.append(block)
                inside = out
            setattr(self, f"layer{stage + 1}", ResnetStage(*blocks))
        self.width = inside

    def forward(self, images):
        x = self.bn1(self.conv1(images)).relu()
        x = functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean((2, 3))


class AlexNet(nn.Module):
    """torchvision's, without the last layer and without dropout."""

    width = 4096

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, 4, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, 1, 2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
        )
        layers = {"1": nn.Linear(9216, 4096), "4": nn.Linear(4096, 4096)}
        self.classifier = nn.ModuleDict(layers)

    def forward(self, images):
        x = self.features(images).flatten(1)
        for layer in self.classifier.values():
            x = layer(x).relu()
        return x


class Dann(nn.Module):
    width = 256

    def __init__(self, size):
        super().__init__()
        self.fc = nn.Linear(3 * size * size, 256)

    def forward(self, images):
        return self.fc(images.flatten(1)).relu()


RESNETS = {
    "resnet18": (BasicBlock, [2, 2, 2, 2]),
    "resnet34": (BasicBlock, [3, 4, 6, 3]),
    "resnet50": (BottleneckBlock, [3, 4, 6, 3]),
    "resnet101": (BottleneckBlock, [3, 4, 23, 3]),
    "resnet152": (BottleneckBlock, [3, 8, 36, 3]),
}


def make_backbone(name, size):
    if name == "dann":
        return Dann(size)
    return AlexNet() if name == "alexnet" else Resnet(*RESNETS[name])


def coral(source, target):
    """By torch.cov, whose divisor is n - 1."""
    apart = torch.cov(source.T) - torch.cov(target.T)
    return apart.square().sum() / (4 * source.shape[1] ** 2)


def mmd(source, target):
    """Five Gaussian kernels, the middle one as wide as the mean distance."""
    every = torch.cat([source, target])
    square = (every[:, None] - every[None]).square().sum(2)
    width = square.detach().sum() / (len(every) * (len(every) - 1))
    kernel = sum(torch.exp(-square / (width * 2.0**i)) for i in range(-2, 3))
    n = len(source)
    means = [kernel[:n, :n], kernel[n:, n:], kernel[:n, n:], kernel[n:, :n]]
    own, other, across, back = (part.mean() for part in means)
    return own + other - across - back


class TransferNet(nn.Module):
    def __init__(self, name, size, classes, bottleneck=256):
        super().__init__()
        self.backbone = make_backbone(name, size)
        self.bottleneck = nn.Linear(self.backbone.width, bottleneck)
        self.classifier = nn.Linear(bottleneck, classes)

    def forward(self, images):
        """Features and logits."""
        features = self.bottleneck(self.backbone(images)).relu()
        return features, self.classifier(features)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def conv3(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class DenseBlock(nn.Module):
    def __init__(self, filters):
        super().__init__()
        for i in range(1, 6):
            layers = [conv3(filters * i, filters)]
            layers += [nn.LeakyReLU()] if i < 5 else []
            setattr(self, f"b{i}", nn.Sequential(*layers))

    def forward(self, x):
        maps = x
        for i in range(1, 6):
            out = getattr(self, f"b{i}")(maps)
            maps = torch.cat([maps, out], 1)
        return out * 0.2 + x


class Rrdb(nn.Module):
    def __init__(self, filters):
        super().__init__()
        self.dense_blocks = nn.Sequential(*[DenseBlock(filters) for _ in range(3)])

    def forward(self, x):
        return self.dense_blocks(x) * 0.2 + x


class EsrganGenerator(nn.Module):
    def __init__(self, channels=3, blocks=23, filters=64):
        super().__init__()
        self.conv1 = conv3(channels, filters)
        self.res_blocks = nn.Sequential(*[Rrdb(filters) for _ in range(blocks)])
        self.conv2 = conv3(filters, filters)
        layers = []
        for _ in range(2):
            layers += [conv3(filters, 4 * filters), nn.LeakyReLU(), nn.PixelShuffle(2)]
        self.upsampling = nn.Sequential(*layers)
        self.conv3 = nn.Sequential(
            conv3(filters, filters), nn.LeakyReLU(), conv3(filters, channels)
        )

    def forward(self, x):
        first = self.conv1(x)
        x = first + self.conv2(self.res_blocks(first))
        return self.conv3(self.upsampling(x))


class EsrganDiscriminator(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        layers = []
        width = channels
        for out in (64, 128, 256, 512):
            layers.append(conv3(width, out))
            layers += [nn.BatchNorm2d(out)] if width != channels else []
            layers += [nn.LeakyReLU(0.2), conv3(out, out, 2)]
            layers += [nn.BatchNorm2d(out), nn.LeakyReLU(0.2)]
            width = out
        self.model = nn.Sequential(*layers, conv3(width, 1))

    def forward(self, x):
        return self.model(x)


class Vgg19Features(nn.Module):
    """torchvision's vgg19().features[:35], frozen."""

    def __init__(self):
        super().__init__()
        layers = []
        width = 3
        for out, times in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(times):
                layers += [conv3(width, out), nn.ReLU()]
                width = out
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers[:35])
        self.requires_grad_(False)

    def forward(self, x):
        return self.features(x)
