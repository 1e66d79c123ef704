# SPDX-License-Identifier: Apache-2.0
"""Programs that test_imports.py runs in processes of their own, on the CPU and on the device.

    python tests/python/support/imported_programs.py

prints, as JSON, the modules that each program imported after `import torch_spmd`, and the ops whose
shapes PyTorch's Python was asked about, or its error: {"training": {"cpu": {"imported": [], …
"""

import json
import os
import re
import sys

import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd  # noqa: F401
from torch_spmd import _C


def to(device, *shape):
    return torch.randn(*shape).to(device)


def whole(device, high, *shape):
    return torch.randint(high, shape).to(device)


def perceptron():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def images():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2)),
        *(nn.ConvTranspose2d(8, 4, 2, 2), nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(4, 4)),
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.bags = nn.EmbeddingBag(20, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        h = self.gru(self.lstm(self.embedding(x))[0])[0]
        return self.head(self.block(h).mean(1) + self.bags(x))


def steps(device, model, x, optimizer=None):
    model = model.to(device)
    y = whole(device, 4, len(x))
    optimizer = optimizer and optimizer(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def training(device):
    steps(device, perceptron(), to(device, 5, 16))
    steps(device, images(), to(device, 4, 3, 12, 12))
    steps(device, Words(), whole(device, 20, 4, 5))


def optimizers(device):
    for optimizer in (torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop):
        steps(device, perceptron(), to(device, 5, 16), optimizer)


def inference(device):
    with torch.no_grad():
        images().to(device).eval()(to(device, 4, 3, 12, 12)).argmax(-1).tolist()
        Words().to(device).eval()(whole(device, 20, 4, 5)).topk(2)[1].tolist()
    with torch.inference_mode(), torch.autocast(device, torch.bfloat16):
        perceptron().to(device)(to(device, 5, 16)).softmax(-1).float().sum().item()


def attention(device):
    q, k, v = (to(device, 2, 4, 6, 8).requires_grad_() for _ in range(3))
    mask = torch.ones(6, 6, dtype=torch.bool).tril().to(device)
    by_hand = ((q @ k.mT) * 0.3).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    fused = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    turned = torch.einsum("bhqd,bhkd->bqk", q, k)
    (by_hand.transpose(1, 2).reshape(2, 6, 32).sum() + (fused + causal).sum()).backward()
    turned.sum().item()


def losses(device):
    x, target = to(device, 4, 5).requires_grad_(), to(device, 4, 5)
    p, y = target.sigmoid(), whole(device, 5, 4)
    total = F.cross_entropy(x, y, label_smoothing=0.1) + F.nll_loss(x.log_softmax(1), y)
    total = total + F.mse_loss(x, target) + F.l1_loss(x, target) + F.smooth_l1_loss(x, target)
    total = total + F.huber_loss(x, target) + F.binary_cross_entropy(x.sigmoid(), p)
    total = total + F.binary_cross_entropy_with_logits(x, p) + F.kl_div(x, p)
    (total + F.cosine_similarity(x, target).sum()).backward()
    total.item()


def indexing(device):
    x, i = to(device, 6, 5).requires_grad_(), whole(device, 5, 4)
    total = x[i].sum() + x[i, i].sum() + x[1:3, ::2].sum() + x.gather(1, i[:, None]).sum()
    total = total + x.sort(-1)[0].sum() + x.topk(2)[0].sum() + x.cumsum(0).sum() + x.max(1)[0].sum()
    total = total + x.var() + x.flip(0).roll(1).repeat(2, 1).sum() + x.clamp(-1, 1).mean()
    total = total + torch.where(x > 0, x, 0.0).sum() + torch.stack([x, x]).prod() + x.abs().amax()
    total.backward()
    z = torch.zeros(6, 5, device=device)
    z[i] = 1.0
    z[0] = torch.arange(5, device=device)
    z.scatter_(1, i[:, None], 1.0).index_add_(0, i, torch.rand(4, 5, device=device))
    z.masked_fill_(z > 1, 0.0)
    (z.sum() + F.one_hot(i, 5).sum()).item()


PROGRAMS = (training, optimizers, inference, attention, losses, indexing)


def what_it_imports(program, device):
    before = set(sys.modules)
    program(device)
    imported = sorted(set(sys.modules) - before)
    asked = [
        op
        for op in _C.meta_kernels_of_dispatcher()
        if re.search(r"^Meta: .*_meta_registrations", torch._C._dispatch_dump(op), re.MULTILINE)
    ]
    return {"imported": imported, "asked": asked}


def in_a_fork(function, *arguments):
    """Its result, as JSON, computed in a copy of this process, which has not used the device."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(read)
        try:
            result = function(*arguments)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        with open(write, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text or '{"error": "the process has ended"}')


if __name__ == "__main__":
    devices = ("cpu", "spmd")
    print(
        json.dumps(
            {
                program.__name__: {d: in_a_fork(what_it_imports, program, d) for d in devices}
                for program in PROGRAMS
            }
        )
    )
