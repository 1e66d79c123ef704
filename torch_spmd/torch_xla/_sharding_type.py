# SPDX-License-Identifier: Apache-2.0
"""The kinds of sharding that torch_xla tells apart."""

from enum import IntEnum


class ShardingType(IntEnum):
    """The numbers are those of XLA's OpSharding."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6
