# SPDX-License-Identifier: Apache-2.0
"""The precision of products of float32, which torch_xla lets scripts choose."""

from __future__ import annotations

_PRECISIONS = ("default", "high", "highest")
_precision = "default"


def set_mat_mul_precision(precision: str) -> None:
    """Has no effect on results: products of float32 are computed in float32, or as
    `torch.backends` says on a GPU.

    Errors: ValueError unless it is "default", "high" or "highest".
    """
    global _precision
    if precision not in _PRECISIONS:
        raise ValueError(
            f"Invalid precision: {precision}. Must be one of {', '.join(_PRECISIONS)}."
        )
    _precision = precision


def get_mat_mul_precision() -> str:
    """What was set; "default" before."""
    return _precision
