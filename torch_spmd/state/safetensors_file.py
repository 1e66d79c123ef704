# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors, written and read piece by piece.

The format: eight bytes with the length of the header, the header as JSON (name → dtype, shape,
begin and end), the bytes of the tensors. The package safetensors takes whole tensors only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import torch
from torch import Tensor

from torch_spmd.state import boxes, dtypes, files, manifest
from torch_spmd.state.boxes import Box
from torch_spmd.state.files import CheckpointError, Folder
from torch_spmd.state.manifest import BLOCK, SavedTensor, Stored

_LONGEST_HEADER = 100_000_000  # as in the package
METADATA = "__metadata__"  # what is no tensor in a header
# Bytes that are on the host at once while a tensor is written or read.
PIECE = 8 << 20


@dataclass(frozen=True)
class Piece:
    """A box of a tensor to be written; `read` gives a part of the tensor, contiguous, on the
    host."""

    name: str
    dtype: torch.dtype
    box: Box
    read: Callable[[Box], Tensor]

    @property
    def nbytes(self) -> int:
        return boxes.elements(self.box) * self.dtype.itemsize


def write(
    file: BinaryIO, pieces: Sequence[Piece], metadata: dict[str, str]
) -> list[tuple[int, tuple[str, ...]]]:
    """Writes the pieces; returns where each begins, and the digests of its blocks. At most PIECE
    bytes of a piece are on the host at once."""
    text = header(pieces, metadata)
    files.write_all(file, text)
    begin = len(text)
    found = []
    for piece in pieces:
        blocks = _Blocks()
        for part in slabs(piece):
            host = piece.read(part)
            data = files.bytes_of(host)
            blocks.add(data)
            files.write_all(file, data)
            del data, host
        found.append((begin, blocks.end()))
        begin += piece.nbytes
    return found


def header(pieces: Sequence[Piece], metadata: dict[str, str]) -> bytes:
    """What a file begins with that has the pieces one after another."""
    fields: dict[str, object] = {METADATA: metadata} if metadata else {}
    begin = 0
    for piece in pieces:
        name, shape = dtypes.name_of(piece.dtype), list(boxes.sizes(piece.box))
        if name in dtypes.PAIRS:
            name, shape = dtypes.PAIRS[name], [*shape, 2]
        fields[piece.name] = {
            "dtype": dtypes.SAFETENSORS[name],
            "shape": shape,
            "data_offsets": [begin, begin + piece.nbytes],
        }
        begin += piece.nbytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def slabs(piece: Piece) -> Iterator[Box]:
    """The box in parts that are not too large, in the order of their bytes."""
    return boxes.slabs(piece.box, piece.dtype.itemsize, PIECE)


class _Blocks:
    """Digests of data that comes in parts, one for each BLOCK bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._found: list[str] = []

    def add(self, data: memoryview) -> None:
        if self._rest:
            more = BLOCK - len(self._rest)
            self._rest += data[:more]
            data = data[more:]
            if len(self._rest) < BLOCK:
                return
            self._found.append(manifest.digest(self._rest))
            self._rest.clear()
        whole = len(data) // BLOCK * BLOCK
        self._found += [manifest.digest(data[i : i + BLOCK]) for i in range(0, whole, BLOCK)]
        self._rest += data[whole:]

    def end(self) -> tuple[str, ...]:
        if self._rest:
            self._found.append(manifest.digest(self._rest))
            self._rest.clear()
        return tuple(self._found)


def tensors_of(folder: Folder, name: str) -> dict[str, SavedTensor]:
    """What a file of safetensors has, by its header.

    Errors: CheckpointError if the file is truncated, or no such file.
    """
    where = folder.where(name)
    size = folder.size(name)
    with folder.reading(name) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            raise CheckpointError(f"load: {where!r} is truncated, or no file of safetensors")
        text = bytearray(length)
        files.read_into(file, 8, memoryview(text), where)
    try:
        header = json.loads(text)
        header.pop(METADATA, None)
        found = {key: _saved(fields, name, 8 + length) for key, fields in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"load: {where!r} has a header that cannot be read: {error}"
        ) from None
    end = 8 + length
    # As the format demands it, each begins where the one before ends.
    for key, tensor in sorted(found.items(), key=lambda item: (_begin(item[1]), item[1].nbytes)):
        if _begin(tensor) != end:
            raise CheckpointError(
                f"load: {where!r} is altered: {key!r} begins at byte {_begin(tensor):,}, and the "
                f"tensor before it ends at {end:,}"
            )
        end += tensor.nbytes
        if end > size:
            raise CheckpointError(
                f"load: {where!r} is truncated: {key!r} ends at byte {end:,}, and the file has "
                f"{size:,}"
            )
    if end < size:
        raise CheckpointError(
            f"load: {where!r} is altered: its tensors end at byte {end:,}, and it has {size:,}"
        )
    return found


def _begin(tensor: SavedTensor) -> int:
    return tensor.stored[0].begin


def _saved(fields: dict[str, object], name: str, base: int) -> SavedTensor:
    dtype = dtypes.of_code(str(fields["dtype"]))
    if dtype is None:
        raise ValueError(f"dtype {fields['dtype']!r}")
    shape = tuple(int(size) for size in fields["shape"])  # type: ignore[attr-defined]
    begin, end = (int(at) for at in fields["data_offsets"])  # type: ignore[attr-defined]
    if end - begin != math.prod(shape) * dtype.itemsize or min((0, begin, *shape)) < 0:
        raise ValueError("sizes and bytes do not agree")
    stored = Stored(boxes.whole(shape), name, base + begin)
    return SavedTensor(dtypes.name_of(dtype), shape, (stored,))
