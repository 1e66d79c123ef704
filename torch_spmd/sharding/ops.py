# SPDX-License-Identifier: Apache-2.0
"""The dispatcher ops `spmd::mark_sharding` and `spmd::reshard`.

Tracers of PyTorch (make_fx, aot_function, torch.compile, torch.export) record them with the mesh
and the spec as text, so that a traced graph marks and reshards as the program did.
"""

from __future__ import annotations

import ast
import functools
from typing import Any

import torch
import torch.fx.node
from torch import Tensor

from torch_spmd import _C, _compat
from torch_spmd._compat import functorch
from torch_spmd.sharding.spec import (
    UNCONSTRAINED,
    PartitionSpec,
    SpecLike,
    blocks,
    check_blocks,
    of_rank,
)

_library = torch.library.Library("spmd", "FRAGMENT")
_library.define("mark_sharding(Tensor x, str mesh, str spec) -> ()")
_library.define("reshard(Tensor x, str mesh, str spec) -> Tensor")


def spec_text(spec: SpecLike) -> str:
    """The spec as text: "('data', None, ('x', 'y'), UNCONSTRAINED)". Written in plain steps that
    torch.compile can follow."""
    parts = [_entry_text(entry) for entry in spec]
    return "(" + ", ".join(parts) + (",)" if len(parts) == 1 else ")")


def _entry_text(entry: Any) -> str:
    if entry is None:
        return "None"
    if entry is UNCONSTRAINED:
        return "UNCONSTRAINED"
    if isinstance(entry, str):
        return repr(entry)
    if isinstance(entry, blocks):
        return "blocks(" + str(entry.n) + ", " + _entry_text(entry.axes) + ")"
    if isinstance(entry, (tuple, list)):
        return spec_text(entry)
    return str(int(entry))


@functools.lru_cache(maxsize=256)
def _mesh_of(text: str) -> _C.Mesh:
    try:
        return _C.Mesh.from_text(text)
    except ValueError as error:
        raise ValueError(f"torch.ops.spmd: mesh must be the text of a mesh: {error}") from None


@functools.lru_cache(maxsize=1024)
def _spec_of(text: str) -> PartitionSpec:
    try:
        tree = ast.parse(text, mode="eval").body
        listed = tree.elts if isinstance(tree, (ast.Tuple, ast.List)) else None
        entries = None if listed is None else [_entry_of(entry) for entry in listed]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        entries = None
    if entries is None:
        raise ValueError(
            f"torch.ops.spmd: spec must be text like \"('data', None)\"; got {text[:80]!r}"
        )
    return PartitionSpec(*entries)


def _entry_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id == "UNCONSTRAINED":
        return UNCONSTRAINED
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "blocks":
        return blocks(*map(ast.literal_eval, node.args))
    return ast.literal_eval(node)


def is_traced(tensor: Tensor) -> bool:
    """Whether a tracer records what is done to the tensor, or the tensor is a fake."""
    keys = _compat.core._dispatch_keys(tensor)
    return (
        _compat.core._len_torch_dispatch_stack() > 0
        or keys.has(_compat.core.DispatchKey.Python)
        or keys.has(_compat.core.DispatchKey.Functionalize)
    )


def _mark(x: Tensor, mesh: str, spec: str) -> None:
    _C.mark_sharding(x, _mesh_of(mesh), of_rank(_spec_of(spec), x.dim()))


def _mesh_and_spec(mesh: str, spec: str) -> tuple[_C.Mesh, PartitionSpec]:
    return _mesh_of(mesh), _spec_of(spec)


def check(caller: str, x: Tensor, mesh: str, spec: str) -> None:
    """Checks the spec as far as is possible for a fake or traced tensor."""
    if x.device.type != "spmd":
        raise ValueError(
            f"{caller}: the tensor of shape {tuple(x.shape)} is on {str(x.device)!r}, not on "
            "'spmd'; move it first: t = t.to('spmd')"
        )
    check_fits(caller, x.dim(), _mesh_of(mesh), _spec_of(spec))
    check_blocks(caller, _spec_of(spec), x.shape)


def check_fits(caller: str, rank: int, mesh: _C.Mesh, spec: PartitionSpec) -> None:
    """Errors: ValueError or IndexError if no tensor of that rank can be sharded in this way."""
    if len(spec) > rank:
        raise ValueError(
            f"{caller}: spec {tuple(spec)} has {len(spec)} entries but the tensor has {rank} "
            "dimensions; give at most one entry per dimension, None where it is not sharded"
        )
    try:
        mesh.canonical_spec(spec)
    except (ValueError, IndexError) as error:
        raise type(error)(f"{caller}: {str(error).removeprefix('NamedSharding: ')}") from None


def _fake_mark(x: Tensor, mesh: str, spec: str) -> None:
    check("mark_sharding", x, mesh, spec)


def _fake_reshard(x: Tensor, mesh: str, spec: str) -> Tensor:
    check("reshard", x, mesh, spec)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _reshard_batch(
    info: Any, in_dims: tuple[Any, ...], x: Tensor, mesh: str, spec: str
) -> tuple[Tensor, int | None]:
    batch_dim = in_dims[0]
    if batch_dim is None:
        return torch.ops.spmd.reshard(x, mesh, spec), None
    entries = _spec_of(spec)
    whole = (*entries[:batch_dim], UNCONSTRAINED, *entries[batch_dim:])
    return torch.ops.spmd.reshard(x, mesh, spec_text(whole)), batch_dim


def _register() -> None:
    _library.impl("mark_sharding", _mark, "PrivateUse1")
    _library.impl("mark_sharding", torch.library.fallthrough_kernel, "Autograd")
    _C.register_reshard(_mesh_and_spec)
    _C.register_manual_regions(functorch.get_unwrapped)
    torch.library.register_fake("spmd::mark_sharding", _fake_mark, lib=_library)
    torch.library.register_fake("spmd::reshard", _fake_reshard, lib=_library)
    torch.library.register_vmap("spmd::reshard", _reshard_batch, lib=_library)
    # It has no result that is read, but must not be removed.
    torch.fx.node.has_side_effect(torch.ops.spmd.mark_sharding.default)


_register()
