# SPDX-License-Identifier: Apache-2.0
"""Command-line values that name meshes."""

from __future__ import annotations

import argparse


def mesh_axes(text: str) -> dict[str, int]:
    """`data=2,model=4` → {"data": 2, "model": 4}."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = part.partition("=")
        name = name.strip()
        if not equals or not name.isidentifier() or not size.strip().isdigit() or name in axes:
            raise argparse.ArgumentTypeError(
                f"{part!r} in {text!r} is no axis; write name=size, each name once, as in "
                "data=2,model=4"
            )
        axes[name] = int(size)
    return axes
