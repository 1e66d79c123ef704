# SPDX-License-Identifier: Apache-2.0
"""Planners of `torch.distributed.checkpoint` for state dicts with sharded tensors."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from torch_spmd.torch_xla import _XLAC
from torch_spmd.torch_xla.distributed.spmd import XLAShard
from torch_spmd.torch_xla.experimental.distributed_checkpoint._helpers import (
    _CpuShards,
    separated,
    set_element,
)


def _parts(value: Any) -> list[tuple[int, Sequence[slice]]]:
    """(replica, indices) of each device's part, without copies of the data."""
    if isinstance(value, _CpuShards):
        return [(shard.replica_id, shard.indices) for shard in value.shards]
    return _XLAC._get_local_shard_replica_and_indices([value.global_tensor])[0]


def _chunk(indices: Sequence[slice]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(
        offsets=torch.Size([part.start for part in indices]),
        sizes=torch.Size([part.stop - part.start for part in indices]),
    )


def _shards(value: Any) -> list[XLAShard]:
    return list(value.shards) if isinstance(value, _CpuShards) else value.local_shards


class SPMDSavePlanner(DefaultSavePlanner):
    """Writes each part of a sharded tensor once, and the rest as PyTorch's own planner does."""

    sharded_state_dict: dict[str, Any]
    unsharded_state_dict: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._local_shards: dict[str, list[Any]] = {}

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        if isinstance(storage_meta, bool):  # torch_xla's has no storage_meta
            storage_meta, is_coordinator = None, storage_meta
        self.sharded_state_dict, self.unsharded_state_dict, self.mappings = separated(state_dict)
        self.state_dict = self.unsharded_state_dict
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = [
            item
            for name, value in self.sharded_state_dict.items()
            for item in _written(name, value)
        ]
        self.plan = dataclasses.replace(plan, items=[*plan.items, *items])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        if index.fqn in self.unsharded_state_dict:
            return self.unsharded_state_dict[index.fqn]
        if index.fqn not in self._local_shards:
            self._local_shards[index.fqn] = _shards(self.sharded_state_dict[index.fqn])
        assert index.index is not None
        shard = self._local_shards[index.fqn][index.index]
        assert shard is not None, f"WriteItem has already been processed: {index}"
        assert index.offset == _chunk(shard.indices).offsets, (
            "WriteItem does not correspond to the correct shard"
        )
        self._local_shards[index.fqn][index.index] = None  # its memory is free from now on
        return shard.unpadded_data


def _written(name: str, value: Any) -> list[WriteItem]:
    cpu = isinstance(value, _CpuShards)
    properties = TensorProperties.create_from_tensor(value.shards[0].data if cpu else value)
    size = value.global_shape if cpu else value.size()
    items = []
    for position, (replica, indices) in enumerate(_parts(value)):
        chunk = _chunk(indices)
        if replica == 0 and math.prod(chunk.sizes) > 0:
            data = TensorWriteData(chunk=chunk, properties=properties, size=size)
            index = MetadataIndex(name, chunk.offsets, position)
            items.append(WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=data))
    return items


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Reads into the tensors of a state dict, whatever their shardings, in place. A sharded tensor
    changes when all of its parts have been read."""

    sharded_state_dict: dict[str, Any]
    unsharded_state_dict: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._local_shards: dict[str, list[XLAShard]] = {}
        self._pending: dict[str, int] = {}

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.original_state_dict = state_dict
        self.sharded_state_dict, self.unsharded_state_dict, self.mappings = separated(state_dict)
        self.state_dict = self.unsharded_state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        from torch.distributed.checkpoint.default_planner import create_default_local_load_plan

        assert self.metadata is not None
        plan = create_default_local_load_plan(self.unsharded_state_dict, self.metadata)
        items = list(plan.items)
        for name, value in self.sharded_state_dict.items():
            if name not in self.metadata.state_dict_metadata:
                raise RuntimeError(f"Missing key in checkpoint state_dict: {name}.")
            saved: Any = self.metadata.state_dict_metadata[name]
            if tuple(saved.size) != tuple(value.shape):
                raise ValueError(
                    f"Size mismatch between saved {tuple(saved.size)} and current: "
                    f"{tuple(value.shape)} for {name}"
                )
            chunks = [_chunk(indices) for _, indices in _parts(value)]
            read = create_read_items_for_chunk_list(name, saved, chunks)
            items += [item for item in read if math.prod(item.lengths) > 0]
            self._pending[name] = 0
        for item in items[len(plan.items) :]:
            self._pending[item.dest_index.fqn] += math.prod(item.lengths)
        return dataclasses.replace(plan, items=items)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=False))

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        if index.fqn in self.unsharded_state_dict:
            return super().lookup_tensor(index)
        if index.fqn not in self._local_shards:
            self._local_shards[index.fqn] = _shards(self.sharded_state_dict[index.fqn])
        assert index.index is not None
        shard = self._local_shards[index.fqn][index.index]
        assert index.offset == _chunk(shard.indices).offsets, (
            "ReadItem does not correspond to the correct shard"
        )
        return shard.data

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        name = read_item.dest_index.fqn
        if name not in self.sharded_state_dict:
            return
        self._pending[name] -= math.prod(read_item.lengths)
        assert self._pending[name] >= 0, f"Too many writes for tensor {name}"
        if self._pending[name] == 0:
            self.sharded_state_dict[name].load_local_shards_(self._local_shards.pop(name))
