# SPDX-License-Identifier: Apache-2.0
"""Reads checkpoints of torch.distributed.checkpoint.

Their metadata are pickled. Only the classes that PyTorch itself puts there are unpickled, and
objects are read as `torch.load(weights_only=True)` reads them, so that nothing of a file is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import pickle
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torch_spmd.state import boxes, dtypes, files, tree
from torch_spmd.state.boxes import Box
from torch_spmd.state.files import CheckpointError, Folder
from torch_spmd.state.manifest import SavedTensor, Stored, check_covered
from torch_spmd.state.reading import Counts, overlaps

_AT_ONCE = 1 << 20
_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *(
        (_METADATA, name)
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
            "MetadataIndex", "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("builtins", "set"),
}  # fmt: skip


def _plain_classes() -> list[Any]:
    """What objects may be made of beside what torch.load knows: bytes, arrays and scalars of numpy.
    None of them runs anything."""
    found: list[Any] = [(bytes, f"{module}.bytes") for module in ("__builtin__", "builtins")]
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        core = "_core" if hasattr(numpy, "_core") else "core"  # since numpy 2
        arrays: Any = importlib.import_module(f"numpy.{core}.multiarray")
        for name in ("_reconstruct", "scalar"):
            made = getattr(arrays, name)
            found += [(made, f"numpy.{of}.multiarray.{name}") for of in ("_core", "core")]
        found += [numpy.ndarray, numpy.dtype]
        found += [type(numpy.dtype(code)) for code in "?bhilqBHILQefdFD"]
    return found


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _ALLOWED and not is_dtype:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not allowed there")
        return getattr(importlib.import_module(module), name)


def open_source(folder: Folder) -> Chunks:
    """Errors: CheckpointError if the metadata cannot be read."""
    where = folder.where(".metadata")
    try:
        found = _Unpickler(io.BytesIO(folder.read(".metadata"))).load()
        infos = {(i.fqn, _offset(i.offset)): info for i, info in found.storage_data.items()}
        paths = found.planner_data or {}
        source = Chunks(folder, {})
        objects: dict[str, Any] = {}
        for key, entry in found.state_dict_metadata.items():
            if hasattr(entry, "chunks"):
                source.note_tensor(key, entry, infos)
            else:
                objects[key] = infos[(key, ())]
    except (pickle.UnpicklingError, EOFError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise CheckpointError(f"load: {where!r} cannot be read: {e}") from None
    nodes = {key: {"$": "tensor", "key": key} for key in source.tensors}
    nodes |= {key: source.read_object(key, info) for key, info in objects.items()}
    for key, node in nodes.items():
        path = paths.get(key)
        _put(source.tree, path if isinstance(path, (tuple, list)) else (key,), node)
    source.tree = _json(source.tree)
    for optimizer in tree.optimizers_in(source.tree):
        known = tree.known_of_optimizer(optimizer)
        on_host = set(known.get("on_host", []))
        for at, key in tree.named_keys(optimizer) if "on_host" in known else ():
            device = "cpu" if at in on_host else "spmd"
            source.tensors[key] = replace(source.tensors[key], device=device)
    return source


def _offset(offset: Any) -> tuple[int, ...]:
    return () if offset is None else tuple(offset)


class _Nested(dict[Any, Any]):
    """A mapping of the saved tree, as opposed to the JSON of a value."""


def _put(root: Any, path: Any, node: Any) -> None:
    *parents, last = path
    for key in parents:
        root = root.setdefault(key, _Nested())
    root[last] = node


def _json(node: Any) -> Any:
    """Mappings whose keys are positions were lists: keys of mappings are text here. An item that is
    not there was a mapping without items."""
    if not isinstance(node, dict) or (type(node) is dict and "$" in node):
        return node
    if not isinstance(node, _Nested) and node:
        return tree.with_optimizers_beside([[k, _json(v)] for k, v in node.items()])
    if node and all(type(key) is int for key in node):
        return [_json(node.get(i, {})) for i in range(max(node) + 1)]
    return tree.with_optimizers_beside([[k, _json(v)] for k, v in node.items()])


@dataclass
class Chunks:
    """Each box of a tensor is a file of torch.save within a file, and is read as a whole."""

    folder: Folder
    tree: Any
    tensors: dict[str, SavedTensor] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    text_keys: bool = True
    _lengths: dict[tuple[str, int], int] = field(default_factory=dict)
    _there: dict[str, Tensor] = field(default_factory=dict)  # tensors within objects

    def note_tensor(self, key: str, entry: Any, infos: dict[Any, Any]) -> None:
        stored = []
        for chunk in entry.chunks:
            box = tuple((o, o + s) for o, s in zip(chunk.offsets, chunk.sizes))
            if not boxes.elements(box):
                continue
            info = infos[(key, tuple(chunk.offsets))]
            self._check_plain(info)
            stored.append(Stored(box, info.relative_path, info.offset))
            self._lengths[info.relative_path, info.offset] = info.length
        name = dtypes.name_of(entry.properties.dtype)
        # Parts that several processes wrote, as of replicas, count once.
        distinct = tuple({s.box: s for s in stored}.values())
        self.tensors[key] = SavedTensor(name, tuple(entry.size), distinct)

    def _check_plain(self, info: Any) -> None:
        if info.transform_descriptors:
            raise ValueError(f"its files are transformed: {info.transform_descriptors}")

    def read_object(self, key: str, info: Any) -> Any:
        """The JSON of an object that is no tensor; of one that cannot be read, an error that
        decoding raises."""
        self._check_plain(info)
        data = self._bytes(info.relative_path, info.offset, info.length)
        self._check_sums(info.relative_path, key, data)
        try:
            with torch.serialization.safe_globals(_plain_classes()):
                value = torch.load(data, map_location="cpu", weights_only=True)
            encoder = tree.Encoder("load")
            node = encoder.encode(value, f"{key}#")
        except RuntimeError as error:  # of the zip file
            where, said = self.folder.where(info.relative_path), str(error).partition("\n")[0]
            raise CheckpointError(f"load: {where!r} is altered: {key!r}: {said}") from None
        except Exception as error:
            return {"$": "unreadable", "text": f"{key!r}: {str(error).splitlines()[0]}"}
        for name, tensor in encoder.tensors.items():
            shape = tuple(tensor.shape)
            self._there[name] = tensor.contiguous()
            self.tensors[name] = SavedTensor(dtypes.name_of(tensor.dtype), shape, ())
        return node

    def _bytes(self, name: str, begin: int, length: int) -> io.BytesIO:
        where = self.folder.where(name)
        if not self.folder.exists(name):
            raise CheckpointError(f"load: {where!r} is missing")
        data = bytearray(length)
        with self.folder.reading(name) as file:
            files.read_into(file, begin, memoryview(data), where)
        return io.BytesIO(data)

    def _check_sums(self, name: str, key: str, data: io.BytesIO) -> None:
        """torch.save writes a zip file, with a sum of each entry (or 0, if that was turned off)."""
        try:
            with zipfile.ZipFile(data) as entries:
                for entry in entries.infolist():
                    if entry.CRC != 0:
                        with entries.open(entry) as content:
                            while content.read(_AT_ONCE):
                                pass
        except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, zlib.error) as error:
            raise CheckpointError(
                f"load: {self.folder.where(name)!r} is altered: {key!r}: {error}"
            ) from None
        data.seek(0)

    def check(self, wanted: Iterable[tuple[str, Box]], verify: bool) -> None:
        """The files are there and long enough, and have what the metadata say."""
        seen: set[tuple[str, int]] = set()
        for key, region in wanted:
            if key in self._there:
                continue
            check_covered(self.folder.where(""), key, self.tensors[key])
            for stored, _ in overlaps(self.tensors[key], region):
                where = self.folder.where(stored.file)
                if not self.folder.exists(stored.file):
                    raise CheckpointError(f"load: {where!r} is missing")
                end = stored.begin + self._lengths[stored.file, stored.begin]
                if self.folder.size(stored.file) < end:
                    raise CheckpointError(f"load: {where!r} is truncated: it has no byte {end:,}")
                if verify and (stored.file, stored.begin) not in seen:
                    seen.add((stored.file, stored.begin))
                    self._check_chunk(key, stored)

    def _check_chunk(self, key: str, stored: Stored) -> None:
        length = self._lengths[stored.file, stored.begin]
        self.counts.checked += length
        data = self._bytes(stored.file, stored.begin, length)
        self._check_sums(stored.file, key, data)
        self._loaded(key, stored, data)

    def _loaded(self, key: str, stored: Stored, data: io.BytesIO) -> Tensor:
        """Errors: CheckpointError if it is not what the metadata say."""
        where = self.folder.where(stored.file)
        try:
            chunk = torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:
            said = str(error).partition("\n")[0]
            raise CheckpointError(f"load: {where!r} is altered: {key!r}: {said}") from None
        sizes, dtype = boxes.sizes(stored.box), dtypes.named(self.tensors[key].dtype)
        if not isinstance(chunk, Tensor) or tuple(chunk.shape) != sizes or chunk.dtype != dtype:
            raise CheckpointError(
                f"load: {where!r} is altered: {key!r} should be a tensor of shape {sizes}, {dtype}"
            )
        return chunk

    def pieces(self, key: str, region: Box) -> Iterable[Box]:
        """One for each chunk, since a chunk is read as a whole."""
        return [part for _, part in overlaps(self.tensors[key], region)] or [region]

    def read(self, key: str, region: Box, into: Tensor | None = None) -> Tensor:
        if key in self._there:
            whole = self._there[key]
            return whole[boxes.slices(region, boxes.whole(whole.shape))].clone()
        saved = self.tensors[key]
        result = torch.empty(boxes.sizes(region), dtype=dtypes.named(saved.dtype), device="cpu")
        self.counts.needed += result.nbytes
        for stored, part in overlaps(saved, region):
            length = self._lengths[stored.file, stored.begin]
            data = self._bytes(stored.file, stored.begin, length)
            self.counts.read += length
            chunk = self._loaded(key, stored, data)
            del data
            result[boxes.slices(part, region)].copy_(chunk[boxes.slices(part, stored.box)])
        return result
