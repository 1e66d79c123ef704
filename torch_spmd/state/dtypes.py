# SPDX-License-Identifier: Apache-2.0
"""Dtypes by name, and as safetensors calls them."""

from __future__ import annotations

import torch

SAFETENSORS = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
# Complex types that the format lacks are pairs of real numbers there.
PAIRS = {"complex32": "float16", "complex128": "float64"}

_BY_CODE = {code: name for name, code in SAFETENSORS.items()}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def named(name: str) -> torch.dtype:
    """Errors: ValueError for a name that no dtype of the formats has."""
    if name not in SAFETENSORS and name not in PAIRS:
        raise ValueError(f"there is no dtype {name!r} here")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def of_code(code: str) -> torch.dtype | None:
    """The dtype that safetensors calls `code`, or None."""
    return named(_BY_CODE[code]) if code in _BY_CODE else None
