# SPDX-License-Identifier: Apache-2.0
"""Two blocks of 1024 → 4096 → 1024, batch and hidden dimension sharded."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_spmd as spmd
from benchmarks.workloads.common import Annotate, Workload, mark_parameters


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)


def build(
    annotated: bool,
    batch: int = 512,
    width: int = 1024,
    hidden: int = 4096,
    mesh_shape: tuple[int, int] = (2, 4),
) -> Workload:
    mesh = spmd.make_mesh(mesh_shape, ("data", "model"))
    mark = Annotate(mesh, annotated)
    model = nn.ModuleList([Block(width, hidden) for _ in range(2)]).to("spmd")
    mark_parameters(model, mesh, {"up.weight": ("model", None), "down.weight": (None, "model")})
    x, y = (
        spmd.mark_sharding(torch.randn(batch, width).to("spmd"), mesh, ("data", None))
        for _ in range(2)
    )

    def loss() -> Tensor:
        h = x
        for block in model:
            h = mark(block.down(mark(F.relu(block.up(h)), "data", "model")), "data", None)
        return (h - y).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Workload(mesh, model, optimizer, {"x": x, "y": y}, loss)
