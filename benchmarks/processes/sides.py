# SPDX-License-Identifier: Apache-2.0
"""The same training step in a job of several processes: ours, and that of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torch_spmd as spmd
from benchmarks.speed.models import GPT, SMALL, Axes, GPTConfig

from common.strategies import strategy  # isort: skip: models.py makes it importable

BATCH, LENGTH = 8, 256
# A step returns the loss of the whole batch.
LossStep = Callable[[], float]


def _step(
    model: nn.Module, loss: Callable[[], Tensor], read: Callable[[Tensor], float]
) -> LossStep:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return read(value.detach())

    return step


def _model_and_tokens(config: GPTConfig) -> tuple[GPT, Tensor]:
    torch.manual_seed(0)
    return GPT(config), torch.randint(config.vocab_size, (BATCH, LENGTH))


def ours(plan: str, config: GPTConfig = SMALL) -> LossStep:
    """One mesh axis over all devices of the job."""
    model, tokens = _model_and_tokens(config)
    devices = spmd.config.device_count()
    axes: Axes = {"model" if plan == "tp" else "data": devices}
    mesh = spmd.make_mesh(tuple(axes.values()), tuple(axes))
    chosen = strategy(plan, mesh.axis_names)
    model, tokens = model.to("spmd"), tokens.to("spmd")
    spmd.shard_module(model, mesh, chosen.rules)
    spmd.mark_sharding(tokens, mesh, chosen.inputs)
    return _step(model, lambda: model(tokens, tokens), lambda value: float(value.cpu()))


def _mean_over_processes(value: Tensor) -> float:
    dist.all_reduce(value)
    return float(value) / dist.get_world_size()


def _part(tokens: Tensor) -> Tensor:
    return tokens.chunk(dist.get_world_size())[dist.get_rank()]


def ddp(config: GPTConfig = SMALL) -> LossStep:
    model, tokens = _model_and_tokens(config)
    wrapped = DistributedDataParallel(model)
    mine = _part(tokens)
    return _step(wrapped, lambda: wrapped(mine, mine), _mean_over_processes)


def fsdp2(config: GPTConfig = SMALL) -> LossStep:
    """`fully_shard` of each block and of the rest."""
    model, tokens = _model_and_tokens(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mine = _part(tokens)
    return _step(model, lambda: model(mine, mine), _mean_over_processes)


def attend_to_own_heads(attention: Any, x: Tensor) -> Tensor:
    """The attention's `forward`, over the heads that a process has."""
    batch, length, width = x.shape

    def by_head(y: Tensor) -> Tensor:
        return y.view(batch, length, -1, width // attention.heads).transpose(1, 2)

    q, k, v = (by_head(layer(x)) for layer in (attention.q, attention.k, attention.v))
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    y: Tensor = attention.out(mixed.transpose(1, 2).reshape(batch, length, -1))
    return y


def parallelized(config: GPTConfig = SMALL) -> LossStep:
    """`parallelize_module` of each block, as Megatron does it. The embedding is whole, since its
    weight is the head's, too: `parallelize_module` does not keep the tie.
    """
    model, tokens = _model_and_tokens(config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan: dict[str, Any] = {f"attention.{name}": ColwiseParallel() for name in "qkv"}
    plan |= {"attention.out": RowwiseParallel()}
    plan |= {"mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    for block in model.blocks:
        block.attention.forward = MethodType(attend_to_own_heads, block.attention)
        parallelize_module(block, mesh, plan)
    return _step(model, lambda: model(tokens, tokens), float)


# By strategy: the name of what it is compared with, and its step.
PEERS: dict[str, tuple[str, Callable[..., LossStep]]] = {
    "dp": ("DistributedDataParallel", ddp),
    "fsdp": ("fully_shard", fsdp2),
    "tp": ("parallelize_module", parallelized),
}
