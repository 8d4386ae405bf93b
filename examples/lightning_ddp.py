"""A Lightning training on all ranks that lockstep starts.

    lockstep run --procs 2 -- python3 examples/lightning_ddp.py
    lockstep run examples/lightning_ddp.yaml

The LightningModule and the Trainer are as anywhere. lockstep's callback is
optional: with it the run has iterations, metrics, epochs and checkpoints, and
`lockstep stop` ends the training at a step with a checkpoint.
"""

import os
import time
import warnings

import torch

warnings.filterwarnings("ignore")

import lightning as L  # noqa: E402

try:
    import lockstep

    callbacks = [lockstep.LightningCallback()]
except ImportError:
    callbacks = []


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def loader():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 8, generator=generator)
    y = x @ torch.arange(8, dtype=torch.float32).unsqueeze(1) / 8
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True
    )


def main():
    torch.set_num_threads(1)
    L.seed_everything(0, verbose=False)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=local,
        num_nodes=world // local,
        max_epochs=int(os.environ.get("EPOCHS", "2")),
        log_every_n_steps=4,
        default_root_dir=os.environ.get("LOCKSTEP_CHECKPOINTS", "."),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    model = Line()
    trainer.fit(model, loader())

    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everywhere = trainer.strategy.all_gather(weights).reshape(-1, weights.numel())
    ranks = trainer.strategy.reduce(
        torch.tensor(float(trainer.global_rank)), reduce_op="sum"
    )
    print(
        f"rank {trainer.global_rank} of {trainer.world_size} on node "
        f"{trainer.node_rank}: sum of ranks {int(ranks.item())}, "
        f"equal weights {bool((everywhere == weights).all())}, "
        f"steps {trainer.global_step}",
        flush=True,
    )
    # A thread of Gloo that still lets go of the last tensor while the interpreter
    # ends aborts the process (PyTorch 2.13): give it the interpreter's lock first.
    time.sleep(0.2)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
