# SPDX-License-Identifier: Apache-2.0
"""Other forms than our own: files of safetensors for others, and PyTorch's."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from torch_spmd._state import boxes, parts, processes, safetensors_file, tree
from torch_spmd._state.files import folder_at
from torch_spmd._state.reading import INDEX
from torch_spmd._state.safetensors_file import Piece

# As transformers writes them.
_LARGEST_FILE = 50_000_000_000


def check_flat(node: Any, tensors: Mapping[str, Tensor]) -> None:
    """Errors: TypeError if there are values that are no tensors, for which these forms have no
    place; ValueError if there are several processes."""
    found = set(tree.keys_in(node))
    if found != set(tensors) or _values(node):
        raise TypeError(
            "save: files of safetensors have tensors only; save a module or its state_dict"
        )
    if processes.count() > 1:
        raise ValueError("save: one process writes files for the hub; format='spmd' takes several")


def _values(node: Any) -> bool:
    """True if there is a leaf that is no tensor."""
    if tree.tensor_key(node) is not None:
        return False
    items = tree.items_of(node)
    return items is None or any(_values(item) for item in items.values())


def to_safetensors(path: str, tensors: dict[str, Tensor], sharded: bool) -> None:
    """One file called `path`, or files in the folder `path` with an index if there are several."""
    files = _divided(tensors) if sharded else [list(tensors)]
    if sharded:
        folder = folder_at(path)
        folder.make()
        names = (
            [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
            if len(files) > 1
            else ["model.safetensors"]
        )
    else:
        parent, last = os.path.split(path)
        folder = folder_at(parent or ".")
        folder.make()
        names = [last]
    for name, keys in zip(names, files):
        beside = f"{name}.part"
        pieces = [
            Piece(
                key,
                tensors[key].dtype,
                boxes.whole(tensors[key].shape),
                functools.partial(parts.read, tensors[key]),
            )
            for key in keys
        ]
        try:
            with folder.writing(beside) as file:
                safetensors_file.write(file, pieces, {"format": "pt"})
            folder.rename(beside, name)
        except BaseException:
            folder.remove(beside)
            raise
    if sharded and len(files) > 1:
        index = {
            "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
            "weight_map": {key: name for name, keys in zip(names, files) for key in keys},
        }
        folder.replace(f"model{INDEX}", json.dumps(index, indent=2).encode())


def _divided(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Names by file, in order; no file is larger than the limit unless one tensor is."""
    result: list[list[str]] = [[]]
    size = 0
    for key, tensor in tensors.items():
        if result[-1] and size + tensor.nbytes > _LARGEST_FILE:
            result.append([])
            size = 0
        result[-1].append(key)
        size += tensor.nbytes
    return result


def to_dcp(path: str, node: Any, tensors: dict[str, Tensor]) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(  # type: ignore[attr-defined]
        tree.decode(node, tensors.__getitem__),
        checkpoint_id=path,
        no_dist=processes.count() == 1,
    )
