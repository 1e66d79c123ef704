# SPDX-License-Identifier: Apache-2.0
"""Writes torch.distributed.checkpoint's format so that a killed writer leaves what was there.

PyTorch's own writer gives its files names that they may have already, and removes the metadata
before it puts others there.
"""

from __future__ import annotations

import dataclasses
import os

from torch.distributed.checkpoint import filesystem, planner

from torch_spmd import _compat

_SUFFIX = filesystem.DEFAULT_SUFFIX


class _Files(filesystem.FileSystem):
    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Nothing: the metadata are replaced when others are complete, which is one step."""

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        os.replace(path, new_path)


class Writer(filesystem.FileSystemWriter):
    """`token` is in the names of all files that it writes, and of no others."""

    def __init__(self, path: str, token: str) -> None:
        super().__init__(path)
        self.fs = _Files()
        self._token = token

    def _metadata_exists(self) -> bool:
        return False  # there is nothing to warn of

    def prepare_global_plan(self, plans: list[planner.SavePlan]) -> list[planner.SavePlan]:
        prefix = _compat.dcp_storage_prefix()
        return [
            dataclasses.replace(plan, storage_data=prefix(f"__{self._token}_{i}_"))
            for i, plan in enumerate(plans)
        ]


def others(names: list[str], token: str) -> list[str]:
    """The files of data that no writer with this token has written."""
    return [n for n in names if n.endswith(_SUFFIX) and not n.startswith(f"__{token}_")]


def own(names: list[str], token: str) -> list[str]:
    return [n for n in names if n.endswith(_SUFFIX) and n.startswith(f"__{token}_")]
