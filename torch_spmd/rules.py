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
    """Says how an op may be cut.

    An op without a rule runs whole, on gathered operands. With a rule it runs on tiles: wherever an
    axis cuts a factor, the op is called on each tile.

    Args:
        op: the op's name, with its overload if it has one: "mylib::op", "mylib::op.out".
        text: operands, "->", results, separated by commas; one word per dimension. A word is a
            factor: the same word is the same index. "..." is any number of leading dimensions,
            "[h]" a factor that is never cut, "1" a dimension of size 1, "(a b)" a dimension that is
            two factors, major first, "()" a tensor without dimensions. "+" before an operand: it is
            added to the result, once (a bias). "=" before a result: the shards of a letter that it
            lacks all compute the same of it, not terms. "?" after an operand: it may be absent.
        kinds: how results that lack a factor combine when it is cut: "sum" (where nothing is said),
            "prod", "max", "min", "and", "or", by factor.
        each: operands of which any one may be a term of a sum: op(a + b) = op(a) + op(b).
            Reductions are then done after the op, if that is cheaper.
        jointly: operands that may be terms of a sum all at once.
        local: attributes of the call on a tile that differ from the whole call's, as expressions:
            {"size": "[size(r0,0), 4]"}. size, start and extent of operand k (ok) or result k (rk)
            along a dimension; + - * //, min(a,b), max(a,b).

    Errors: TypeError for an argument of another kind; ValueError that says what is malformed; for
    an op that has a rule, for an op that does not exist, for a text that has not as many operands
    or results as the op.

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
