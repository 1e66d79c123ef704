# SPDX-License-Identifier: Apache-2.0
"""Builds the C++ files beside this one, which measure what Python cannot."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType


@functools.cache
def extension(name: str) -> ModuleType:
    """The module of `name`.cc: compiled once, then found in PyTorch's cache of extensions."""
    from torch.utils.cpp_extension import load

    source = Path(__file__).with_name(f"{name}.cc")
    module: ModuleType = load(f"torch_spmd_{name}", [str(source)], extra_cflags=["-O2"])
    return module
