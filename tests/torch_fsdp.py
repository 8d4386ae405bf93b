"""PyTorch's own sharded training, one rank of it, for tests/test_fsdp.py:

    RANK=.. WORLD_SIZE=.. MASTER_ADDR=.. MASTER_PORT=.. python3 torch_fsdp.py IN OUT

IN is what parity_probe reads; OUT gets the loss of each step, the mean over
ranks, and the final weights. fully_shard over Gloo, a unit a block and a root.
"""

import os
import sys

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch_models import Vit


def main(given, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with safe_open(given, "pt") as file:
        options = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    sizes = ("image_size", "patch", "dim", "depth", "heads")
    model = Vit(*(int(options[key]) for key in sizes))
    model.load_state_dict(
        {n[5:]: tensor for n, tensor in tensors.items() if n.startswith("init.")}
    )
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    plain, decayed = [], []
    for name, parameter in model.named_parameters():
        small = parameter.dim() < 2 or name in ("cls_token", "pos_embed")
        (plain if small else decayed).append(parameter)
    decay = float(options["weight_decay"])
    groups = [
        {"params": decayed, "weight_decay": decay},
        {"params": plain, "weight_decay": 0},
    ]
    adamw = torch.optim.AdamW(groups, float(options["lr"]), (0.9, 0.999))
    clip = float(options["clip"])

    losses = []
    for images, labels in zip(tensors["images"], tensors["labels"]):
        share = len(images) // world
        mine = slice(rank * share, (rank + 1) * share)
        adamw.zero_grad()
        loss = functional.cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        adamw.step()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        losses.append(mean)
    final = {n: p.full_tensor().clone() for n, p in model.state_dict().items()}
    if rank == 0:
        answer = {f"final.{name}": tensor for name, tensor in final.items()}
        save_file(answer | {"losses": torch.stack(losses)}, out)
    dist.barrier()
    # Gloo's threads must not outlive what they use.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
