"""ViT-tiny as people write it today: plain PyTorch, DDP over Gloo, AdamW.

    torchrun --nproc-per-node 2 bench/peer_vit.py --batch-size 32 --steps 20

Width 192, 3 heads, pre-norm blocks, exact GELU, class token, learned
positions; attention by scaled_dot_product_attention.
"""

import torch
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import peer_harness

WIDTH = 192
HEADS = 3
DEPTH = 12
PATCH = 4
CLASSES = 10


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        batch, length, width = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, length, 3, HEADS, width // HEADS)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(attended.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, tokens):
        tokens = tokens + self.attn(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class Vit(nn.Module):
    def __init__(self, channels, image_size):
        super().__init__()
        length = (image_size // PATCH) ** 2 + 1
        self.patch_embed = nn.Conv2d(channels, WIDTH, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, length, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images):
        patches = self.patch_embed(images).flatten(2).transpose(1, 2)
        classes = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([classes, patches], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def main():
    arguments = peer_harness.parse_arguments(__doc__, 32, 32, 20)
    rank, world = peer_harness.join_group()
    torch.manual_seed(arguments.seed)
    images = peer_harness.Images(arguments.data, arguments.image_size)
    loader = peer_harness.make_loader(images, arguments)
    model = DistributedDataParallel(Vit(images.channels, arguments.image_size))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.05)

    losses = []
    stopwatch = peer_harness.Stopwatch(arguments.warmup)
    for batch, labels in peer_harness.batches(loader, arguments.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            logits = model(batch)
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        stopwatch.step_ended()

    result = stopwatch.result(arguments.batch_size * world)
    result.update(
        parameters=sum(p.numel() for p in model.parameters()),
        first_loss=losses[0],
        last_loss=losses[-1],
    )
    peer_harness.report(result, arguments)


if __name__ == "__main__":
    main()
