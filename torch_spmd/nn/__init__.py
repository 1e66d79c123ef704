# SPDX-License-Identifier: Apache-2.0
"""Layers whose plans are written out: attention over sharded sequences, mixtures of experts,
pipelines."""

from torch_spmd.nn.experts import Mixed, MoE
from torch_spmd.nn.pipelines import pipeline
from torch_spmd.nn.ring import ring_attention, unzigzag, zigzag

__all__ = ["Mixed", "MoE", "pipeline", "ring_attention", "unzigzag", "zigzag"]
