# SPDX-License-Identifier: Apache-2.0
"""Trees of tensors and plain values as JSON, without pickle.

Tensors are replaced by their keys: the path to them, `model.0.weight`. What JSON lacks is an object
with the one key "$" and what it needs: tuples, mappings with other keys than text, bytes, dtypes …
Objects with `state_dict` stand for what it returns.
"""

from __future__ import annotations

import base64
import collections
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _arguments, _compat
from torch_spmd.state import dtypes
from torch_spmd.state.names import Names, memory, parameters_of

_MARK = "$"
_DEEPEST = 100
# What is known of an optimizer: beside its items, or among them in files of DCP.
_OPTIMIZER = "optimizer"
_OPTIMIZER_ITEM = "$optimizer"


def state_of(value: Any) -> Any:
    """What is saved of an object: what its `state_dict` returns, if it has one."""
    if isinstance(value, (Tensor, Mapping, type)):
        return value
    if isinstance(value, torch.Generator):
        return value.get_state()
    for name in ("state_of_job", "state_dict"):  # the first of RandomState
        method = getattr(value, name, None)
        if callable(method):
            return method()
    return value


class Encoder:
    """Makes JSON of a tree; `tensors` are the tensors by key. `names` are those by which the
    parameters of optimizers are found again."""

    def __init__(self, caller: str, names: Names | None = None) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._caller = caller
        self._names = names
        self._keys: dict[Any, str] = {}  # of tensors by the memory that they show

    def encode(self, value: Any, path: str = "", within: tuple[int, ...] = ()) -> Any:
        """Errors: TypeError for an object that is neither a tensor nor plain; ValueError for a tree
        that contains itself, or a tensor without values."""
        if isinstance(value, torch.optim.Optimizer) and self._names is not None:
            return self._optimizer(value, self._names, path, within)
        value = state_of(value)
        if isinstance(value, Tensor):
            if is_sparse(value):
                return self._sparse(value, path)
            return {_MARK: "tensor", "key": self._key(value, path)}
        if value is None or (isinstance(value, (bool, str)) and type(value) in (bool, str)):
            return self._text(value, path) if isinstance(value, str) else value
        if type(value) is int:
            return value if abs(value) < 1 << 53 else {_MARK: "int", "text": str(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {_MARK: "float", "text": repr(value)}
        if id(value) in within or len(within) > _DEEPEST:
            raise ValueError(
                f"{self._caller}: {_at(path)} contains itself, or is over {_DEEPEST} deep"
            )
        within = (*within, id(value))
        if isinstance(value, Mapping):
            return self._mapping(value, path, within)
        if isinstance(value, (list, tuple, torch.Size, collections.deque)):
            given = _arguments.items(self._caller, _at(path), value, "a sequence")
            items = [self.encode(v, _join(path, i), within) for i, v in enumerate(given)]
            if type(value) is list:
                return items
            kind = "list" if isinstance(value, list) else "tuple"
            kind = {torch.Size: "size", collections.deque: "deque"}.get(type(value), kind)
            return {_MARK: kind, "items": items}
        return self._other(value, path)

    def _optimizer(
        self, value: torch.optim.Optimizer, names: Names, path: str, within: tuple[int, ...]
    ) -> Any:
        """The JSON of its state_dict. Beside it are the names and shapes of its parameters, and
        which tensors are on the CPU if others are on the device."""
        node = self.encode(value.state_dict(), path, within)
        items = items_of(node)
        if items is None or "param_groups" not in items:  # its state has a form of its own
            return node
        devices = {at: self.tensors[key].device.type for at, key in named_keys(node)}
        known: dict[str, Any] = {"parameters": parameters_of(value, names)}
        if "spmd" in devices.values():
            known["on_host"] = [at for at, device in devices.items() if device != "spmd"]
        return {**mapping(items), _OPTIMIZER: known}

    def _text(self, value: str, path: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{self._caller}: {_at(path)} is no text that UTF-8 has") from error
        return value

    def _mapping(self, value: Mapping[Any, Any], path: str, within: tuple[int, ...]) -> Any:
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        given = _arguments.mapping(self._caller, _at(path), value, "a mapping")
        pairs = [(k, self.encode(v, _join(path, k), within)) for k, v in given.items()]
        plain = all(type(k) is str and self._text(k, path) is k for k, _ in pairs)
        if plain and kind == "dict" and not any(k == _MARK for k, _ in pairs):
            return dict(pairs)
        where = f"a key of {path or 'the tree'}"
        return {_MARK: kind, "items": [[self.encode(k, where, within), v] for k, v in pairs]}

    def _other(self, value: Any, path: str) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return {_MARK: "bytes", "base64": base64.b64encode(value).decode()}
        if isinstance(value, complex):
            return {_MARK: "complex", "items": [self.encode(v) for v in (value.real, value.imag)]}
        if isinstance(value, torch.dtype):
            return {_MARK: "dtype", "name": dtypes.name_of(value)}
        if isinstance(value, torch.device):
            return {_MARK: "device", "name": str(value)}
        if isinstance(value, (set, frozenset)):
            items = [self.encode(v, path) for v in sorted(value, key=repr)]
            return {_MARK: "set", "items": items}
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            if isinstance(value, str):
                return self._text(str(value), path)
            return self._array(numpy, value, path)
        for plain in (bool, int, float, str):  # of a class derived from it
            if isinstance(value, plain):
                return self.encode(plain(value), path)
        raise TypeError(
            f"{self._caller}: {_at(path)} is {_arguments.shown(value)}, which cannot be saved: a "
            "checkpoint has tensors, numbers, text, bytes, containers of them, and objects with "
            "state_dict"
        )

    def _array(self, numpy: Any, value: Any, path: str) -> Any:
        try:
            tensor = torch.from_numpy(numpy.array(value))  # a copy, in this machine's byte order
        except TypeError as error:
            raise TypeError(
                f"{self._caller}: {_at(path)} is an array of {value.dtype}, which is no dtype of "
                "PyTorch"
            ) from error
        kind = "array" if isinstance(value, numpy.ndarray) else "scalar"
        return {_MARK: kind, "key": self._key(tensor, path)}

    def _sparse(self, value: Tensor, path: str) -> Any:
        parts = parts_of_sparse(value)
        items = [[name, self.encode(part, _join(path, name))] for name, part in parts.items()]
        return {
            _MARK: "sparse",
            "layout": str(value.layout).removeprefix("torch."),
            "size": list(value.shape),
            "coalesced": value.layout == torch.sparse_coo and value.is_coalesced(),
            "items": items,
        }

    def _key(self, tensor: Tensor, path: str) -> str:
        """Tensors that show the same memory in the same way have one key."""
        check_savable(self._caller, tensor, _at(path))
        same = memory(tensor)
        key = self._keys.get(same)
        if key is None:
            key, n = path or "value", 2
            while key in self.tensors:
                key, n = f"{path}#{n}", n + 1
            self._keys[same] = key
            self.tensors[key] = tensor
        return key


_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def is_sparse(tensor: Tensor) -> bool:
    return tensor.layout == torch.sparse_coo or tensor.layout in _COMPRESSED


def parts_of_sparse(tensor: Tensor) -> dict[str, Tensor]:
    """The dense tensors of which a sparse one consists. What is written to them is written to
    it."""
    tensor = tensor.detach()
    if tensor.layout == torch.sparse_coo:
        return dict(zip(("indices", "values"), _compat.coordinates_and_values(tensor)))
    names = (*_COMPRESSED[tensor.layout], "values")
    return {name: getattr(tensor, name)() for name in names}


def _sparse_of_parts(node: Any, parts: list[Tensor]) -> Tensor:
    layout, size = getattr(torch, node["layout"]), node["size"]
    options: dict[str, Any] = {"layout": layout}
    make: Any = torch.sparse_compressed_tensor
    if layout == torch.sparse_coo:
        make, options = torch.sparse_coo_tensor, {"is_coalesced": node["coalesced"] or None}
    made: Tensor = make(*parts, size, **options)
    return made


def sparse_like(node: Any) -> tuple[str, list[int], bool] | None:
    """Layout, size, and whether it is coalesced, of a sparse tensor that was saved; None if this is
    the JSON of something else."""
    is_one = isinstance(node, dict) and node.get(_MARK) == "sparse"
    return (node["layout"], node["size"], node["coalesced"]) if is_one else None


def check_savable(caller: str, tensor: Tensor, where: str) -> None:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        raise TypeError(f"{caller}: {where} is no dense tensor: {_arguments.shown(tensor)}")
    if tensor.is_meta or nn.parameter.is_lazy(tensor) or type(tensor).__name__ == "FakeTensor":
        raise ValueError(f"{caller}: {where} has no values: {_arguments.shown(tensor)}")
    name = dtypes.name_of(tensor.dtype)
    if name not in dtypes.SAFETENSORS and name not in dtypes.PAIRS:
        raise TypeError(f"{caller}: {where} is of {tensor.dtype}, which no format here has")


def decode(
    value: Any, tensor: Callable[[str], Any], sparse: Callable[[Any, list[Any]], Any] | None = None
) -> Any:
    """The tree of which an Encoder made this JSON. `tensor` gives the tensor with a key, `sparse`
    the sparse tensor whose JSON this is and whose parts these are.

    Errors: ValueError for JSON that no Encoder makes.
    """
    made = functools.partial(decode, tensor=tensor, sparse=sparse)
    if isinstance(value, list):
        return [made(v) for v in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {k: made(v) for k, v in value.items()}
    kind = value[_MARK]
    if kind == "tensor":
        return tensor(value["key"])
    if kind == "sparse":
        return (sparse or _sparse_of_parts)(value, [made(part) for _, part in value["items"]])
    if kind in ("array", "scalar"):
        array = tensor(value["key"]).cpu().numpy()
        return array if kind == "array" else array[()]
    if kind in _FROM_PARTS:
        return _FROM_PARTS[kind]([made(v) for v in value["items"]])
    if kind == "unreadable":
        raise ValueError(f"it cannot be read without running code: {value['text']}")
    if kind in _FROM_TEXT:
        field, make = _FROM_TEXT[kind]
        return make(value[field])
    raise ValueError(f"there is no kind {kind!r} of value")


_FROM_PARTS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "list": list,
    "size": torch.Size,
    "deque": collections.deque,
    "set": set,
    "dict": dict,
    "counter": lambda pairs: collections.Counter(dict(pairs)),
    "complex": lambda parts: complex(*parts),
}
_FROM_TEXT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "int": ("text", int),
    "float": ("text", float),
    "bytes": ("base64", base64.b64decode),
    "dtype": ("name", dtypes.named),
    "device": ("name", torch.device),
}


def child(node: Any, key: Any) -> Any:
    """The JSON of the item `key` of a mapping or sequence whose JSON is `node`.

    Errors: KeyError.
    """
    if isinstance(node, dict) and _MARK not in node and type(key) is str:
        return node[key]
    items = items_of(node)
    if items is None or key not in items:
        raise KeyError(key)
    return items[key]


def items_of(node: Any) -> dict[Any, Any] | None:
    """The JSON of the items of a container by key or position; None if it is no container."""
    if isinstance(node, list):
        return dict(enumerate(node))
    if not isinstance(node, dict):
        return None
    if _MARK not in node:
        return node
    if node[_MARK] in ("dict", "counter", "sparse"):
        return {decode(k, lambda key: key): v for k, v in node["items"]}
    return dict(enumerate(node["items"])) if node[_MARK] in ("tuple", "list", "deque") else None


def with_items(node: Any, items: Mapping[Any, Any]) -> Any:
    """The JSON of a container like that of `node`, with the JSON of other items under its keys."""
    if isinstance(node, list):
        return list(items.values())
    if _MARK not in node or node[_MARK] == "dict":
        return mapping(items)
    if node[_MARK] in ("counter", "sparse"):
        return {**node, **mapping(items), _MARK: node[_MARK]}
    return {_MARK: node[_MARK], "items": list(items.values())}


def mapping(items: Mapping[Any, Any]) -> Any:
    """The JSON of a mapping from plain keys to values of which this is the JSON."""
    return {_MARK: "dict", "items": [[key, node] for key, node in items.items()]}


def known_of_optimizer(node: Any) -> dict[str, Any]:
    """What was saved beside the items of the optimizer of which this is the JSON."""
    is_marked = isinstance(node, dict) and _MARK in node
    return dict(node.get(_OPTIMIZER, {})) if is_marked else {}


def optimizers_in(node: Any) -> Iterator[Any]:
    """The JSON of the optimizers in a tree of which something was saved beside their items."""
    if known_of_optimizer(node):
        yield node
        return
    for item in (items_of(node) or {}).values():
        yield from optimizers_in(item)


def with_optimizers_as_items(node: Any) -> Any:
    """The JSON, in which what is known of optimizers is an item, as text."""
    items = items_of(node)
    if items is None or tensor_key(node) is not None:
        return node
    items = {key: with_optimizers_as_items(item) for key, item in items.items()}
    known = known_of_optimizer(node)
    return with_items(node, {**items, _OPTIMIZER_ITEM: json.dumps(known)} if known else items)


def with_optimizers_beside(items: list[list[Any]]) -> dict[str, Any]:
    """The JSON of a mapping of which these are the items, as `with_optimizers_as_items` has it."""
    given = [item for key, item in items if key == _OPTIMIZER_ITEM]
    node = {_MARK: "dict", "items": [pair for pair in items if pair[0] != _OPTIMIZER_ITEM]}
    return {**node, _OPTIMIZER: json.loads(given[0])} if given else node


def keys_in(node: Any) -> list[str]:
    """The keys of the tensors of a tree."""
    found: list[str] = []

    def note(key: str) -> Any:
        found.append(key)
        return torch.empty(0, device="cpu")

    decode(node, note, lambda _, parts: parts)
    return found


def named_keys(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, key) of the tensors of a tree, the path as keys have it."""
    key = tensor_key(node)
    if key is not None:
        yield path, key
        return
    for name, item in (items_of(node) or {}).items():
        yield from named_keys(item, _join(path, name))


def tensor_key(node: Any) -> str | None:
    """The key of a tensor, or None if this is the JSON of something else."""
    is_tensor = isinstance(node, dict) and node.get(_MARK) == "tensor"
    return node["key"] if is_tensor else None


def _join(path: str, key: Any) -> str:
    text = key if isinstance(key, str) else _arguments.plain(key)
    return f"{path}.{text}" if path else text


def _at(path: str) -> str:
    return f"tree[{_arguments.plain(path)}]" if path else "tree"
