# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning: python lightning_train.py FOLDER. Prints losses as JSON."""

import json
import sys

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

import torch_spmd as spmd
from torch_spmd.integrations.lightning import Strategy

folder = sys.argv[1]
mesh = spmd.make_mesh((2, 4), ("data", "model"))
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(32, 16), torch.randint(4, (32,)))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        assert x.shape == (8, 16) and spmd.sharding_of(x).spec == spmd.P("data", None)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def train(epochs, path=None):
    torch.manual_seed(1)
    torch.spmd.manual_seed(1)
    model = Model()
    trainer = pl.Trainer(
        max_epochs=epochs,
        strategy=Strategy(mesh, batch="data", shard=lambda m: spmd.fsdp(m, mesh, "data")),
        logger=CSVLogger(folder, name="log"),
        log_every_n_steps=1,
        callbacks=[ModelCheckpoint(f"{folder}/checkpoints", monitor="loss")],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8), ckpt_path=path)
    assert trainer.global_rank == spmd.processes.process_index()
    return trainer, model.losses


trainer, losses = train(1)
path = trainer.checkpoint_callback.best_model_path
saved = torch.load(path, weights_only=False)
assert all(weight.device.type == "cpu" for weight in saved["state_dict"].values()) or (
    spmd.processes.process_count() == 1
)
trainer.strategy.barrier()
_, more = train(2, path)
assert len(losses) == len(more) == 4
if trainer.is_global_zero:
    print(json.dumps([losses, more]))
