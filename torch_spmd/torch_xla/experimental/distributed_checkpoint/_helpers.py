# SPDX-License-Identifier: Apache-2.0
"""Trees of tensors for checkpoints: flattened, and as copies on the host, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_spmd._compat import pytree
from torch_spmd.torch_xla.distributed import spmd
from torch_spmd.torch_xla.distributed.spmd import ShardingType, XLAShard, XLAShardedTensor


@dataclass
class _CpuShards:
    """The parts of a sharded tensor, on the host."""

    shards: list[XLAShard]
    global_shape: torch.Size


def _is_sharded_tensor(x: Any) -> bool:
    """Whether parts of it are on several devices."""
    return isinstance(x, XLAShardedTensor) and x.sharding_type not in (
        None,
        ShardingType.REPLICATED,
    )


def _unwrap_xla_sharded_tensor(x: Any) -> Any:
    return x.global_tensor if isinstance(x, XLAShardedTensor) else x


def _sharded_cpu_state_dict(state_dict: Any) -> Any:
    """A copy of a tree on the host; a sharded tensor becomes `_CpuShards`, never whole."""

    def on_host(value: Any) -> Any:
        value = spmd.wrap_if_sharded(value)
        if _is_sharded_tensor(value):
            return _CpuShards(value.local_shards, value.shape)
        value = _unwrap_xla_sharded_tensor(value)
        return value.detach().cpu() if isinstance(value, Tensor) else value

    return pytree.tree_map(on_host, state_dict)


def flatten_state_dict(state_dict: Any) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """The leaves of a tree by their path, joined by dots, and the paths. A list without tensors and
    dicts is a leaf. The names are those of `torch.distributed.checkpoint`.

    Errors: ValueError for two leaves of one name.
    """
    flat: dict[str, Any] = {}
    paths: dict[str, tuple[Any, ...]] = {}

    def visit(path: tuple[Any, ...], value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit((*path, key), item)
        elif isinstance(value, list) and any(map(_holds_more, value)):
            for position, item in enumerate(value):
                visit((*path, position), item)
        else:
            name = ".".join(map(str, path))
            if name in flat:
                raise ValueError(f"duplicated flatten key {name}")
            flat[name], paths[name] = value, path

    visit((), state_dict)
    return flat, paths


def _holds_more(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_more, value))
    return isinstance(value, (Tensor, _CpuShards, Mapping))


def set_element(root: Any, path: tuple[Any, ...], value: Any) -> None:
    """Sets the leaf of a tree at a path that it has."""
    for key in path[:-1]:
        root = root[key]
    root[path[-1]] = value


def separated(state_dict: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(sharded leaves, other leaves, paths) by name."""
    flat, paths = flatten_state_dict(state_dict)
    wrapped = {name: spmd.wrap_if_sharded(value) for name, value in flat.items()}
    sharded = {
        name: value
        for name, value in wrapped.items()
        if _is_sharded_tensor(value) or isinstance(value, _CpuShards)
    }
    others = {
        name: _unwrap_xla_sharded_tensor(value)
        for name, value in wrapped.items()
        if name not in sharded
    }
    return sharded, others, paths
