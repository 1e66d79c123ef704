# SPDX-License-Identifier: Apache-2.0
"""How to shard the GPT: one table per strategy, from parameter names to partition specs.

A strategy says how the batch and each parameter are sharded. `DATA` and `MODEL` stand for the
mesh axes that the strategy uses for the batch and for the weights.

    dp     the batch sharded, every parameter replicated
    tp     Megatron: each pair of matrices is sharded so that it needs one all-reduce
    fsdp   the batch and every matrix sharded over the same axes (ZeRO-3)
    2d     the batch sharded over the mesh's first axis, the weights as in tp over the others
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DATA = "<data>"
MODEL = "<model>"

Rules = dict[str, tuple[Any, ...]]

# nn.Linear keeps its weight as [out, in]: (MODEL, None) shards what the layer produces,
# (None, MODEL) what it consumes.
TENSOR_PARALLEL: Rules = {
    "tokens.weight": (MODEL, None),  # the vocabulary; the tied head with it
    "*.attention.[qkv].weight": (MODEL, None),  # whole heads per device
    "*.attention.[qkv].bias": (MODEL,),
    "*.attention.out.weight": (None, MODEL),
    "*.mlp.up.weight": (MODEL, None),
    "*.mlp.up.bias": (MODEL,),
    "*.mlp.down.weight": (None, MODEL),
}
FULLY_SHARDED: Rules = {
    "tokens.weight": (DATA, None),
    "positions.weight": (DATA, None),
    "*.attention.*.weight": (DATA, None),
    "*.mlp.*.weight": (DATA, None),
    "*.bias": (DATA,),
    "*norm*.weight": (DATA,),
}

TABLES: dict[str, tuple[Rules, tuple[Any, ...]]] = {
    "dp": ({}, (DATA, None)),
    "tp": (TENSOR_PARALLEL, (None, None)),
    "fsdp": (FULLY_SHARDED, (DATA, None)),
    "2d": (TENSOR_PARALLEL, (DATA, None)),
}


@dataclass(frozen=True)
class Strategy:
    """Rules for `spmd.shard_module` and the spec of a [batch, length] input."""

    rules: Rules
    inputs: tuple[Any, ...]


def strategy(name: str, axis_names: tuple[str, ...]) -> Strategy:
    """The strategy `name` on a mesh with `axis_names`.

    Errors: ValueError for an unknown name, or `2d` on a mesh with one axis.
    """
    if name not in TABLES:
        raise ValueError(f"strategy {name!r} is none of {', '.join(TABLES)}")
    if name == "2d" and len(axis_names) < 2:
        raise ValueError(
            f"strategy '2d' shards the batch over the first axis and the weights over the others, "
            f"but the mesh has only {axis_names[0]!r}; try --mesh data=2,model=4"
        )
    axes = {
        DATA: axis_names[:1] if name == "2d" else axis_names,
        MODEL: axis_names[1:] if name == "2d" else axis_names,
    }

    def fill(spec: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(axes.get(entry, entry) for entry in spec)

    rules, inputs = TABLES[name]
    return Strategy({pattern: fill(spec) for pattern, spec in rules.items()}, fill(inputs))
