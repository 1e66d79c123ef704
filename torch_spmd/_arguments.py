# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of public functions, made before a function does anything.

Each check returns the value in a plain form (a list of ints, a dict, …) that the bindings of `_C`
accept, or raises TypeError, ValueError or IndexError: "caller: argument must be …; got …". If the
caller's objects raise when they are read (`__iter__`, `__index__`, `__len__`), that becomes a
TypeError that names the argument and has the exception as its cause.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch
from torch import Tensor

# More than any reasonable list, so that a generator without an end is not read for ever.
MOST_ITEMS = 1 << 20
INT64 = 1 << 63


class _Shortened(reprlib.Repr):
    """A repr of bounded length and depth; of a tensor only its kind: its values may be pending."""

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return _tensor_shown(x)
        if isinstance(x, int) and not -INT64 <= x < INT64:
            return f"an integer of {x.bit_length()} bits"
        return super().repr1(x, level)


_shortened = _Shortened()
_shortened.maxlevel = 4
_shortened.maxtuple = _shortened.maxlist = _shortened.maxdict = _shortened.maxset = 6
_shortened.maxstring = _shortened.maxlong = _shortened.maxother = 80


def _tensor_shown(t: Tensor) -> str:
    try:
        return f"tensor of shape {tuple(t.shape)} on '{t.device}'"
    except Exception:  # a nested tensor has no sizes
        return f"tensor on '{t.device}'"


def shown(value: Any) -> str:
    """`value` for a message: short, with its type, whatever its `__repr__` does."""
    kind = str(type.__dict__["__name__"].__get__(type(value)))  # a metaclass may hide it
    text = plain(value)
    return f"{text} ({kind})" if text else f"an object of class {kind}"


def plain(value: Any) -> str:
    """As `shown`, without the type; "" if the value has no repr."""
    try:
        text = _shortened.repr(value)
        text.encode()
    except Exception:
        return ""
    return text


