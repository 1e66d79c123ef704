# SPDX-License-Identifier: Apache-2.0
"""What PyTorch does with whole programs: torch.compile's default backend, and FlopCounterMode."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter

from torch_spmd import _compat
from torch_spmd._replace import replace

DEVICE = "spmd"

_has_noted = False


def install() -> None:
    """Called once, when the device is registered."""
    _call_what_inductor_gets()
    _count_flops()


# --- torch.compile ---


def _call_what_inductor_gets() -> None:
    """What Dynamo has captured is called as it is, since the device compiles whole steps."""
    compile_graph = _compat.INDUCTOR.current()

    @functools.wraps(compile_graph)
    def compile_or_call(self: Any, model_: Any, inputs_: Any, **options: Any) -> Any:
        if not _is_ours(model_, inputs_):
            return compile_graph(self, model_, inputs_, **options)
        _note()
        _call_checkpoint(model_)
        return model_

    why = "torch.compile calls what is captured on the device as it is"
    replace(*_compat.INDUCTOR, compile_or_call, why)


def _is_ours(graph: Any, inputs: Sequence[Any]) -> bool:
    """Whether a tensor of the device is among the inputs, or is made in the graph."""
    values = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(t, Tensor) and t.device.type == DEVICE for t in (*inputs, *values))


def _note() -> None:
    global _has_noted
    if _has_noted:
        return
    _has_noted = True
    warnings.warn(
        "torch.compile: what is captured on 'spmd' is recorded as any other call is, since the "
        "device compiles whole steps by itself; Inductor's mode and options have no effect",
        stacklevel=2,
    )


def _call_checkpoint(graph: torch.fx.GraphModule) -> None:
    """Calls torch.utils.checkpoint where the graph has Dynamo's op for it, which leaves the random
    state to Inductor."""
    for part in graph.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if node.target is torch.ops.higher_order.tag_activation_checkpoint:
                    node.target = _checkpointed
            part.recompile()


def _checkpointed(part: Any, *args: Any, **options: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    if "_checkpoint_context_fn" in part.meta:
        options["context_fn"] = part.meta["_checkpoint_context_fn"]
    return checkpoint(part, *args, **options | {"use_reentrant": False})


# --- FlopCounterMode ---


def _count_flops() -> None:
    """Formulas for the ops that autograd and attention use on this device alone."""
    aten = torch.ops.aten
    formula = flop_counter.register_flop_formula

    @formula(aten.linear_backward)
    def linear_backward(
        x: Iterable[int], grad: Sequence[int], weight: Iterable[int], mask: Any, **_: Any
    ) -> int:
        """A product for the gradient of the input, and one for that of the weight."""
        return 2 * math.prod(x) * grad[-1] * sum(mask[:2])

    @formula(aten._scaled_dot_product_fused_attention_overrideable)
    def attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    @formula(aten._scaled_dot_product_fused_attention_overrideable_backward)
    def attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(grad, query, key, value))
