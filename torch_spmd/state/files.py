# SPDX-License-Identifier: Apache-2.0
"""A folder of files: on this machine, or wherever fsspec reaches."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from torch_spmd.processes import agreement


class CheckpointError(RuntimeError):
    """A checkpoint that is not there, not complete, or altered; the message names the file.

    Example:
        >>> import torch_spmd as spmd
        >>> try:
        ...     spmd.load("/nowhere", {})
        ... except spmd.checkpoint.CheckpointError as error:
        ...     print(error)
        load: '/nowhere' does not exist
    """


agreement.own_errors[CheckpointError.__name__] = CheckpointError


def is_url(path: str) -> bool:
    """Also of file systems one over another: "simplecache::s3://…"."""
    return re.match(r"([a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]*://", path) is not None


def folder_at(path: str) -> Folder:
    return _Remote(path) if is_url(path) and not path.startswith("file://") else Folder(path)


class Folder:
    """A folder on this machine. Names are those of the files in it."""

    # Whether `changing` works.
    writes_anywhere = True

    def __init__(self, path: str) -> None:
        self.path = path.removeprefix("file://")

    def where(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    def exists(self, name: str = "") -> bool:
        return os.path.exists(self.where(name))

    def is_file(self) -> bool:
        return os.path.isfile(self.path)

    def make(self) -> None:
        os.makedirs(self.path, exist_ok=True)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path)) if os.path.isdir(self.path) else []

    def size(self, name: str) -> int:
        return os.path.getsize(self.where(name))

    def read(self, name: str) -> bytes:
        return Path(self.where(name)).read_bytes()

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        with open(self.where(name), "rb", buffering=0) as file:
            yield file

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """On disk when it is left without an error."""
        with open(self.where(name), "wb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[BinaryIO]:
        """As `writing`, for a part of a file that is there."""
        with open(self.where(name), "r+b", buffering=0) as file:
            yield file
            os.fsync(file.fileno())

    def replace(self, name: str, content: bytes) -> None:
        """The file has the new content or the old one, whenever the process is killed."""
        beside = self.where(f"{name}.{os.getpid()}.part")
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.where(name))
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(beside)
            raise
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def rename(self, old: str, new: str) -> None:
        os.replace(self.where(old), self.where(new))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.where(name))

    def folders(self) -> list[str]:
        if not os.path.isdir(self.path):
            return []
        return sorted(entry.name for entry in os.scandir(self.path) if entry.is_dir())

    def remove_folder(self, name: str) -> None:
        import shutil

        shutil.rmtree(self.where(name), ignore_errors=True)


class _Remote(Folder):
    """A folder that fsspec reaches. A file there is seen when it is complete."""

    writes_anywhere = False

    def __init__(self, path: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f"the path {path!r} needs the package fsspec: pip install fsspec"
            ) from error
        self._files: Any
        self._files, self.path = fsspec.core.url_to_fs(path)

    def where(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}" if name else self.path

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self.where(name)))

    def is_file(self) -> bool:
        return bool(self._files.isfile(self.path))

    def make(self) -> None:
        self._files.makedirs(self.path, exist_ok=True)

    def _list(self, kind: str) -> list[str]:
        self._files.invalidate_cache()
        if not self._files.isdir(self.path):
            return []
        found = self._files.ls(self.path, detail=True)
        return sorted(i["name"].rstrip("/").rpartition("/")[2] for i in found if i["type"] == kind)

    def names(self) -> list[str]:
        return self._list("file")

    def folders(self) -> list[str]:
        return self._list("directory")

    def size(self, name: str) -> int:
        return int(self._files.size(self.where(name)))

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(self.where(name)))

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        # Without a cache, so that what is read is what was asked for.
        with self._files.open(self.where(name), "rb", cache_type="none") as file:
            yield file

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        with self._files.open(self.where(name), "wb") as file:
            yield file

    def replace(self, name: str, content: bytes) -> None:
        self._files.pipe_file(self.where(name), content)

    def rename(self, old: str, new: str) -> None:
        self._files.mv(self.where(old), self.where(new))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self.where(name))

    def remove_folder(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self.where(name), recursive=True)


def write_all(file: BinaryIO, data: Any) -> None:
    """Raw files may write less than they are given."""
    view = memoryview(data)
    while len(view):
        written = file.write(view)
        view = view[len(view) if written is None else written :]


def read_into(file: BinaryIO, begin: int, target: memoryview, where: str) -> None:
    """Errors: CheckpointError if the file ends before."""
    file.seek(begin)
    done = 0
    while done < len(target):
        part = target[done:]
        if hasattr(file, "readinto"):
            count = file.readinto(part) or 0
        else:
            data = file.read(len(part))
            count = len(data)
            part[:count] = data
        if count == 0:
            raise CheckpointError(
                f"load: {where!r} is truncated: it ends at byte {begin + done:,}, and bytes to "
                f"{begin + len(target):,} are needed"
            )
        done += count


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host."""
    import ctypes

    if tensor.numel() == 0:
        return memoryview(b"")
    array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(array).cast("B")
