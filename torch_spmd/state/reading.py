# SPDX-License-Identifier: Apache-2.0
"""Reads parts of tensors from the files of a checkpoint, byte range by byte range."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_spmd.state import boxes, dtypes, files, manifest, safetensors_file
from torch_spmd.state.boxes import Box
from torch_spmd.state.files import CheckpointError, Folder, folder_at
from torch_spmd.state.manifest import BLOCK, Manifest, SavedTensor, Stored

INDEX = ".safetensors.index.json"
_ONE_OF_SEVERAL = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")


@dataclass
class Counts:
    """Bytes that the targets of this process need, that were read for them, and that were read,
    before that, to check digests."""

    needed: int = 0
    read: int = 0
    checked: int = 0


class Source(Protocol):
    """Saved state: the JSON of its tree, and its tensors by key."""

    tree: Any
    tensors: dict[str, SavedTensor]
    counts: Counts
    # Whether keys of mappings are there as text, and mappings without items are not there.
    text_keys: bool

    def check(self, wanted: Iterable[tuple[str, Box]], verify: bool) -> None:
        """Raises a CheckpointError if a file that is needed is missing, truncated or altered.
        Without `verify` digests are not compared."""

    def read(self, key: str, region: Box, into: Tensor | None = None) -> Tensor:
        """A part of a tensor, contiguous, on the host, in the memory `into` if that is given and
        can be used. Requires: `check` was called for it."""

    def pieces(self, key: str, region: Box) -> Iterable[Box]:
        """The region in parts that are best read one after another, if it is large."""


@dataclass
class Ranges:
    """A source whose boxes lie in files as plain bytes: safetensors."""

    folder: Folder
    tree: Any
    tensors: dict[str, SavedTensor]
    sizes: dict[str, int] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    text_keys: bool = False

    def check(self, wanted: Iterable[tuple[str, Box]], verify: bool) -> None:
        blocks: dict[str, set[tuple[int, int, str]]] = {}
        for key, region in wanted:
            tensor = self.tensors[key]
            manifest.check_covered(self.folder.where(""), key, tensor)
            for stored, part in overlaps(tensor, region):
                blocks.setdefault(stored.file, set()).update(_blocks(tensor, stored, part))
        for name in sorted(blocks):
            self._check_size(name)
            if verify:
                self._check_blocks(name, sorted(blocks[name]))

    def _check_size(self, name: str) -> None:
        where = self.folder.where(name)
        if not self.folder.exists(name):
            raise CheckpointError(f"load: {where!r} is missing")
        size, wanted = self.folder.size(name), self.sizes.get(name)
        if wanted is not None and size != wanted:
            kind = "truncated" if size < wanted else "altered"
            raise CheckpointError(
                f"load: {where!r} is {kind}: it has {size:,} bytes instead of {wanted:,}"
            )

    def _check_blocks(self, name: str, blocks: list[tuple[int, int, str]]) -> None:
        if not blocks:
            return
        buffer = bytearray(BLOCK)
        with self.folder.reading(name) as file:
            for begin, length, digest in blocks:
                data = memoryview(buffer)[:length]
                files.read_into(file, begin, data, self.folder.where(name))
                self.counts.checked += length
                if manifest.digest(data) != digest:
                    raise CheckpointError(
                        f"load: {self.folder.where(name)!r} is altered: the digest of bytes "
                        f"{begin:,} to {begin + length:,} is another one"
                    )

    def read(self, key: str, region: Box, into: Tensor | None = None) -> Tensor:
        tensor = self.tensors[key]
        result = _empty(region, dtypes.named(tensor.dtype), into)
        self.counts.needed += result.nbytes
        for stored, part in overlaps(tensor, region):
            rest = None if into is None else into[result.nbytes :]
            self._read_part(tensor, stored, part, result, region, rest)
        return result

    def pieces(self, key: str, region: Box) -> Iterable[Box]:
        return boxes.slabs(region, self.tensors[key].itemsize, safetensors_file.PIECE)

    def _read_part(
        self,
        tensor: SavedTensor,
        stored: Stored,
        part: Box,
        result: Tensor,
        region: Box,
        memory: Tensor | None,
    ) -> None:
        target = result[boxes.slices(part, region)] if part else result
        host = target if target.is_contiguous() else _empty(part, target.dtype, memory)
        data, at = files.bytes_of(host), 0
        with self.folder.reading(stored.file) as file:
            for begin, length in boxes.runs(part, stored.box, tensor.itemsize):
                piece = data[at : at + length]
                files.read_into(file, stored.begin + begin, piece, self.folder.where(stored.file))
                at += length
        self.counts.read += at
        if host is not target:
            target.copy_(host)


def _empty(region: Box, dtype: torch.dtype, into: Tensor | None) -> Tensor:
    size = boxes.elements(region) * dtype.itemsize
    if into is None or size > into.nbytes:
        return torch.empty(boxes.sizes(region), dtype=dtype, device="cpu")
    return into[:size].view(dtype).view(boxes.sizes(region))


def overlaps(tensor: SavedTensor, region: Box) -> list[tuple[Stored, Box]]:
    pairs = [(stored, boxes.intersection(stored.box, region)) for stored in tensor.stored]
    return [(stored, part) for stored, part in pairs if boxes.elements(part)]


def _blocks(tensor: SavedTensor, stored: Stored, part: Box) -> Iterable[tuple[int, int, str]]:
    """(begin, length, digest) of the blocks that hold bytes of the part."""
    if not stored.digests:
        return
    size = boxes.elements(stored.box) * tensor.itemsize
    seen = -1
    for begin, length in boxes.runs(part, stored.box, tensor.itemsize):
        for i in range(max(begin // BLOCK, seen + 1), (begin + length - 1) // BLOCK + 1):
            at = i * BLOCK
            yield stored.begin + at, min(BLOCK, size - at), stored.digests[i]
            seen = i


def open_source(path: str) -> Source:
    """Errors: CheckpointError if there is no checkpoint of a known form."""
    folder = folder_at(path)
    if not folder.exists():
        raise CheckpointError(f"load: {path!r} does not exist")
    if folder.is_file():
        name = folder.path.rpartition("/")[2]
        at = folder_at(path[: len(path) - len(name)] or ".")
        return _of_files(at, {name: None})
    names = folder.names()
    if manifest.NAME in names:
        found: Manifest = manifest.load(folder)
        return Ranges(folder, found.tree, found.tensors, found.files)
    if ".metadata" in names:
        from torch_spmd.state import dcp

        return dcp.open_source(folder)
    indices = [name for name in names if name.endswith(INDEX)]
    if indices:
        return _of_index(folder, _the_one(folder, indices, f"model{INDEX}"))
    weights = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors" in weights:  # as written before, or now, without an index
        weights = [name for name in weights if not _ONE_OF_SEVERAL.search(name)]
    if not weights or any(name.startswith("data-") for name in weights):
        manifest.load(folder)  # says that there is none
    return _of_files(folder, dict.fromkeys(weights))


def _the_one(folder: Folder, names: list[str], usual: str) -> str:
    """The one of the usual name, as the hub's readers take it. Errors: CheckpointError if there
    are several others."""
    if len(names) > 1 and usual not in names:
        raise CheckpointError(
            f"load: {folder.where('')!r} has several checkpoints: {', '.join(names)}; keep one of "
            f"them in a folder of its own, or call it {usual!r}"
        )
    return usual if usual in names else names[0]


def _of_index(folder: Folder, name: str) -> Ranges:
    """The hub's sharded form: an index that says which tensor is in which file."""
    import json

    try:
        names: dict[str, str] = json.loads(folder.read(name))["weight_map"]
        by_file: dict[str, list[str] | None] = {}
        for key, file in names.items():
            if not isinstance(file, str) or "/" in file:
                raise ValueError(f"it has {key!r} in {file!r}, which is no file of the folder")
            by_file.setdefault(file, [])
            by_file[file].append(key)  # type: ignore[union-attr]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"load: {folder.where(name)!r} cannot be read: {error}") from None
    return _of_files(folder, by_file)


def _of_files(folder: Folder, names: dict[str, list[str] | None]) -> Ranges:
    """Files of safetensors and the tensors in them that count; None means all."""
    tensors: dict[str, SavedTensor] = {}
    for name, keys in names.items():
        if not folder.exists(name):
            raise CheckpointError(f"load: {folder.where(name)!r} is missing")
        found = safetensors_file.tensors_of(folder, name)
        for key in found if keys is None else keys:
            if key not in found:
                raise CheckpointError(f"load: {folder.where(name)!r} has no tensor {key!r}")
            if key in tensors:
                raise CheckpointError(
                    f"load: {folder.where('')!r} has the tensor {key!r} in two files, "
                    f"{tensors[key].stored[0].file!r} and {name!r}; give the path of one of them"
                )
            tensors[key] = found[key]
    tree = {key: {"$": "tensor", "key": key} for key in tensors}
    return Ranges(folder, tree, tensors)
