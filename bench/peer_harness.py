"""What the two PyTorch peers share: their images, their group and their clock.

The data path gives the peer every advantage: all images sit in memory as
bytes, a batch is picked by one indexing operation and resized and scaled by
one call, in the main process, so no worker competes for the two cores.
"""

import argparse
import gzip
import json
import os
import pathlib
import resource
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")


def parse_arguments(description, batch_size, image_size, steps, more=None):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="a rank")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--warmup", type=int, default=5, help="steps left out")
    parser.add_argument(
        "--data", choices=["fashion_mnist", "synthetic"], default="fashion_mnist"
    )
    parser.add_argument("--image-size", type=int, default=image_size)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument("--out", help="file for the result of rank 0; else stdout")
    if more:
        more(parser)
    return parser.parse_args()


def read_idx(path):
    """An idx.gz file of unsigned bytes."""
    with gzip.open(path) as file:
        data = file.read()
    dimensions = data[3]
    shape = numpy.frombuffer(data, ">i4", dimensions, 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * dimensions).reshape(
        tuple(shape)
    )


class Images(Dataset):
    """Bytes in memory; a whole batch is fetched at once."""

    def __init__(self, name, image_size):
        self.image_size = image_size
        if name == "fashion_mnist":
            pixels = read_idx(FASHION_MNIST / "train-images-idx3-ubyte.gz")
            labels = read_idx(FASHION_MNIST / "train-labels-idx1-ubyte.gz")
            self.pixels = torch.from_numpy(pixels.copy()).unsqueeze(1)
            self.labels = torch.from_numpy(labels.astype(numpy.int64))
        else:
            generator = torch.Generator().manual_seed(7)
            shape = (4096, 3, 32, 32)
            self.pixels = torch.randint(
                0, 256, shape, dtype=torch.uint8, generator=generator
            )
            self.labels = torch.randint(0, 10, shape[:1], generator=generator)

    @property
    def channels(self):
        return self.pixels.shape[1]

    def __len__(self):
        return len(self.pixels)

    def __getitems__(self, indices):
        chosen = torch.as_tensor(indices)
        images = self.pixels[chosen].float().div_(127.5).sub_(1)
        if images.shape[-1] != self.image_size:
            images = functional.interpolate(
                images,
                size=(self.image_size, self.image_size),
                mode="bilinear",
                align_corners=False,
            )
        return images, self.labels[chosen]


def join_group():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def make_loader(images, arguments):
    sampler = DistributedSampler(images, seed=arguments.seed, drop_last=True)
    return DataLoader(
        images,
        batch_size=arguments.batch_size,
        sampler=sampler,
        num_workers=0,
        drop_last=True,
        collate_fn=lambda batch: batch,
    )


def batches(loader, steps):
    """As many batches as asked for, over epochs."""
    done = 0
    epoch = 0
    while done < steps:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return
        epoch += 1


def peak_bytes():
    """VmHWM of this process."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Stopwatch:
    """Wall-clock ends of the steps; throughput leaves out the first ones."""

    def __init__(self, warmup):
        self.warmup = warmup
        self.first_step = time.time()
        self.ends = []

    def step_ended(self):
        self.ends.append(time.time())

    def result(self, samples_per_step):
        steady = len(self.ends) - self.warmup
        seconds = self.ends[-1] - self.ends[self.warmup - 1]
        return {
            "first_step": self.first_step,
            "steps": len(self.ends),
            "warmup": self.warmup,
            "samples_per_second": samples_per_step * steady / seconds,
            "step_ends": self.ends,
        }


def report(result, arguments):
    """The slowest rank does not differ from rank 0 in synchronous training;
    memory is the largest of all ranks."""
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, max(peak_bytes(), usage))
    if dist.get_rank() == 0:
        result.update(peak_bytes=max(peaks), torch=torch.__version__)
        result.update(threads=torch.get_num_threads())
        text = json.dumps(result)
        if arguments.out:
            pathlib.Path(arguments.out).write_text(text + os.linesep)
        else:
            print(text, flush=True)
    # Gloo's threads let go of the last tensors before the interpreter ends, else
    # the process aborts (PyTorch 2.13).
    time.sleep(0.2)
    dist.destroy_process_group()
