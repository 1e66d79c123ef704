# SPDX-License-Identifier: Apache-2.0
"""Trains with accelerate: python accelerate_train.py FOLDER. Prints losses as JSON. With a second
folder, which a run has saved, it does only what that has done after saving."""

import json
import os
import sys

import torch
from accelerate import Accelerator
from torch import nn

import torch_spmd as spmd

spmd.integrations.accelerate()
folder = sys.argv[1]
accelerator = Accelerator()
torch.manual_seed(0)
mesh = spmd.make_mesh((2, 4), ("data", "model"))
linear, tied = nn.Linear(16, 32), nn.Linear(32, 32, bias=False)
model = nn.Sequential(linear, nn.GELU(), tied, nn.Dropout(0.2), nn.Linear(32, 32), nn.Linear(32, 4))
model[4].weight = tied.weight
model = model.to(accelerator.device)
spmd.mark_sharding(model[0].weight, mesh, ("model", None))
data = torch.utils.data.TensorDataset(torch.randn(48, 16), torch.randint(4, (48,)))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def steps(batches):
    losses = []
    for x, y in batches:
        spmd.mark_sharding(x, mesh, ("data", None))
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).item())
    return losses


if len(sys.argv) > 2:
    accelerator.load_state(f"{sys.argv[2]}/state")
    accelerator.print(json.dumps(steps(list(loader))))
    sys.exit()
first = steps(loader)
assert len(first) == 6  # every process has all batches
accelerator.save_state(f"{folder}/state")
batches = list(loader)
second = steps(batches)
accelerator.load_state(f"{folder}/state")
torch.testing.assert_close(steps(batches), second, rtol=0, atol=0)
accelerator.save_model(model, f"{folder}/model")
weights = accelerator.get_state_dict(model)
assert all(weight.device.type == "cpu" for weight in weights.values()) or (
    spmd.processes.process_count() == 1
)
accelerator.wait_for_everyone()
with accelerator.main_process_first():
    saved = os.listdir(f"{folder}/model")
assert saved == ["model.safetensors"], saved


@accelerator.on_main_process
def show():
    print("shown by", spmd.processes.process_index())


show()
accelerator.print(json.dumps(first + second))
print("main" if accelerator.is_main_process else "other", accelerator.is_last_process)
