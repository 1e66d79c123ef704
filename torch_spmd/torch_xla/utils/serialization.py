# SPDX-License-Identifier: Apache-2.0
"""`xser`: `torch.save` with each tensor in a file of its own, so that one at a time is on the host.

path                    the data, with a number in the place of each tensor
path.tensors/tensor_0.pt, tensor_1.pt, …
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_spmd.torch_xla.core import xla_model


@dataclass(frozen=True, slots=True)
class TensorReference:
    """Stands for the tensor of a file."""

    tid: int


def save(data: Any, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Writes a tree with its tensors; those that are tied are written once and stay tied. Files of
    an earlier call with the same path are replaced."""
    folder = _folder(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    numbers: dict[int, TensorReference] = {}

    def written(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in numbers:
            numbers[id(value)] = TensorReference(len(numbers))
            torch.save(xla_model._maybe_convert_to_cpu(value), _file(path, numbers[id(value)].tid))
        return numbers[id(value)]

    torch.save(xla_model._mapped(data, written), path)


def load(path: str) -> Any:
    """What `save` wrote, on the host. The data may hold any object, so read only what you trust."""
    tensors: dict[int, Tensor] = {}

    def read(value: Any) -> Any:
        if not isinstance(value, TensorReference):
            return value
        if value.tid not in tensors:
            tensors[value.tid] = torch.load(_file(path, value.tid))
        return tensors[value.tid]

    return xla_model._mapped(torch.load(path, weights_only=False), read)


def _folder(path: str) -> str:
    return f"{path}.tensors"


def _file(path: str, number: int) -> str:
    return os.path.join(_folder(path), f"tensor_{number}.pt")
