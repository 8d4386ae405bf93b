"""Plain PyTorch DDP, as its tutorials write it: nothing here knows lockstep.

    lockstep run --procs 2 -- python3 examples/ddp.py
    lockstep run examples/ddp.yaml
    torchrun --nproc-per-node 2 examples/ddp.py
"""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    total = torch.tensor([float(rank)])
    dist.all_reduce(total)

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    target = torch.arange(8, dtype=torch.float32).unsqueeze(1) / 8
    data = torch.Generator().manual_seed(100 + rank)  # each rank has its own
    for step in range(1, 51):
        x = torch.randn(16, 8, generator=data)
        loss = torch.nn.functional.mse_loss(model(x), x @ target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    # Equal weights on all ranks: that is what DDP promises.
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    lowest, highest = weights.clone(), weights.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    print(
        f"rank {rank} of {world} on node {os.environ.get('NODE_RANK', '0')}: "
        f"sum of ranks {int(total.item())}, "
        f"equal weights {bool(torch.equal(lowest, highest))}, "
        f"checksum {weights.double().sum().item():.6f}",
        flush=True,
    )
    # A thread of Gloo that still lets go of the last tensor while the interpreter
    # ends aborts the process (PyTorch 2.13): give it the interpreter's lock first.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
