# SPDX-License-Identifier: Apache-2.0
"""`scan_layers`: layers of one structure, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch.utils.checkpoint
from torch import nn

from torch_spmd.torch_xla.experimental.scan import is_recomputed


def scan_layers(
    layers: Iterable[nn.Module],
    input_data: Any,
    partition_fn: Callable[..., Any] | None = None,
    is_layer_pure: bool = False,
) -> Any:
    """Gives `input_data` to the first layer, its output to the next one, and returns the last.

    Each layer runs as itself, so nothing is stacked, and parameters keep their marks and get their
    gradients as always. A tuple is given as several arguments.

    Args:
        layers: modules whose parameters and buffers have the same names and shapes. None of them:
            `input_data` is returned.
        input_data: a tensor, or a tree of tensors.
        partition_fn: as for `scan`: unless it is functorch's `default_partition`, each layer is
            computed again in the backward pass.
        is_layer_pure: no effect.

    Errors: ValueError for layers of different structures.
    """
    layers = list(layers)
    _check(layers)
    value = input_data
    for layer in layers:
        arguments = value if isinstance(value, tuple) else (value,)
        if is_recomputed(partition_fn):
            value = torch.utils.checkpoint.checkpoint(layer, *arguments, use_reentrant=False)
        else:
            value = layer(*arguments)
    return value


def _check(layers: list[nn.Module]) -> None:
    shapes = [{name: tuple(t.shape) for name, t in _tensors(layer).items()} for layer in layers]
    for number, own in enumerate(shapes):
        first = shapes[0]
        if own.keys() != first.keys():
            other = ", ".join(sorted(own.keys() ^ first.keys()))
            raise ValueError(
                f"scan_layers: layer {number} has mismatched keys: only one of it and layer 0 has "
                f"{other}; layers must have the same structure"
            )
        for name, shape in own.items():
            if shape != first[name]:
                raise ValueError(
                    f"scan_layers: Shape mismatch for '{name}' in layer {number}: expected "
                    f"{first[name]}, got {shape}; layers must have the same structure"
                )


def _tensors(layer: nn.Module) -> dict[str, Any]:
    return dict(layer.named_parameters()) | dict(layer.named_buffers())
