# SPDX-License-Identifier: Apache-2.0
"""Sharding rules for ops that torch_spmd does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_spmd import _C, _arguments


def register_rule(
    op: str,
    text: str,
    *,
    kinds: Mapping[str, str] | None = None,
    each: Sequence[int] = (),
    jointly: Sequence[int] = (),
    local: Mapping[str, str] | None = None,
) -> None:
    """Says how an op may be sharded.

    An op without a rule runs unsharded, on gathered operands. With a rule it runs on tiles: if an
    axis shards a factor, the op is called on each tile.

    Args:
        op: the op's name, with its overload if it has one: "mylib::op", "mylib::op.out".
        text: operands, "->", results, separated by commas; one word per dimension. A word is a
            factor: the same word is the same index. "..." is any number of leading dimensions,
            "[h]" a factor that is never sharded, "1" a dimension of size 1, "(a b)" a dimension
            that is two factors, major first, "()" a tensor without dimensions. "+" before an
            operand: it is added to the result once, like a bias. "=" before a result: the shards of
            a factor that it lacks compute identical copies of it, not partial sums. "?" after an
            operand: it may be absent.
        kinds: by factor, how the results that lack it combine when it is sharded: "sum" (the
            default), "prod", "max", "min", "and", "or".
        each: operands of which any one may be a partial sum: op(a + b) = op(a) + op(b).
            Reductions are then done after the op, if that is cheaper.
        jointly: operands that may be partial sums, all at once.
        local: attributes of the call on a tile that differ from the whole call's, as expressions:
            {"size": "[size(r0,0), 4]"}. size, start and extent of operand k (ok) or result k (rk)
            along a dimension; + - * //, min(a,b), max(a,b).

    Errors: TypeError for an argument of another kind; ValueError if the text is malformed or does
    not have as many operands and results as the op, or if the op has a rule already or does not
    exist.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch_spmd import testing
        >>> @torch.library.custom_op("mylib::scale_rows", mutates_args=())
        ... def scale_rows(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        ...     return x * s[:, None]
        >>> scale_rows.register_fake(lambda x, s: torch.empty_like(x))  # doctest: +ELLIPSIS
        <function ...>
        >>> spmd.register_rule("mylib::scale_rows", "r c, r -> r c")
        >>> testing.check_rule("mylib::scale_rows", torch.randn(6, 4), torch.randn(6)) > 0
        True
    """
    caller, most = "register_rule", (1 << 31) - 1
    _C.register_rule(
        _arguments.text(caller, "op", op),
        _arguments.text(caller, "text", text),
        [] if kinds is None else _arguments.text_pairs(caller, "kinds", kinds),
        _arguments.integers(caller, "each", each, 0, most, most_items=1024, any_order=True),
        _arguments.integers(caller, "jointly", jointly, 0, most, most_items=1024, any_order=True),
        [] if local is None else _arguments.text_pairs(caller, "local", local),
    )
