"""The DeepCORAL that people run today: plain PyTorch, DDP over Gloo; with the
sharding that the originals lack.

    torchrun --nproc-per-node 2 bench/peer_deepcoral.py --batch-size 8 --steps 20
"""

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import peer_harness
import resnet

LR = 1e-3
WEIGHT = 10


def main():
    arguments = peer_harness.parse_arguments(__doc__, 8, 64, 20)
    rank, world = peer_harness.join_group()
    torch.manual_seed(arguments.seed)
    images = peer_harness.Images(arguments.data, arguments.image_size)
    steps = arguments.steps
    source = peer_harness.batches(peer_harness.make_loader(images, arguments), steps)
    target = peer_harness.batches(peer_harness.make_loader(images, arguments), steps)
    net = resnet.TransferNet(18, 10, images.channels)
    optimizer = torch.optim.SGD(net.groups(LR), LR, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + 3e-4 * step) ** -0.75
    )
    model = DistributedDataParallel(net)

    losses = []
    stopwatch = peer_harness.Stopwatch(arguments.warmup)
    for (batch, labels), (other, _) in zip(source, target, strict=True):
        optimizer.zero_grad()
        logits, apart = model(batch, other)
        loss = functional.cross_entropy(logits, labels) + WEIGHT * apart
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        stopwatch.step_ended()

    result = stopwatch.result(arguments.batch_size * world)
    result.update(first_loss=losses[0], last_loss=losses[-1])
    peer_harness.report(result, arguments)


if __name__ == "__main__":
    main()
