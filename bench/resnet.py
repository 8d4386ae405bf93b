"""ResNet as people write it in PyTorch, for the peers."""

from torch import nn

DEPTHS = {18: (False, [2, 2, 2, 2]), 50: (True, [3, 4, 6, 3])}


class Block(nn.Module):
    def __init__(self, inside, width, stride, bottleneck):
        super().__init__()
        out = 4 * width if bottleneck else width
        plan = [(inside, width, 3, stride), (width, width, 3, 1)]
        if bottleneck:
            plan = [(inside, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        layers = []
        for a, b, kernel, step in plan:
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False)]
            layers += [nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        self.main = nn.Sequential(*layers[:-1])
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inside != out:
            shortcut = nn.Conv2d(inside, out, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x):
        past = x if self.downsample is None else self.downsample(x)
        return self.relu(self.main(x) + past)


class Resnet(nn.Module):
    def __init__(self, depth, channels=3):
        super().__init__()
        bottleneck, depths = DEPTHS[depth]
        layers = [
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        inside = 64
        for stage, count in enumerate(depths):
            width = 64 << stage
            for i in range(count):
                stride = 2 if stage and not i else 1
                layers.append(Block(inside, width, stride, bottleneck))
                inside = 4 * width if bottleneck else width
        self.main = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.width = inside

    def forward(self, images):
        return self.main(images)


class TransferNet(nn.Module):
    """Both domains in one call, as DDP wants it: logits of the source and the
    CORAL distance."""

    def __init__(self, depth, classes, channels=3):
        super().__init__()
        self.backbone = Resnet(depth, channels)
        self.bottleneck = nn.Sequential(nn.Linear(self.backbone.width, 256), nn.ReLU())
        self.classifier = nn.Linear(256, classes)

    @staticmethod
    def covariance(features):
        apart = features - features.mean(0, keepdim=True)
        return apart.t() @ apart / (len(features) - 1)

    def forward(self, source, target):
        source = self.bottleneck(self.backbone(source))
        target = self.bottleneck(self.backbone(target))
        apart = self.covariance(source.float()) - self.covariance(target.float())
        return self.classifier(source), (apart * apart).sum() / (4 * 256 * 256)

    def groups(self, lr):
        """The backbone at a tenth of the learning rate."""
        return [
            {"params": self.backbone.parameters(), "lr": 0.1 * lr},
            {"params": self.bottleneck.parameters(), "lr": lr},
            {"params": self.classifier.parameters(), "lr": lr},
        ]
