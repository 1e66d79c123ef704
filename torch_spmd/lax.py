# SPDX-License-Identifier: Apache-2.0
"""Collectives along mesh axes inside of `shard_map`, and recomputation there.

The names are those of `jax.lax`. Outside of a region they raise.
"""

from torch_spmd.regions.collectives import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    pbroadcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    pshuffle,
    psum,
    psum_scatter,
    pvary,
    ragged_all_to_all,
    shard_size,
)
from torch_spmd.regions.recomputation import (
    remat,
)

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pvary",
    "ragged_all_to_all",
    "remat",
    "shard_size",
]
