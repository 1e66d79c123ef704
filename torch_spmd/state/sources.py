# SPDX-License-Identifier: Apache-2.0
"""Opens a checkpoint of any known form: a folder of this package, a folder of
torch.distributed.checkpoint, or files of safetensors."""

from __future__ import annotations

from torch_spmd.state import dcp, manifest, safetensors_file
from torch_spmd.state.files import CheckpointError, Folder, folder_at
from torch_spmd.state.manifest import Manifest, SavedTensor
from torch_spmd.state.reading import (
    INDEX,
    ONE_OF_SEVERAL,
    Ranges,
    Source,
)


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
        return dcp.open_source(folder)
    indices = [name for name in names if name.endswith(INDEX)]
    if indices:
        return _of_index(folder, _the_one(folder, indices, f"model{INDEX}"))
    weights = [name for name in names if name.endswith(".safetensors")]
    if "model.safetensors" in weights:  # as written before, or now, without an index
        weights = [name for name in weights if not ONE_OF_SEVERAL.search(name)]
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
