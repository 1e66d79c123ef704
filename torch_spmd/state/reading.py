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
from torch_spmd.state.files import CheckpointError, Folder
from torch_spmd.state.manifest import BLOCK, SavedTensor, Stored

INDEX = ".safetensors.index.json"

ONE_OF_SEVERAL = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")


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
