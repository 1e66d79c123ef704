# SPDX-License-Identifier: Apache-2.0
"""Values that a planning backend takes for computed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch_spmd import _C, _arguments

_assumed: list[tuple[str, float]] = []


def assume(values: Mapping[str, float] | float) -> contextlib.AbstractContextManager[None]:
    """`with assume(…):` says what values are on a backend that only plans (`mock_tpu:…:plan`).

    There, what depends on constants only is computed: creation ops, uploaded integers and booleans
    (masks, positions, ids), uploaded single numbers. A script that asks for another value
    (`if loss.item() > 3`, `mask.nonzero()`) gets an error that names the op and the line, unless
    one of the values fits. An optimizer's step that asks for one floating-point number (Adafactor's
    norms) gets 1.0, since it scales an update. On other backends it does nothing.

    Args:
        values: values by a part of the question, which is the op, its line and the line that asks:
            `{"train.py:31": False, "aten::norm": 2.0}`; the first that fits counts, those of an
            inner block first. A number alone fits everything. A tensor is filled with it.

    Errors: TypeError at once for another kind of argument.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> with spmd.planning.assume({"train.py:31": True, "aten::norm": 2.0}):
        ...     t = torch.ones(3, device="spmd").sum().item()  # on this backend: computed
        >>> t
        3.0
    """
    given = {"": values} if not isinstance(values, Mapping) else values
    what = "a number, or a mapping from texts to numbers"
    pairs = [
        (_question(text), _arguments.number("assume", f"values[{_arguments.plain(text)}]", number))
        for text, number in _arguments.mapping("assume", "values", given, what).items()
    ]
    return _assuming(pairs)


def _question(text: object) -> str:
    return "" if text == "" else _arguments.text("assume", "a key of values", text)


@contextlib.contextmanager
def _assuming(pairs: list[tuple[str, float]]) -> Iterator[None]:
    _assumed[:0] = pairs
    _C.set_answers(_assumed)
    try:
        yield
    finally:
        del _assumed[: len(pairs)]
        _C.set_answers(_assumed)
