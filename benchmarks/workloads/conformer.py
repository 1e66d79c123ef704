# SPDX-License-Identifier: Apache-2.0
"""Eight Conformer blocks as a pipeline of four stages; the batch is sharded as well.

The weights of all stages are stacked, and so are their inputs. Every step shifts the inputs by
one stage, adds a new micro-batch, and runs all stages at once: with the stack sharded over
`stage`, each device runs its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload

STAGES, BLOCKS, WIDTH, HEADS, HIDDEN, KERNEL, VOCAB = 4, 2, 256, 4, 1024, 15, 256
LENGTH, MICRO_BATCHES, MICRO_BATCH = 256, 8, 2


def stacked(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(STAGES, *shape) / shape[0] ** 0.5)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(STAGES, WIDTH))
        self.bias = nn.Parameter(torch.zeros(STAGES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normal = F.layer_norm(x, (WIDTH,))
        return normal * self.weight[:, None, None] + self.bias[:, None, None]


class Linear(nn.Module):
    """[stage, batch, length, inputs] → [stage, batch, length, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = stacked(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("sbti,sio->sbto", x, self.weight)


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), Linear(WIDTH, HIDDEN), Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * self.down(F.silu(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.q, self.k, self.v, self.o = (Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        stages, batch, length, width = x.shape
        h = self.norm(x)
        q, k, v = (  # [stage, batch · head, length, width of a head]
            layer(h).view(stages, batch, length, HEADS, -1).transpose(2, 3).flatten(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        o = F.scaled_dot_product_attention(q, k, v).unflatten(1, (batch, HEADS))
        return x + self.o(o.transpose(2, 3).reshape(stages, batch, length, width))


class Convolution(nn.Module):
    """A gate, a convolution of every channel over time, and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = Norm(), Norm()
        self.gate, self.project = Linear(WIDTH, 2 * WIDTH), Linear(WIDTH, WIDTH)
        self.kernel = nn.Parameter(torch.randn(STAGES, WIDTH, 1, KERNEL) / KERNEL**0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.glu(self.gate(self.norm(x)))
        h = h.permute(1, 0, 3, 2).flatten(1, 2)  # [batch, stage · channel, length]
        kernel = self.kernel.flatten(0, 1)
        h = F.conv1d(h, kernel, padding=KERNEL // 2, groups=h.shape[1])
        h = h.unflatten(1, (STAGES, WIDTH)).permute(1, 0, 3, 2)
        return x + self.project(F.silu(self.norm2(h)))


def block() -> nn.Sequential:
    return nn.Sequential(FeedForward(), Attention(), Convolution(), FeedForward(), Norm())


class Conformer(nn.Module):
    def __init__(self, mark: Annotate) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(block() for _ in range(BLOCKS)))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.mark = mark

    def buffer(self, x: Tensor) -> Tensor:
        return self.mark(x, "stage", "data", None, None)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs [micro-batch, batch, length, width]; one target per frame."""
        filled, results = self.buffer(torch.zeros_like(inputs[:1].expand(STAGES, -1, -1, -1))), []
        for step in range(len(inputs) + STAGES - 1):
            new = inputs[min(step, len(inputs) - 1)][None]
            filled = self.buffer(torch.cat([new, filled[:-1]]))
            filled = self.buffer(self.stages(filled))
            results.append(filled[-1])
        logits = self.head(torch.stack(results[STAGES - 1 :]))
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def build(annotated: bool) -> Workload:
    mesh = spmd.make_mesh((STAGES, 2), ("stage", "data"))
    model = Conformer(Annotate(mesh, annotated)).to("spmd")
    for name, parameter in model.named_parameters():
        axis = None if name.startswith("head") else "stage"
        spmd.mark_sharding(parameter, mesh, (axis, *(None,) * (parameter.dim() - 1)))
    shape = (MICRO_BATCHES, MICRO_BATCH, LENGTH)
    inputs = torch.randn(*shape, WIDTH).to("spmd")
    targets = torch.randint(VOCAB, shape).to("spmd")
    spmd.mark_sharding(inputs, mesh, (None, "data", None, None))
    spmd.mark_sharding(targets, mesh, (None, "data", None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read = {"inputs": inputs, "targets": targets}
    return Workload(mesh, model, optimizer, read, lambda: model(inputs, targets))
