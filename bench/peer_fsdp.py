"""ViT of width 384 as people shard it today: PyTorch's fully_shard over Gloo.

    torchrun --nproc-per-node 4 bench/peer_fsdp.py --batch-size 8 --steps 12

Each block is a unit of its own and the model around them another, as the
documentation of fully_shard advises; AdamW on the shards.
"""

import torch
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import peer_harness
import peer_vit

peer_vit.WIDTH = 384
peer_vit.HEADS = 6
peer_vit.DEPTH = 6


def main():
    arguments = peer_harness.parse_arguments(__doc__, 8, 32, 12)
    rank, world = peer_harness.join_group()
    torch.manual_seed(arguments.seed)
    images = peer_harness.Images(arguments.data, arguments.image_size)
    loader = peer_harness.make_loader(images, arguments)
    model = peer_vit.Vit(images.channels, arguments.image_size)
    parameters = sum(p.numel() for p in model.parameters())
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)

    losses = []
    stopwatch = peer_harness.Stopwatch(arguments.warmup)
    for batch, labels in peer_harness.batches(loader, arguments.steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        stopwatch.step_ended()

    result = stopwatch.result(arguments.batch_size * world)
    result.update(
        parameters=parameters, first_loss=losses[0], last_loss=losses[-1]
    )
    peer_harness.report(result, arguments)


if __name__ == "__main__":
    main()
