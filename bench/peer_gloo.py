"""PyTorch's all-reduce over Gloo, for collectives.py: one JSON line a size.

peer_gloo.py RANK RANKS FILE BYTES...
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def main():
    rank, ranks, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    for size in map(int, sys.argv[4:]):
        data = torch.zeros(size // 4)
        iterations = max(3, min(200, int(0.4 / (2e-3 + size / 1e9))))
        for _ in range(3):
            dist.all_reduce(data)
        rounds = []
        for _ in range(5):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                dist.all_reduce(data)
            rounds.append((time.perf_counter() - start) * 1e6 / iterations)
        rounds.sort()
        if rank == 0:
            line = {"bytes": size, "us": rounds[len(rounds) // 2], "best_us": rounds[0]}
            print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
