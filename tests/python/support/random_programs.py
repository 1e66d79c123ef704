# SPDX-License-Identifier: Apache-2.0
"""Random programs, run on the CPU and on `spmd`, and how the two runs differ.

A program is a mesh and lines of Python over tensors `t0`, `t1`, …, which `random_scope.py` writes
from a seed. `str(program)` is a script that runs by itself.
"""

import re
import warnings
from dataclasses import dataclass

import torch

import torch_spmd as spmd

PRELUDE = '''
import contextlib
import copy

import torch
import torch.nn.functional as F

import torch_spmd as spmd

errors = []


def make(shape, dtype, seed):
    """Multiples of a quarter: sums and products of few are exact, and some are equal."""
    generator = torch.Generator().manual_seed(seed + shift)
    first, second = (torch.randint(-9, 10, shape, generator=generator) / 4 for _ in range(2))
    if dtype == torch.bool:
        values = first > 0
    elif dtype == torch.complex64:
        values = torch.complex(first, second)
    else:
        values = (first if dtype.is_floating_point else first * 2).to(dtype)
    return values.to(device)


def index(values):
    return torch.tensor(values, dtype=torch.int64).to(device)


def mark(t, *spec):
    if device == "spmd":
        spmd.mark_sharding(t, mesh, spec)


def sync():
    spmd.sync(wait=True)


@contextlib.contextmanager
def refused():
    """What is inside raises on the CPU."""
    try:
        yield
        sync()
    except Exception as error:
        errors.append(type(error).__name__)
    else:
        errors.append("nothing")
'''

EPILOGUE = """
    for name in [name for name in globals() if name[0] == "t" and name[1:].isdigit()]:
        print(device, name, globals().pop(name))
    print(device, errors)
    errors.clear()
"""


class Invalid(Exception):
    """The CPU does not run a program."""


class LineError(Exception):
    """A line raised, where no line should."""

    def __init__(self, line, error):
        text = (str(error) or "-").splitlines()[0]
        super().__init__(f"raises {type(error).__name__} at {line!r}: {text}")


@dataclass(frozen=True)
class Program:
    """Lines over `t0`, `t1`, … on a mesh.

    A program that is `repeated` runs on other values first, so that compiled programs are reused.
    """

    mesh: tuple[int, ...]
    lines: tuple[str, ...]
    repeated: bool = False

    @property
    def axes(self):
        return ("x", "y")[: len(self.mesh)]

    @property
    def runs(self):
        """Devices, and by what the seeds of the values are shifted."""
        return [("cpu", 0), ("spmd", 1000), ("spmd", 0)] if self.repeated else RUNS

    def __str__(self):
        lines = "".join(f"    {line}\n" for line in self.lines)
        return (
            f"{PRELUDE}\n\nmesh = spmd.make_mesh({self.mesh}, {self.axes})\n"
            f"for device, shift in {self.runs}:\n{lines}{EPILOGUE}"
        )


RUNS = [("cpu", 0), ("spmd", 0)]


@dataclass
class Run:
    """The results of a program: its tensors by name, and the types of the errors it raised."""

    names: dict
    errors: list

    @property
    def tensors(self):
        return {k: v for k, v in self.names.items() if re.fullmatch(r"t\d+", k)}


_prelude = compile(PRELUDE, "prelude", "exec")


def start(program, device, shift=0):
    """The names that a program begins with."""
    mesh = spmd.make_mesh(program.mesh, program.axes)
    names = {"device": device, "mesh": mesh, "shift": shift}
    exec(_prelude, names)
    return Run(names, names["errors"])


def run(program, device, shift=0):
    """Runs a program from start to end.

    Errors: LineError.
    """
    result = start(program, device, shift)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in program.lines:
            try:
                exec(line, result.names)
            except Exception as error:
                raise LineError(line, error) from error
    return result


def difference(program):
    """How a program differs on `spmd`, in words, or None.

    Errors: Invalid where the CPU raises.
    """
    try:
        want = run(program, "cpu")
    except LineError as error:
        raise Invalid(str(error)) from error
    try:
        if program.repeated:
            _try_other_values(program)
        return _compare(run(program, "spmd"), want)
    except LineError as error:
        return str(error)
    finally:
        _settle()


def _try_other_values(program):
    """Other values may raise where these do not."""
    try:
        run(program, "spmd", shift=1000)
    except LineError:
        return
    finally:
        _settle()


def _settle():
    """Runs what is left pending, so that the next program starts clean."""
    try:
        spmd.sync(wait=True)
    except Exception:
        return


def _compare(got, want):
    for number, (ours, theirs) in enumerate(zip(got.errors, want.errors)):
        if ours != theirs:
            return f"error {number} is {ours}, not {theirs}"
    single = any(t.dtype in (torch.float32, torch.complex64) for t in want.tensors.values())
    # The last ones first: computing with a tensor must not change it.
    for name, expected in reversed(want.tensors.items()):
        for what, read in PARTS.items():
            ours, theirs = _read(read, got.names[name]), _read(read, expected)
            text = _difference_of(ours, theirs, precision=1e-5 if single else 1e-9)
            if text:
                return f"differs in the {what} of {name}: {text}"
    return None


# In this order: the cheap ones first, the values run what is pending.
PARTS = {
    "shape": lambda t: t.shape,
    "dtype": lambda t: t.dtype,
    "need of a gradient": lambda t: (t.requires_grad, t.is_leaf, t.retains_grad),
    "strides": lambda t: [s for s, n in zip(t.stride(), t.shape) if n > 1 and t.numel()],
    "offset": lambda t: t.storage_offset() if t.numel() else 0,
    "values": lambda t: t.detach().cpu(),
    "gradient": lambda t: t.grad.detach().cpu() if _has_gradient(t) else None,
}


def _read(read, t):
    try:
        return read(t)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _has_gradient(t):
    return (t.is_leaf or t.retains_grad) and t.grad is not None


def _difference_of(a, b, precision):
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return None if _plain(a) == _plain(b) else f"{a}, not {b}"
    try:
        torch.testing.assert_close(a.resolve_conj(), b.resolve_conj(), **_tolerances(b, precision))
    except AssertionError as error:
        return " ".join(str(error).split())[:200] + f"; {a.tolist()}, not {b.tolist()}"
    return None


def _plain(part):
    """Of an error the type alone."""
    return part.split(":")[0] if isinstance(part, str) else part


def _tolerances(want, precision):
    if not (want.is_floating_point() or want.is_complex()):
        return {"rtol": 0, "atol": 0}
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return {"rtol": 10 * precision, "atol": precision * (1 + largest), "equal_nan": True}
