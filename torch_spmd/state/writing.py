# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint: every process its parts, then process 0 the manifest."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from torch_spmd import _C
from torch_spmd.processes import agreement
from torch_spmd.state import boxes, dtypes, manifest, parts, safetensors_file
from torch_spmd.state.files import CheckpointError, Folder
from torch_spmd.state.manifest import Manifest, SavedTensor, Stored
from torch_spmd.state.safetensors_file import Piece

_DATA = "data-"
_one_at_a_time = threading.Lock()  # a writer removes files that its manifest does not name


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that later steps cannot change. On the device a copy shares its memory with the
    tensor until that is written."""
    copies = {key: tensor.detach().clone() for key, tensor in tensors.items()}
    if agreement.count() > 1:
        return parts.readable(copies)
    _C.sync(False)
    return copies


def write(folder: Folder, tree: Any, tensors: dict[str, Tensor]) -> None:
    """Writes all that this process has to, and empties `tensors`. All processes call it, and all
    raise the same error.

    Until the last step the folder has the checkpoint that it had before, whatever happens.
    """
    with _one_at_a_time:
        _write(folder, tree, tensors)


def _write(folder: Folder, tree: Any, tensors: dict[str, Tensor]) -> None:
    mine = _kinds(tensors)
    token, kinds = agreement.from_first((uuid.uuid4().hex[:12], mine))
    name = f"{_DATA}{token}-{agreement.rank():05d}.safetensors"
    error: BaseException | None = None
    saved: dict[str, SavedTensor] = {}
    size = 0
    try:
        _check_kinds(kinds, mine)
        folder.make()
        saved, size = _write_parts(folder, name, tensors)
    except BaseException as raised:
        error = raised
    whole: Manifest | None = None
    try:
        agreement.raise_any(error)
        everything = agreement.gather((saved, name, size))
        error = None
        try:
            if agreement.rank() == 0:
                whole = Manifest(tree, _merged([s for s, _, _ in everything]))
                whole.files = {n: s for _, n, s in everything if s}
                _check_seen(folder, whole.files)
                folder.replace(manifest.NAME, manifest.dump(whole))
        except BaseException as raised:
            error = raised
        agreement.raise_any(error)
    except BaseException:
        with contextlib.suppress(Exception):
            if not _is_named(folder, name):
                folder.remove(name)
        raise
    if whole is not None:
        _remove_others(folder, whole)


def _is_named(folder: Folder, name: str) -> bool:
    """Whether the checkpoint that is there has this file. What went wrong may have come behind the
    step that makes it the one that is there, as where a disk cannot say that it has written it."""
    try:
        return name in manifest.load(folder).files
    except CheckpointError:
        return False


class _Kind(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    # A hash of data that no program has used, so that nobody has compared it; else None.
    data: int | None

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, _Kind]:
    if agreement.count() == 1:
        return {}
    return {
        key: _Kind(
            dtypes.name_of(t.dtype),
            tuple(t.shape),
            _C.host_hash(t.detach()) if parts.is_ours(t) else None,
        )
        for key, t in tensors.items()
    }


def _check_kinds(first: dict[str, _Kind], mine: dict[str, _Kind]) -> None:
    """Errors: ValueError if this process saves other tensors than process 0, or other data."""
    for key in (*first, *mine):
        here, there = mine.get(key), first.get(key)
        if here is None or there is None or here[:2] != there[:2]:
            raise ValueError(
                f"save: tensor {key!r} is {here or 'not there'}, and in process 0 "
                f"{there or 'not there'}; all processes save the same tree"
            )
        if None not in (here.data, there.data) and here.data != there.data:
            raise ValueError(
                f"save: the data of tensor {key!r}, {here}, is not the same as in process 0. Every "
                "process moves the whole value to the device; "
                "spmd.processes.from_process_local takes parts"
            )


def check_alike(tensors: Mapping[str, Tensor]) -> None:
    """Errors, in all processes: ValueError if they save different tensors, or different data that
    has been moved to the device and that no program has used."""
    mine = _kinds(tensors)
    first = agreement.from_first(mine)
    error: ValueError | None = None
    try:
        _check_kinds(first, mine)
    except ValueError as raised:
        error = raised
    agreement.raise_any(error)


def _check_seen(folder: Folder, files: Mapping[str, int]) -> None:
    """Errors: OSError if this process does not see what the others have written."""
    for name, size in files.items():
        for _ in range(20):  # a network's file system may show it a little later
            if folder.exists(name) and folder.size(name) == size:
                break
            time.sleep(0.1)
        else:
            raise FileNotFoundError(
                f"save: {folder.where(name)!r}, which another process has written, is not to be "
                "seen in process 0; the folder must be on a file system that all processes share"
            )


def _write_parts(
    folder: Folder, name: str, tensors: dict[str, Tensor]
) -> tuple[dict[str, SavedTensor], int]:
    pieces: list[Piece] = []
    of: list[tuple[str, boxes.Box]] = []
    saved: dict[str, SavedTensor] = {}
    names = {safetensors_file.METADATA}
    for key, tensor in tensors.items():
        device = "spmd" if parts.is_ours(tensor) else "cpu"
        shape, dtype = tuple(tensor.shape), tensor.dtype
        mark = parts.mark_text(tensor)
        saved[key] = SavedTensor(dtypes.name_of(dtype), shape, (), device, mark)
        for box in parts.to_write(tensor):
            inside = ",".join(f"{begin}:{end}" for begin, end in box)
            called = _free(key if box == boxes.whole(shape) else f"{key}[{inside}]", names)
            pieces.append(Piece(called, dtype, box, functools.partial(parts.read, tensor)))
            of.append((key, box))
    if not pieces:
        return saved, 0
    pieces, of = _one_after_another(pieces, of)
    with folder.writing(name) as file:
        written = safetensors_file.write(file, pieces, {"format": "pt"})
    for (key, box), (begin, digests) in zip(of, written):
        stored = (*saved[key].stored, Stored(box, name, begin, digests))
        saved[key] = replace(saved[key], stored=stored)
    tensors.clear()
    return saved, folder.size(name)


def _free(name: str, taken: set[str]) -> str:
    """The name, or one like it if it is taken: readers of safetensors want each once."""
    found, n = name, 2
    while found in taken:
        found, n = f"{name}#{n}", n + 1
    taken.add(found)
    return found


def _one_after_another(pieces: list[Piece], of: list[Any]) -> tuple[list[Piece], list[Any]]:
    """Wide types first, so that every piece begins at a multiple of its item's size."""
    order = sorted(range(len(pieces)), key=lambda i: -pieces[i].dtype.itemsize)
    return [pieces[i] for i in order], [of[i] for i in order]


def _merged(of_processes: list[dict[str, SavedTensor]]) -> dict[str, SavedTensor]:
    result = dict(of_processes[0])
    for others in of_processes[1:]:
        for key, tensor in others.items():
            stored = (*result[key].stored, *tensor.stored)
            result[key] = replace(result[key], stored=stored)
    return result


def _remove_others(folder: Folder, whole: Manifest) -> None:
    """Removes the files of the checkpoint that was here before, and of writers that were killed."""
    with contextlib.suppress(OSError):
        for name in folder.names():
            old = name.startswith(_DATA) and name not in whole.files
            if old or (name.startswith(manifest.NAME) and name.endswith(".part")):
                folder.remove(name)
