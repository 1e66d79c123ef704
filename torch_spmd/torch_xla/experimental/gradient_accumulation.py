# SPDX-License-Identifier: Apache-2.0
"""Gradients over several micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def gradient_accumulation(
    train_step: Callable[..., Any],
    iterable_tensors: Sequence[Tensor],
    model: nn.Module,
    *carried_tensors: Tensor,
) -> Any:
    """Adds the gradients of the mean loss over micro-batches to the model's parameters.

    Args:
        train_step: called with one entry of each tensor and the carried ones; returns the loss, or
            the loss and the carried tensors for the next call.
        iterable_tensors: tensors whose dimension 0 counts micro-batches.
        model: the module whose parameters get gradients.
        carried_tensors: what the first call gets besides.

    Returns the mean loss, detached, or a tuple of it and the carried tensors. A gradient is reduced
    over the mesh once, whatever the number of micro-batches.

    Errors: ValueError for no tensors, or of different sizes along dimension 0.
    """
    counts = {tensor.shape[0] for tensor in iterable_tensors}
    if len(counts) != 1:
        raise ValueError(
            "gradient_accumulation: iterable_tensors must have one size along dimension 0; got "
            f"{sorted(counts)}"
        )
    (count,) = counts
    total = None
    carried: tuple[Any, ...] = carried_tensors
    for i in range(count):
        result = train_step(*(tensor[i] for tensor in iterable_tensors), *carried)
        loss, *rest = result if isinstance(result, (tuple, list)) else (result,)
        carried = tuple(rest)
        loss = loss / count
        loss.backward()
        with torch.no_grad():
            part = loss.detach()
            total = part if total is None else total + part
    return (total, *carried) if carried else total
