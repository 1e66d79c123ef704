# SPDX-License-Identifier: Apache-2.0
"""Names of parameters, by which the state of optimizers is found again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from torch_spmd import _compat

_DEEPEST = 100
# What wrappers put before the names of the module that they wrap.
_WRAPPERS = re.compile(
    r"(^module\.|(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)"
)


class Known(NamedTuple):
    """The names that a parameter has: in the tree, and in its module or mapping."""

    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Names:
    """The names of the tensors of a tree, by the memory that they show: a module's parameter and
    the tensor of its state_dict have the same."""

    def __init__(self, root: Any) -> None:
        self._found: dict[Any, tuple[dict[str, None], dict[str, None]]] = {}
        for path, name, tensor in _walk(root, "", "", 0):
            paths, names = self._found.setdefault(memory(tensor), ({}, {}))
            paths[without_wrappers(path)] = None
            names[without_wrappers(name)] = None

    def of(self, tensor: Tensor) -> Known:
        paths, names = self._found.get(memory(tensor), ({}, {}))
        return Known(tuple(paths), tuple(names))


def memory(tensor: Tensor) -> Any:
    """Equal for tensors that show the same memory in the same way."""
    try:
        storage = _compat.storage_number(tensor)
        stride, offset = tensor.stride(), tensor.storage_offset()
    except (RuntimeError, NotImplementedError):  # it has no memory of its own, such as a sparse one
        return id(tensor)
    return (
        tensor.device,
        tensor.dtype,
        tuple(tensor.shape),
        stride,
        offset,
        storage,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def without_wrappers(name: str) -> str:
    return _WRAPPERS.sub("", name)


def joined(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _walk(value: Any, path: str, name: str, depth: int) -> Iterator[tuple[str, str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, name, value
    elif isinstance(value, nn.Module):
        for own, parameter in value.named_parameters(remove_duplicate=False):
            yield joined(path, own), own, parameter
    elif depth < _DEEPEST and isinstance(value, (Mapping, list, tuple)):
        items: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            yield from _walk(item, joined(path, key), str(key), depth + 1)


def parameters_of(optimizer: Optimizer, names: Names) -> list[dict[str, Any]]:
    """What is saved of the parameters of an optimizer, in the order of their numbers in its
    `state_dict`, which has no names and shapes."""
    found: dict[int, Tensor] = {}
    known: dict[int, Known] = {}
    for parameter, name in members(optimizer):
        found.setdefault(id(parameter), parameter)
        known.setdefault(id(parameter), known_as(names.of(parameter), name))
    return [
        {
            "paths": known[i].paths,
            "names": known[i].names,
            "shape": tuple(parameter.shape),
            "dtype": str(parameter.dtype).removeprefix("torch."),
        }
        for i, parameter in found.items()
    ]


def members(optimizer: Optimizer) -> Iterator[tuple[Tensor, str | None]]:
    """The parameters, and the names with which they were given to the optimizer."""
    for group in optimizer.param_groups:
        given = group.get("param_names") or [None] * len(group["params"])
        yield from zip(group["params"], given)


def known_as(known: Known, name: str | None) -> Known:
    """`known` with one more name."""
    if name is None:
        return known
    return known._replace(names=tuple(dict.fromkeys((*known.names, without_wrappers(name)))))
