# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint consists of: which box of which tensor lies where in which file.

`manifest.json` is written last, at once, and names every file that belongs to the checkpoint. So a
folder without it is no checkpoint, and files that it does not name are left from a killed writer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from torch_spmd.state import boxes, dtypes
from torch_spmd.state.boxes import Box
from torch_spmd.state.files import CheckpointError, Folder

NAME = "manifest.json"
FORMAT = "torch_spmd checkpoint"
VERSION = 1
# Bytes that have a digest of their own, so that a reader of a part can check what it reads.
BLOCK = 4 << 20


@dataclass(frozen=True)
class Stored:
    """A box of a tensor in a file, from byte `begin` on; a digest for each BLOCK of its bytes."""

    box: Box
    file: str
    begin: int
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedTensor:
    """`device` is where the tensor was, "cpu" or "spmd"; `mark` is the text of its mark."""

    dtype: str
    shape: tuple[int, ...]
    stored: tuple[Stored, ...]
    device: str = "cpu"
    mark: str = ""

    @property
    def itemsize(self) -> int:
        return dtypes.named(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return boxes.elements(boxes.whole(self.shape)) * self.itemsize


@dataclass
class Manifest:
    """`files` are their sizes in bytes; `tree` is the JSON of the tree (see tree.py)."""

    tree: Any
    tensors: dict[str, SavedTensor]
    files: dict[str, int] = field(default_factory=dict)


def digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def dump(manifest: Manifest) -> bytes:
    content = {
        "format": FORMAT,
        "version": VERSION,
        "block": BLOCK,
        "files": manifest.files,
        "tree": manifest.tree,
        "tensors": {key: _tensor_json(tensor) for key, tensor in manifest.tensors.items()},
    }
    text = _canonical(content)
    return f'{{"digest":"{digest(text.encode())}","content":{text}}}\n'.encode()


def load(folder: Folder) -> Manifest:
    """Errors: CheckpointError if there is none, if it was altered, or is of a later version."""
    where = folder.where(NAME)
    try:
        given = json.loads(folder.read(NAME))
        content, expected = given["content"], given["digest"]
        right = digest(_canonical(content).encode()) == expected
    except FileNotFoundError:
        raise CheckpointError(
            f"load: {folder.where('')!r} has no {NAME}, which is written last: no checkpoint was "
            "completed there"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"load: {where!r} is truncated or altered: {error}") from None
    if not right:
        raise CheckpointError(f"load: {where!r} is altered: its digest is another one")
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise CheckpointError(
            f"load: {where!r} is of format {content.get('format')!r}, version "
            f"{content.get('version')!r}; this version of torch_spmd reads {FORMAT!r}, {VERSION}"
        )
    tensors = {key: _tensor_of(fields) for key, fields in content["tensors"].items()}
    return Manifest(content["tree"], tensors, content["files"])


def check_covered(where: str, key: str, tensor: SavedTensor) -> None:
    """Errors: CheckpointError if boxes are missing. Boxes do not overlap."""
    there = sum(boxes.elements(stored.box) for stored in tensor.stored)
    wanted = boxes.elements(boxes.whole(tensor.shape))
    if there != wanted:
        raise CheckpointError(
            f"load: {where!r} has {there:,} of the {wanted:,} elements of {key!r}"
        )


def _canonical(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _tensor_json(tensor: SavedTensor) -> dict[str, Any]:
    result: dict[str, Any] = {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "device": tensor.device,
        "mark": tensor.mark,
        "boxes": [
            {"box": s.box, "file": s.file, "begin": s.begin, "digests": s.digests}
            for s in tensor.stored
        ],
    }
    return result


def _tensor_of(fields: dict[str, Any]) -> SavedTensor:
    stored = tuple(
        Stored(
            tuple((begin, end) for begin, end in given["box"]),
            given["file"],
            given["begin"],
            tuple(given["digests"]),
        )
        for given in fields["boxes"]
    )
    return SavedTensor(
        fields["dtype"], tuple(fields["shape"]), stored, fields["device"], fields["mark"]
    )
