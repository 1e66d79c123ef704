# SPDX-License-Identifier: Apache-2.0
"""Functions of local shapes: `shard_map`, and the collectives inside of them."""
