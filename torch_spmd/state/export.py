# SPDX-License-Identifier: Apache-2.0
"""Other forms than our own: files of safetensors for others, and PyTorch's.

A tensor is whole in such a file, and each part of it is written where it belongs by the process
that holds it, so that no process has a whole tensor. A file system that cannot write at a place of
a file, as those of fsspec, takes one process, which writes from the beginning to the end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import uuid
from collections.abc import Mapping
from typing import Any, BinaryIO

from torch import Tensor

from torch_spmd.processes import agreement
from torch_spmd.state import boxes, dtypes, files, manifest, parts, safetensors_file, tree, writing
from torch_spmd.state.files import Folder, folder_at
from torch_spmd.state.reading import INDEX
from torch_spmd.state.safetensors_file import Piece

# As transformers writes them.
_LARGEST_FILE = 50_000_000_000
_OF_HUB = re.compile(
    r"model((-[0-9a-f]{8})?-\d{5}-of-\d{5})?\.safetensors(\.index\.json(\.\d+)?)?(\.part)?"
)


def check_flat(node: Any, tensors: Mapping[str, Tensor]) -> None:
    """Errors: TypeError if there are values that are no tensors, or of dtypes that safetensors has
    not; ValueError for the one name that is no tensor's there, and for one name of two tensors."""
    found = set(tree.keys_in(node))
    if found != set(tensors) or _values(node):
        raise TypeError(
            "save: files of safetensors have dense tensors only; save a module or its state_dict"
        )
    for key, tensor in tensors.items():
        if dtypes.name_of(tensor.dtype) in dtypes.PAIRS:
            raise TypeError(
                f"save: {key!r} is of {tensor.dtype}, which safetensors has not; format='spmd' has"
            )
    if safetensors_file.METADATA in tensors:
        raise ValueError(
            f"save: no tensor in a file of safetensors can be called {safetensors_file.METADATA!r}"
        )
    of_name: dict[str, str] = {}
    for name, key in tree.named_keys(node):
        if of_name.setdefault(name, key) != key:
            raise ValueError(
                f"save: two tensors would be called {name!r} in a file of safetensors, whose names "
                "are the paths in the tree with dots between"
            )


def check_readable(node: Any, path: str = "") -> None:
    """Errors: TypeError if there is a queue, which no file of torch.save gives back without running
    code, or a sparse tensor, which DCP cannot take apart."""
    if tree.sparse_like(node) is not None:
        raise TypeError(
            f"save: {path or 'the tree'} is a sparse tensor, which files of DCP have not; save it "
            "with format='spmd'"
        )
    if isinstance(node, dict) and node.get("$") == "deque":
        raise TypeError(
            f"save: {path or 'the tree'} is a deque, which files of DCP do not give back without "
            "running code; save a list, or with format='spmd'"
        )
    for key, item in (tree.items_of(node) or {}).items():
        check_readable(item, f"{path}.{key}" if path else str(key))


def _values(node: Any) -> bool:
    """True if there is a leaf that is no dense tensor."""
    if tree.tensor_key(node) is not None:
        return False
    if tree.sparse_like(node) is not None:
        return True
    items = tree.items_of(node)
    return items is None or any(_values(item) for item in items.values())


def to_safetensors(path: str, tensors: dict[str, Tensor], sharded: bool) -> None:
    """One file called `path`, or files in the folder `path` with an index if there are several. All
    processes call it, and all raise the same error. Files get their names when all of them are
    complete."""
    writing.check_alike(tensors)
    tensors = {key: tensors[key] for key in agreement.from_first(list(tensors))}  # one order
    files_of = _divided(tensors) if sharded else [list(tensors)]
    if sharded:
        folder = folder_at(path)
        names = agreement.from_first(_names_of_hub(folder, len(files_of)))
    else:
        parent, last = os.path.split(path)
        folder = folder_at(parent or ".")
        names = [last]
    first = agreement.rank() == 0
    try:
        with _raised_in_all():
            _check_folder(folder)
            if sharded:
                _check_free(folder, (manifest.NAME, ".metadata"))
        for name, keys in zip(names, files_of):
            _write(folder, f"{name}.part", {key: tensors[key] for key in keys})
        with _raised_in_all():
            if first:
                for name in names:
                    folder.rename(f"{name}.part", name)
                if sharded:
                    _write_index(folder, dict(zip(names, files_of)), tensors)
    except BaseException:
        if first:
            for name in names:
                with contextlib.suppress(Exception):
                    folder.remove(f"{name}.part")
        raise


