# SPDX-License-Identifier: Apache-2.0
"""Scripts as others write them run on the device: restated ones, which need no download."""

import math

import pytest

from benchmarks.peers import scripts

# As in pytorch/examples: a convolutional network with dropout, a recurrent model whose hidden state
# goes on from batch to batch, and two networks against each other; the device is the accelerator.
UNCHANGED = """
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

device = torch.accelerator.current_accelerator()
torch.manual_seed(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 4, 3), nn.Dropout2d(0.25)
        self.fc = nn.Linear(4 * 3 * 3, 10)

    def forward(self, x):
        x = self.drop(F.max_pool2d(F.relu(self.conv(x)), 2))
        return F.log_softmax(self.fc(F.dropout(torch.flatten(x, 1), training=self.training)), dim=1)

images = TensorDataset(torch.rand(48, 1, 8, 8), torch.randint(10, (48,)))
loader = DataLoader(images, 16, shuffle=True, num_workers=1, pin_memory=True)
net = Net().to(device)
optimizer = optim.Adadelta(net.parameters(), lr=1.0)
for data, target in loader:
    data, target = data.to(device), target.to(device)
    optimizer.zero_grad()
    loss = F.nll_loss(net(data), target)
    loss.backward()
    optimizer.step()
    print(f"Loss: {loss.item():.6f}")
net.eval()
with torch.no_grad():
    correct = sum(net(x.to(device)).argmax(1).eq(y.to(device)).sum().item() for x, y in loader)
print(f"test loss: {correct / 48:.6f}")

words = torch.randint(20, (33, 4)).to(device)
embed, rnn, out = nn.Embedding(20, 8), nn.LSTM(8, 8), nn.Linear(8, 20)
for part in (embed, rnn, out):
    part.to(device)
hidden = tuple(torch.zeros(1, 4, 8, device=device) for _ in range(2))
parameters = [p for part in (embed, rnn, out) for p in part.parameters()]
for start in range(0, 32, 8):
    hidden = tuple(h.detach() for h in hidden)
    y, hidden = rnn(embed(words[start : start + 8]), hidden)
    loss = F.cross_entropy(out(y).view(-1, 20), words[start + 1 : start + 9].reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 0.25)
    for p in parameters:
        p.data.add_(p.grad, alpha=-1.0)
        p.grad = None
    print(f"loss {loss.item():.6f}")

make = nn.Sequential(nn.ConvTranspose2d(8, 4, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                     nn.Linear(64, 16), nn.Tanh()).to(device)
judge = nn.Sequential(nn.Linear(16, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid()).to(device)
to_make, to_judge = (optim.Adam(m.parameters(), 1e-2, (0.5, 0.999)) for m in (make, judge))
for _ in range(3):
    fake = make(torch.randn(6, 8, 1, 1, device=device))
    to_judge.zero_grad()
    ones, zeros = torch.full((6,), 1.0, device=device), torch.full((6,), 0.0, device=device)
    loss = F.binary_cross_entropy(judge(torch.randn(6, 16, device=device)).squeeze(1), ones)
    loss = loss + F.binary_cross_entropy(judge(fake.detach()).squeeze(1), zeros)
    loss.backward()
    to_judge.step()
    to_make.zero_grad()
    lied = F.binary_cross_entropy(judge(fake).squeeze(1), ones)
    lied.backward()
    to_make.step()
    print(f"loss {loss.item():.6f} loss {lied.item():.6f}")
"""

# As in nanoGPT: micro-steps, clipping, evaluation, a checkpoint; one line is changed.
ONE_LINE = """
import math, os, torch
from torch import nn
from torch.nn import functional as F
from block import GPT

device = "cpu"
torch.manual_seed(1337)
model = GPT()
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
data = torch.randint(32, (512,))

def get_batch():
    ix = torch.randint(len(data) - 16, (8,))
    x = torch.stack([data[i : i + 16] for i in ix])
    y = torch.stack([data[i + 1 : i + 17] for i in ix])
    return x.to(device), y.to(device)

for step in range(3):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * (1 + math.cos(step)) / 2
    for _ in range(2):
        x, y = get_batch()
        loss = model(x, y) / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {step}: loss {loss.item() * 2:.6f}")
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
held = torch.load("ckpt.pt", map_location=device)
model.load_state_dict(held["model"])
model.eval()
with torch.no_grad():
    print(f"held-out loss {model(*get_batch()).item():.6f}")
"""

BLOCK = """
import math
from torch import nn
from torch.nn import functional as F
import torch

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(32, 16), nn.Embedding(16, 16)
        self.attend, self.project = nn.Linear(16, 48), nn.Linear(16, 16)
        self.fc, self.back, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 32, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx, targets):
        b, t = idx.size()
        x = self.wte(idx) + self.wpe(torch.arange(t, dtype=torch.long, device=idx.device))
        q, k, v = self.attend(self.norm(x)).split(16, dim=2)
        q, k, v = (y.view(b, t, 4, 4).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).contiguous().view(b, t, 16))
        x = x + self.back(F.gelu(self.fc(x)))
        logits = self.head(x)
        return F.cross_entropy(logits.view(-1, 32), targets.view(-1))
"""

MOVE = "model.to(device)"


def checkout(folder, **files):
    (folder / "one").mkdir()
    for name, text in files.items():
        (folder / "one" / f"{name}.py").write_text(text)
    return folder


def test_a_script_that_uses_the_accelerator_runs_unchanged(tmp_path):
    case = scripts.Case("examples", "one/main.py", needs=())
    text, fine = scripts.row(case, checkout(tmp_path, main=UNCHANGED), 240)
    assert fine and text.split()[2:4] == ["0", "14"], text
    assert text.endswith("as on the CPU")


def test_one_changed_line_shards_a_script(tmp_path):
    folder = checkout(tmp_path, main=ONE_LINE, block=BLOCK)
    sharded = "assert spmd.sharding_of(model.fc.weight).spec == ('data', None)"
    new = f"import torch_spmd as spmd; device = 'spmd'; {MOVE}; {scripts.FSDP}; {sharded}"
    line = ("main.py", MOVE, new.format(model="model"))
    case = scripts.Case("nanogpt", "one/main.py", changed=line, needs=())
    text, fine = scripts.row(case, folder, 240)
    assert fine and text.split()[2:4] == ["1", "4"], text


def test_what_goes_wrong_is_said(tmp_path):
    folder = checkout(tmp_path, main="import sys\nprint('Loss: 1.5')\nsys.exit('no data')")
    case = scripts.Case("examples", "one/main.py", needs=(), changed=("main.py", "x = 2", "x = 1"))
    assert scripts.run(case, folder, "cpu", 240).error == "no data"
    assert scripts.run(case, folder, "spmd", 240).error == "main.py does not have one line 'x = 2'"
    missing = scripts.Case("examples", "one/main.py", needs=("no_such_package",))
    assert "not run: no_such_package is not installed" in scripts.row(missing, folder, 60)[0]


def test_numbers_are_compared():
    assert scripts.numbers(scripts.LOSS, "Loss: 1.25e-01, train_loss 3.5\nloss=2.") == [0.125, 3.5]
    assert scripts.largest_difference([1.0, 2.02], [1.0, 2.0]) == pytest.approx(0.01)
    assert scripts.largest_difference([1.0], [1.0, 2.0]) == math.inf
    assert scripts.largest_difference([], []) == math.inf
    with pytest.raises(SystemExit):
        scripts.main([])
