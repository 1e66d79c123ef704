# SPDX-License-Identifier: Apache-2.0
"""Specs for models of Hugging Face, from the plans that `transformers` has for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from torch_spmd import _arguments, _renamed
from torch_spmd.nn.fully_sharded import fsdp as shard_fully
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.modules import ShardReport, shard_module_again
from torch_spmd.sharding.spec import PartitionSpec, blocks

__all__ = ["shard_model"]


def shard_model(
    model: nn.Module,
    mesh: Mesh | None = None,
    tp: str | None = "model",
    fsdp: str | None = "data",
    ep: str | None = None,
    *,
    materialize: bool = False,
) -> ShardReport:
    """Shards a model of `transformers` by its own plans for tensor and expert parallelism, and over
    a second axis fully.

    The plans are those that `from_pretrained(…, tp_plan="auto")` uses: names of modules and
    parameters with a style each. A style says which dimension of a weight is sharded, and that is
    all that is set here: values are global, so nothing else in the model has to know.

    Args:
        model: on `spmd`, or on `meta` with `materialize`.
        mesh: the mesh; None means the global one.
        tp: the axis of tensor parallelism; None leaves it out.
        fsdp: the axis of the batch over which all parameters are sharded, too, as `spmd.fsdp` does;
            None leaves it out.
        ep: the axis over which experts are dealt out, instead of sharding each of them over `tp`.
            It may be the axis of `tp` or of `fsdp`. None leaves it out.
        materialize: as in `shard_module`.

    Errors:
        TypeError: an argument of another kind.
        ValueError: an axis that the mesh does not have; a model without such a plan; as
            `shard_module`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(
        ...     hidden_size=64,
        ...     intermediate_size=128,
        ...     num_hidden_layers=1,
        ...     num_attention_heads=8,
        ...     vocab_size=256,
        ... )
        >>> mesh = spmd.make_mesh((2, 4), ("data", "model"))
        >>> report = spmd.hf.shard_model(LlamaForCausalLM(config).to("spmd"), mesh)
        >>> report.sharded["model.layers.0.self_attn.q_proj.weight"]
        P('model', 'data')
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"hf.shard_model: model must be an nn.Module; got {_arguments.shown(model)}"
        )
    mesh = mesh_or_global("hf.shard_model", mesh)
    for what, axis in (("tp", tp), ("fsdp", fsdp), ("ep", ep)):
        if axis is not None:
            checked_axis("hf.shard_model", what, mesh, axis)
    styles = _styles(model, tp, ep)
    rules, unsupported = _rules(model, styles)
    report = shard_module_again("hf.shard_model", model, mesh, rules, materialize)
    report.unsupported = unsupported
    if fsdp is not None:
        _add_fully_sharded(report, shard_fully(model, mesh, fsdp))
    return report


def _add_fully_sharded(report: ShardReport, fully: ShardReport) -> None:
    report.sharded |= fully.sharded
    report.sharded |= {
        n: spec for n, spec in fully.kept.items() if any(d is not None for d in spec)
    }
    report.replicated = [name for name in report.replicated if name not in report.sharded]


def _styles(model: nn.Module, tp: str | None, ep: str | None) -> list[tuple[str, str, str]]:
    """Patterns with their styles and axes, those of experts first."""
    found = []
    for axis, name, what in ((ep, "_ep_plan", "expert"), (tp, "_tp_plan", "tensor")):
        if axis is None:
            continue
        given = getattr(model, name, None)
        if not isinstance(given, Mapping) or not given:
            raise ValueError(
                f"hf.shard_model: {type(model).__name__} has no plan for {what} parallelism; write "
                "the rules yourself: spmd.shard_module(model, mesh, {…})"
            )
        found += [(str(pattern), str(style), axis) for pattern, style in given.items()]
    return found


# For each style of transformers the dimension of a weight that it shards: counted from the end for
# matrices and stacks of them, and for vectors; None is not sharded. "blocks" are gate and up.
_COLUMNS = (-2, -1)
_ROWS = (-1, None)
STYLES: dict[str, tuple[int | None, int | None]] = {
    "colwise": _COLUMNS,
    "colwise_gather_output": _COLUMNS,
    "colwise_rep": _COLUMNS,
    "packed_colwise": _COLUMNS,
    "rowwise": _ROWS,
    "rowwise_rep": _ROWS,
    "rowwise_split_input": _ROWS,
    "packed_rowwise": _ROWS,
    "embedding_rowwise": (-2, None),
    "embedding_colwise": (-1, None),
    # Of experts, which are the first of three dimensions; vectors of experts are matrices.
    "grouped_gemm": (0, 0),
    # What is done around modules is the compiler's business.
    "replicate": (None, None),
    "replicated_with_grad_allreduce": (None, None),
    "mla_kv_a_proj": (None, None),
    "all_reduce": (None, None),
    "sequence_parallel": (None, None),
    "moe_tp_experts": (None, None),
    "moe_identity_expert": (None, None),
    "ep_dispatch_experts": (None, None),
    "local_params": (None, None),
}
_PACKED = ("packed_colwise", "packed_rowwise")


def _rules(
    model: nn.Module, styles: list[tuple[str, str, str]]
) -> tuple[dict[re.Pattern[str], PartitionSpec], dict[str, str]]:
    """The rules for `shard_module`, and the styles that are not known."""
    patterns = [(_pattern(pattern), style, axis) for pattern, style, axis in styles]
    unsupported = {pattern: style for pattern, style, _ in styles if style not in STYLES}
    rules: dict[re.Pattern[str], PartitionSpec] = {}
    for name, parameter in model.named_parameters():
        module = name.rpartition(".")[0]
        for pattern, style, axis in patterns:
            if style not in STYLES or not (pattern.fullmatch(name) or pattern.fullmatch(module)):
                continue
            spec = _spec(style, axis, tuple(parameter.shape))
            if spec is not None:
                rules[re.compile(re.escape(name))] = spec
                break
    return rules, unsupported


def _pattern(pattern: str) -> re.Pattern[str]:
    """`*` is one part between dots."""
    return re.compile(r"[^.]+".join(map(re.escape, pattern.split("*"))))


def _spec(style: str, axis: str, shape: tuple[int, ...]) -> PartitionSpec | None:
    """The spec, or None if the style shards no dimension of such a parameter."""
    dim = STYLES[style][0 if len(shape) > 1 else 1]
    if dim is None or len(shape) == 0:
        return None
    packed = style in _PACKED and shape[dim] % 2 == 0
    entries: list[Any] = [None] * len(shape)
    entries[dim] = blocks(2, axis) if packed else axis
    return PartitionSpec(*entries)


def __getattr__(name: str) -> Any:
    return _renamed.plan_of_hf(name)
