# SPDX-License-Identifier: Apache-2.0
"""Pictures of shardings."""

from __future__ import annotations

from html import escape

from torch import Tensor

from torch_spmd import _C, _arguments
from torch_spmd.debug.tables import (
    Picture,
    read_limit,
)
from torch_spmd.sharding import drawing
from torch_spmd.sharding.marks import sharding_of
from torch_spmd.sharding.shards import blocks_apart


def visualize_sharding(t: Tensor, limit: int | None = 64) -> Picture:
    """Prints which device holds which part of `t`, of any rank; in colour if rich is installed. In
    a notebook it is a table with a colour per part.

    The two dimensions with most shards are drawn; others are listed. A dimension of blocks is drawn
    as two, the blocks and their contents. At most `limit` rows and a quarter as many columns are
    drawn (None: all); a last line says how many devices are left out.

    Errors: TypeError for an argument of another kind; ValueError if the tensor is not on `spmd`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((2, 2), ("x", "y"))
        >>> t = spmd.mark_sharding(torch.ones(4, 4, device="spmd"), mesh, ("x", "y"))
        >>> picture = spmd.debug.visualize_sharding(t)  # doctest: +ELLIPSIS
        (4, 4) ...
    """
    _arguments.tensor("visualize_sharding", t)
    limit = read_limit("visualize_sharding", limit)
    heading, text, picture = picture_of(t, limit)
    shown = Picture(f"{heading}\n{text}")
    shown.html = f"<p>{escape(heading)}</p>{picture}"
    drawing.show(heading, text, shown.html)
    return shown


def picture_of(t: Tensor, limit: int | None) -> tuple[str, str, str]:
    """A heading, and which device holds which part as text and as HTML."""
    heading = f"{tuple(t.shape)} {sharding_of(t)!r}"
    apart = blocks_apart(t)
    if apart.dim() != t.dim():
        heading += f", drawn as {tuple(apart.shape)}"
    dims, boxes = list(apart.shape), _C.shard_boxes(apart)
    return heading, drawing.shards(dims, boxes, limit), drawing.shards_html(dims, boxes, limit)
