# SPDX-License-Identifier: Apache-2.0
"""Specs that `spmd.planning.auto_shard` proposes beside those that people write."""