def _names_of_hub(folder: Folder, count: int) -> list[str]:
    """Several files get names that no file has, so that those of an index that is there stay as
    they are until another index takes its place."""
    if count == 1:
        return ["model.safetensors"]
    ends = [f"{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    names = [f"model-{end}" for end in ends]
    if any(folder.exists(name) for name in names):
        names = [f"model-{uuid.uuid4().hex[:8]}-{end}" for end in ends]
    return names


class _raised_in_all:
    """What one process raises within is raised in all of them at the end. Collective."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        agreement.raise_any(error)


def _check_folder(folder: Folder) -> None:
    """Makes it. Errors: ValueError, since folders of fsspec take one process."""
    if agreement.count() > 1 and not folder.writes_anywhere:
        raise ValueError(
            f"save: {folder.where('')!r} is reached through fsspec, where one process writes a "
            "file; save to a folder that all processes share, or with format='spmd'"
        )
    if agreement.rank() == 0:
        folder.make()


def _check_free(folder: Folder, others: tuple[str, ...]) -> None:
    """Errors: ValueError if there is a checkpoint of another form, which `load` would read."""
    for name in others:
        if folder.exists(name):
            raise ValueError(
                f"save: {folder.where('')!r} has a checkpoint of another form, which load would "
                f"go on reading ({name!r}); save to another folder"
            )


def _write(folder: Folder, name: str, tensors: Mapping[str, Tensor]) -> None:
    """One file: process 0 makes it in its full size, then each process writes its parts. Wide types
    come first, so that every tensor begins at a multiple of its item's size."""
    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    pieces = [
        Piece(key, t.dtype, boxes.whole(t.shape), functools.partial(parts.read, t))
        for key, t in tensors.items()
    ]
    if agreement.count() == 1:
        with folder.writing(name) as file:
            safetensors_file.write(file, pieces, {"format": "pt"})
        return
    header = safetensors_file.header(pieces, {"format": "pt"})
    with _raised_in_all():
        if agreement.rank() == 0:
            with folder.writing(name) as file:
                files.write_all(file, header)
                file.truncate(len(header) + sum(piece.nbytes for piece in pieces))
    with _raised_in_all(), folder.changing(name) as file:
        at = len(header)
        for piece, tensor in zip(pieces, tensors.values()):
            for box in parts.to_write(tensor):
                _write_box(file, at, Piece(piece.name, piece.dtype, box, piece.read), piece.box)
            at += piece.nbytes


def _write_box(file: BinaryIO, at: int, part: Piece, within: boxes.Box) -> None:
    """Writes a part of a tensor that is at byte `at`, run by run."""
    for box in safetensors_file.slabs(part):
        host = part.read(box)
        data, done = files.bytes_of(host), 0
        for begin, length in boxes.runs(box, within, part.dtype.itemsize):
            file.seek(at + begin)
            files.write_all(file, data[done : done + length])
            done += length
        del data, host


def _write_index(
    folder: Folder, files_of: Mapping[str, list[str]], tensors: Mapping[str, Tensor]
) -> None:
    """The index, if there are several files. Files of an export that was here before, which
    readers of the hub's form would take for these, are removed."""
    names = {*files_of}
    if len(files_of) > 1:
        index = {
            "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
            "weight_map": {key: name for name, keys in files_of.items() for key in keys},
        }
        folder.replace(f"model{INDEX}", json.dumps(index, indent=2).encode())
        names.add(f"model{INDEX}")
    others = [name for name in folder.names() if _OF_HUB.fullmatch(name) and name not in names]
    for name in sorted(others, key=lambda name: not name.endswith(INDEX)):  # before its files
        folder.remove(name)


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
    from torch.distributed.checkpoint.api import CheckpointException

    from torch_spmd.state import dcp_patches, dcp_writer

    dcp_patches.install()
    folder = folder_at(path)
    with _raised_in_all():
        _check_free(folder, (manifest.NAME,))
    token = agreement.from_first(uuid.uuid4().hex[:12])
    first, local = agreement.rank() == 0, folder.writes_anywhere
    to: dict[str, Any] = {"checkpoint_id": path}
    if local:
        to = {"storage_writer": dcp_writer.Writer(folder.path, token)}
    try:
        value = tree.decode(tree.with_optimizers_as_items(node), tensors.__getitem__)
        dcp.save(value, no_dist=agreement.count() == 1, **to)  # type: ignore[attr-defined]
    except CheckpointException as several:  # what the processes met, and no Exception itself
        if first and local:
            _remove(folder, dcp_writer.own(folder.names(), token))
        [error, *_] = [error for error, _ in several.failures.values()]
        raise _of_the_disk(error) from several
    if first and local:
        _remove(folder, dcp_writer.others(folder.names(), token))


def _remove(folder: Folder, names: list[str]) -> None:
    with contextlib.suppress(OSError):
        for name in names:
            folder.remove(name)


def _of_the_disk(error: BaseException) -> BaseException:
    """What went wrong with a file, in the place of what torch.save says of it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        found = found.__cause__ or found.__context__
    return error if found is None else found