@contextlib.contextmanager
def reading(caller: str, name: str) -> Iterator[None]:
    """A context for code that calls methods of the caller's objects."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise TypeError(
            f"{caller}: {name} cannot be read: {type(error).__name__}: {_said(error)}"
        ) from error


def _said(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return "(no message)"


def integer(caller: str, name: str, value: Any, least: int = -INT64, most: int = INT64 - 1) -> int:
    """An int of anything that has `__index__`, within bounds."""
    if isinstance(value, type) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{caller}: {name} must be an integer; got {shown(value)}")
    try:
        result = operator.index(value)
    except Exception as error:
        raise TypeError(f"{caller}: {name} must be an integer; got {shown(value)}") from error
    if not least <= result <= most:
        raise ValueError(f"{caller}: {name} must be {_bounds(least, most)}; got {plain(result)}")
    return result


def _bounds(least: int, most: int) -> str:
    if most >= INT64 - 1 and least > -INT64:
        return f"an integer of 64 bits, {least} or more"
    if most == INT64 - 1:
        return "an integer of 64 bits"
    return f"an integer from {least} to {most}"


def seed(caller: str, value: Any) -> int:
    """A seed as torch.manual_seed accepts it: an integer from -2**63 to 2**64 - 1."""
    return integer(caller, "seed", value, -INT64, 2 * INT64 - 1) & (2 * INT64 - 1)


def boolean(caller: str, name: str, value: Any) -> bool:
    """A bool of True or False (Python's or numpy's), 0 or 1."""
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{caller}: {name} must be True or False; got {shown(value)}")


def number(caller: str, name: str, value: Any) -> float:
    """A real number in the range of float, not text."""
    if isinstance(value, (str, bytes, bytearray, complex, type)):
        raise TypeError(f"{caller}: {name} must be a number; got {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{caller}: {name} is too large; got {shown(value)}") from None
    except Exception as error:
        raise TypeError(f"{caller}: {name} must be a number; got {shown(value)}") from error


def tolerance(caller: str, name: str, value: Any) -> float | None:
    """None, or a number of at least 0."""
    if value is None:
        return None
    result = number(caller, name, value)
    if not (math.isfinite(result) and result >= 0):
        raise ValueError(f"{caller}: {name} must be 0 or more, and finite; got {result}")
    return result


def text(caller: str, name: str, value: Any, most: int = 4096) -> str:
    """A str that UTF-8 can encode and that is short enough to be repeated in messages."""
    if not isinstance(value, str):
        raise TypeError(f"{caller}: {name} must be a string; got {shown(value)}")
    try:
        str.encode(value)
    except UnicodeEncodeError:
        raise ValueError(
            f"{caller}: {name} must be text that UTF-8 can write; got {value[:80]!a}"
        ) from None
    if len(value) > most:
        raise ValueError(
            f"{caller}: {name} is a string of {len(value):,} characters, and may have {most:,}"
        )
    return str.__str__(value)


def path(caller: str, name: str, value: Any) -> str:
    """The name of a file: a str or a pathlib.Path."""
    if isinstance(value, os.PathLike) and not isinstance(value, type):
        with reading(caller, name):
            value = os.fspath(value)
    if not isinstance(value, str):
        raise TypeError(f"{caller}: {name} must be a string or a pathlib.Path; got {shown(value)}")
    name_of_file = text(caller, name, value)
    if not name_of_file or "\0" in name_of_file:
        raise ValueError(f"{caller}: {name} must name a file; got {plain(value)}")
    return name_of_file


def items(
    caller: str, name: str, value: Any, what: str, most: int = MOST_ITEMS, any_order: bool = False
) -> list[Any]:
    """The items of a sequence, an array or a generator, in order. `what` describes a right value.

    `any_order` says that a set is accepted, too.
    """
    wrong = isinstance(value, (str, bytes, bytearray, Mapping, type))
    wrong = wrong or (isinstance(value, Set) and not any_order)
    if wrong or not (isinstance(value, Iterable) or hasattr(type(value), "__getitem__")):
        raise TypeError(f"{caller}: {name} must be {what}; got {shown(value)}")
    if isinstance(value, Tensor) or type(value).__module__ == "numpy":
        try:
            given = value.tolist() if value.ndim > 0 else None
        except Exception as error:  # meta, fake or sparse tensors
            raise TypeError(f"{caller}: {name} must be {what}; got {shown(value)}") from error
        if given is None:
            raise TypeError(f"{caller}: {name} must be {what}; got {shown(value)}")
        value = given
    with reading(caller, name):
        result = list(itertools.islice(value, most + 1))
    if len(result) > most:
        raise ValueError(f"{caller}: {name} has more than {most:,} items; got {shown(value)}")
    return result


def integers(
    caller: str,
    name: str,
    value: Any,
    least: int = -INT64,
    most: int = INT64 - 1,
    most_items: int = MOST_ITEMS,
    any_order: bool = False,
) -> list[int]:
    """A sequence of integers within bounds or, with `any_order`, a set of them."""
    what = "a sequence of integers"
    found = items(caller, name, value, what, most_items, any_order)
    if all(type(item) is int for item in found):
        result = found
    else:
        result = []
        for item in found:
            try:
                result.append(operator.index(item))
            except Exception as error:
                raise TypeError(f"{caller}: {name} must be {what}; got {shown(value)}") from error
    if result and not (least <= min(result) and max(result) <= most):
        position, wrong = next((i, n) for i, n in enumerate(result) if not least <= n <= most)
        integer(caller, f"{name}[{position}]", wrong, least, most)
    return result


def texts(caller: str, name: str, value: Any, most_items: int = MOST_ITEMS) -> list[str]:
    """A sequence of strings."""
    if isinstance(value, str):
        given = plain(value)
        raise TypeError(f"{caller}: {name} is one string, {given}; give a tuple: ({given},)")
    found = items(caller, name, value, "a sequence of strings", most_items)
    return [text(caller, f"{name}[{i}]", item) for i, item in enumerate(found)]


def mapping(caller: str, name: str, value: Any, what: str) -> dict[Any, Any]:
    """A mapping as a dict, in order."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{caller}: {name} must be {what}; got {shown(value)}")
    with reading(caller, name):
        result = dict(itertools.islice(value.items(), MOST_ITEMS + 1))
    if len(result) > MOST_ITEMS:
        raise ValueError(f"{caller}: {name} has more than {MOST_ITEMS:,} items")
    return result


def text_pairs(caller: str, name: str, value: Any) -> list[tuple[str, str]]:
    """A mapping from strings to strings, as pairs."""
    pairs = mapping(caller, name, value, "a mapping from strings to strings")
    return [
        (text(caller, f"a key of {name}", key), text(caller, f"{name}[{plain(key)}]", item))
        for key, item in pairs.items()
    ]


def check_dense(caller: str, value: Tensor) -> None:
    """Errors: ValueError for a sparse or nested tensor."""
    if value.layout != torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else "sparse"
        layout = str(value.layout).removeprefix("torch.").replace("_", "")
        values = "_values()" if value.is_sparse else "values()"
        instead = f"; give it the values, t.{values}, whose nnz can be sharded"
        raise ValueError(
            f"{caller} takes no {kind} tensor; got one with layout {layout}"
            f"{'' if value.is_nested else instead}"
        )


def tensor(caller: str, value: Any, name: str = "") -> Tensor:
    """A tensor on the device.

    Errors: TypeError if it is not a tensor; ValueError if it is not on `spmd`, or of a kind that
    the device does not support.
    """
    where = f"{caller}: {name}: " if name else f"{caller}: "
    if not isinstance(value, Tensor):
        raise TypeError(f"{where}expected a tensor on 'spmd', got {shown(value)}")
    check_dense(caller, value)
    if value.device.type != "spmd":
        raise ValueError(
            f"{where}the tensor of shape {tuple(value.shape)} is on {str(value.device)!r}, not on "
            "'spmd'; move it first: t = t.to('spmd')"
        )
    return value
