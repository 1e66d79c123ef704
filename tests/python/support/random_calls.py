# SPDX-License-Identifier: Apache-2.0
"""Random calls of everything public, with right and wrong arguments.

`surface` finds what is public; `RIGHT` has the right arguments by the parameter's name. A call
either works or raises an error that names the argument."""

from __future__ import annotations

import contextlib
import datetime
import fractions
import functools
import inspect
import io
import itertools
import pathlib
import random
import re
import signal
import types
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DeviceMesh, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
)

import torch_spmd as spmd
from torch_spmd import P

# Special methods of a class's objects.
ASKED = ("__getitem__", "__eq__", "__len__", "__iter__", "__hash__", "__repr__", "__str__")


def surface() -> dict[str, Callable[..., Any]]:
    """Functions, constructors and methods by name; methods take their object first."""
    found: dict[str, Callable[..., Any]] = {}
    subjects = [spmd.checkpoint, spmd.config, spmd.debug, spmd.dtensor, spmd.hf, spmd.lax]
    subjects += [spmd.planning, spmd.processes, spmd.testing]
    names = [(spmd, name) for name in spmd.__all__]
    names += [(m, name) for m in subjects for name in m.__all__ if name not in spmd.__all__]
    for module, name in [*names, (spmd.nn, "pipeline")]:
        thing = getattr(module, name)
        ours = (getattr(thing, "__module__", None) or "").startswith("torch_spmd")
        if name.startswith("_") or not ours:
            continue
        where = f"{module.__name__.removeprefix('torch_spmd').strip('.') or 'spmd'}.{name}"
        if isinstance(thing, type):
            found |= _of_class(where, thing)
        elif callable(thing):
            shards = thing.__module__ == "torch_spmd.regions.collectives"
            found[where] = _in_a_region(thing) if shards else thing
    for name in ("mark_sharding", "reshard"):
        found[f"torch.ops.spmd.{name}"] = getattr(torch.ops.spmd, name)
    module = type(torch.spmd)
    for name, thing in vars(module).items():
        if isinstance(thing, types.FunctionType) and not name.startswith("__"):
            found[f"torch.spmd.{name}"] = getattr(torch.spmd, name)
    return found


def _in_a_region(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def call(*args: Any, **kwargs: Any) -> None:
        mesh = spmd.make_mesh((2, 4), ("data", "model"))

        def region() -> None:
            collective(*args, **kwargs)

        spmd.shard_map(region, mesh, (), P(), check_vma=False)()

    return call


def _of_class(where: str, kind: type) -> dict[str, Callable[..., Any]]:
    if issubclass(kind, Exception):
        return {}
    found: dict[str, Callable[..., Any]] = {}
    if not issubclass(kind, str):  # whose constructor is Python's
        found[where] = kind
    if hasattr(kind, "_fields"):  # whose methods are
        return found
    for name, thing in vars(kind).items():
        if not (name in ASKED or not name.startswith("_")):
            continue
        if isinstance(thing, (types.FunctionType, property)):
            ask = thing.fget if isinstance(thing, property) else thing
            found[f"{where}.{name}"] = ask
    return found


def parameters(name: str, call: Callable[..., Any]) -> list[inspect.Parameter]:
    if name.startswith("torch.ops."):
        empty = inspect.Parameter.POSITIONAL_ONLY
        return [inspect.Parameter(n, empty) for n in ("x", "mesh_text", "spec_text")]
    return list(inspect.signature(call).parameters.values())


# --- right arguments ---


class World:
    """Arguments for a call, created for each call, so that calls do not disturb each other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mesh = spmd.make_mesh((2, 4), ("data", "model"))
        self.made: list[torch.Tensor] = []

    def tensor(self) -> torch.Tensor:
        t = torch.arange(32.0).reshape(8, 4).to("spmd")
        kind = self.rng.randrange(4)
        if kind == 0:
            spmd.mark_sharding(t, self.mesh, ("data", None))
        if kind == 1:
            t = t + 1
        self.made.append(t)
        return t

    def tree(self) -> Any:
        one, two = self.tensor(), self.tensor()
        return self.rng.choice([one, one, [one, two], {"a": one, "b": [two]}, (one, (two,))])

    def spec(self) -> Any:
        return self.rng.choice(
            [("data", None), P(None, "model"), (("data", "model"), None), [0, 1]]
        )

    def specs(self) -> Any:
        return self.rng.choice(
            [self.spec(), [P("data", None), P(None, None)], {"a": P(), "b": [P()]}]
        )

    def shards(self) -> list[spmd.Shard]:
        part = torch.ones(4, 4)
        return [spmd.Shard(part, (slice(4 * i, 4 * i + 4), slice(0, 4)), i, 0) for i in range(2)]

    def module(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4)).to("spmd")
        self.made += list(model.parameters())
        return model

    def device_mesh(self) -> DeviceMesh:
        return spmd.dtensor.to_device_mesh(self.mesh)

    def planned(self) -> nn.Module:
        model = self.module()
        model._tp_plan = {"0": "colwise", "1": "rowwise"}  # type: ignore[assignment]
        model._ep_plan = {"*.weight": "grouped_gemm"}  # type: ignore[assignment]
        return model

    def sharding(self) -> spmd.NamedSharding:
        return spmd.NamedSharding(self.mesh, ("data", ("model",)), unreduced=())

    def checkpoint(self) -> str:
        spmd.save("checkpoint", {"w": torch.ones(8, 4)})
        return "checkpoint"

    def pick(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def call(self) -> Any:
        return next(spmd.testing.calls_of(torch.mm, torch.ones(4, 4), torch.ones(4, 4)))


BY_COLUMNS = {"*": ColwiseParallel()}
BY_ROWS = {"0": SequenceParallel(), "1": RowwiseParallel(output_layouts=Shard(0))}


def _table(w: World) -> Any:
    return spmd.debug.Table(("a", "b"), [(1, "x"), (2, "y")], "note")


def _collectives(w: World) -> Any:
    row = spmd.debug.Collective("all_reduce", "x", 4, 1, 8192, 8192, "aten::sum", "")
    return spmd.debug.CollectiveTable(row._fields, [row, row])


def _after_a_run(function: Callable[[], Any]) -> Callable[[World], Any]:
    """What the function says of a program that has run."""

    def table(w: World) -> Any:
        (torch.ones(4).to("spmd") * 2).sum().item()
        return function()

    return table


# By "function.parameter", or by the parameter's name. A public function with a parameter that is
# not here fails the test: add a right argument.
RIGHT: dict[str, Callable[[World], Any]] = {
    "t": World.tensor,
    "x": World.tensor,
    "spmd.mark_sharding.t": World.tree,
    "spmd.mark_sharding.spec": World.specs,
    "mesh": lambda w: w.mesh,
    "mesh_text": lambda w: w.mesh._text,
    "spec": World.spec,
    "spec_text": lambda w: w.pick("('data', None)", "(None, ('data', 'model'))"),
    "shards": World.shards,
    "testing.check_rule.shards": lambda w: w.pick((2, 3), [2], (4,)),
    "testing.Call.check.shards": lambda w: w.pick((2, 3), [2], (4,)),
    "shape": lambda w: (8, 4),
    "spmd.make_mesh.shape": lambda w: w.pick((2, 4), [8], (1, 2, 2)),
    "axis_names": lambda w: w.pick(None, ("a", "b"), ["a"], ("a", "b", "c")),
    "axis_bandwidths": lambda w: w.pick(None, (1, 0.5), [2.0]),
    "mesh_shape": lambda w: w.pick((2, 4), [8]),
    "device_ids": lambda w: w.pick(range(8), [1, 3, 5, 7, 0, 2, 4, 6], np.arange(8).reshape(2, 4)),
    "backend": lambda w: w.pick(None, "cpu"),
    "data": lambda w: torch.ones(4, 4),
    "index": lambda w: w.pick(0, 1, slice(1)),
    "spmd.Shard.index": lambda w: (slice(0, 4), slice(0, 4)),
    "device": lambda w: w.pick(0, "spmd"),
    "stream": lambda w: torch.spmd.current_stream(),
    "replica_id": lambda w: 0,
    "devices": lambda w: w.pick(None, [0, 1]),
    "config.set_backend.devices": lambda w: w.pick(None, 8),
    "name": lambda w: w.pick("data", "model"),
    "config.set_backend.name": lambda w: "cpu",
    "seed": lambda w: w.pick(0, 5, -3, 2**64 - 1),
    "on": lambda w: w.pick(True, False),
    "debug.timeline.on": lambda w: w.pick(None, "v5e-256"),
    "debug.trace_to_chrome.on": lambda w: None,
    "efficiency": lambda w: w.pick(None, 0.5),
    "wait": lambda w: w.pick(True, False, 1),
    "step": lambda w: w.pick(None, False),
    "limit": lambda w: w.pick(None, 1, 10_000),
    "config.update.memory_limit": lambda w: w.pick(None, "64GiB", 2**40),
    "config.update.turns": lambda w: w.pick(None, True, False),
    "config.update.dump": lambda w: "",
    **{
        f"config.update.{name}": lambda w: True
        for name in ("coalesce", "deduplicate", "one_place", "replay", "verify")
    },
    "path": lambda w: w.pick("/dev/null", pathlib.Path("/dev/null")),
    "module": World.module,
    "rules": lambda w: {"0.weight": ("model", None), re.compile(".*bias"): (None,)},
    "materialize": lambda w: False,
    "tree": World.tree,
    "target": lambda w: {"w": w.tensor()},
    "format": lambda w: "spmd",
    "strict": lambda w: w.pick(True, False),
    "cast": lambda w: w.pick(True, False),
    "verify": lambda w: w.pick(True, False),
    "dir": lambda w: "checkpoints",
    "loader": lambda w: torch.utils.data.DataLoader(torch.ones(9, 4), batch_size=4),
    "specs": lambda w: w.pick(None, P("data"), ("data", None)),
    "prefetch": lambda w: w.pick(0, 2),
    "last": lambda w: w.pick("keep", "drop", "pad"),
    "skip": lambda w: w.pick(True, False),
    "spmd.Loader.load_state_dict.state": lambda w: {"position": None},
    "every": lambda w: 1,
    "keep": lambda w: w.pick(None, 1),
    "force": lambda w: w.pick(True, False),
    "state": lambda w: spmd.checkpoint.RandomState().state_dict(),
    "spmd.save.path": lambda w: w.pick("saved", pathlib.Path("saved")),
    "spmd.load.path": World.checkpoint,
    "spmd.load.mesh": lambda w: None,
    "spmd.load.rules": lambda w: None,
    "checkpoint.Checkpointer.save.step": lambda w: w.pick(0, 3),
    "checkpoint.Checkpointer.load.step": lambda w: None,
    "inputs": lambda w: w.pick(None, {"": P("data", None), "*": [None, P("data", None)]}),
    "outputs": lambda w: w.pick(None, {"1": {"x": ("data", None)}, re.compile("0"): None}),
    "model": World.planned,
    "tp": lambda w: w.pick(None, "model"),
    "fsdp": lambda w: w.pick(None, "data"),
    "ep": lambda w: w.pick(None, "model"),
    "f": lambda w: w.pick(None, torch.sin),
    "in_specs": lambda w: w.pick((P("data", None),), P("model", None)),
    "out_specs": lambda w: w.pick(P("data", None), P(None, "model")),
    "check_vma": lambda w: w.pick(True, False),
    "uneven": lambda w: w.pick(True, False),
    "lax.shard_size.size": lambda w: w.pick(0, 6),
    "spmd.shard_map.axis_names": lambda w: w.pick(None, {"data", "model"}, ("data", "model")),
    "axis_name": lambda w: w.pick("data", ("data", "model")),
    "scatter_dimension": lambda w: 0,
    "split_axis": lambda w: 0,
    "concat_axis": lambda w: 1,
    "lax.all_gather.axis": lambda w: w.pick(0, 1),
    "tiled": lambda w: True,
    "perm": lambda w: [(0, 1), (1, 0)],
    "lax.pshuffle.perm": lambda w: [1, 0],
    "source": lambda w: 0,
    "replicate": lambda w: w.pick(None, "model"),
    "param_dtype": lambda w: w.pick(None, torch.bfloat16),
    "reduce_dtype": lambda w: w.pick(None, torch.bfloat16),
    "batch_dim": lambda w: w.pick(None, 0, 1),
    "plan": lambda w: w.pick(BY_COLUMNS, BY_ROWS),
    "build": World.module,
    "batch": lambda w: w.pick(torch.ones(8, 4), [torch.ones(8, 4)], {"input": torch.ones(8, 4)}),
    "planning.auto_shard.on": lambda w: "v5e-8",
    "planning.auto_shard.specs": lambda w: w.pick(None, {"0.weight": ("model", None)}),
    "loss": lambda w: lambda model, *x, **named: model(*x, *named.values()).sum(),
    "optimizer": lambda w: w.pick(None, "sgd"),
    "autocast": lambda w: w.pick(None, "bf16"),
    "is_committed": lambda w: True,
    "is_provisional": lambda w: False,
    "unreduced": lambda w: w.pick((), ("data",)),
    "dims": lambda w: w.pick("data", None, ("data", "model"), 0),
    "other": lambda w: w.mesh,
    "sharded": lambda w: {"weight": P("data")},
    "kept": lambda w: {"bias": P(None)},
    "replicated": lambda w: ["norm"],
    "unmatched": lambda w: ["x.*"],
    "op": lambda w: "aten::mm",
    "spmd.register_rule.op": lambda w: "aten::nothing",
    "text": lambda w: "m k, k n -> m n",
    "kinds": lambda w: w.pick(None, {"k": "sum"}),
    "each": lambda w: w.pick((), [0, 1]),
    "jointly": lambda w: (),
    "local": lambda w: w.pick(None, {}),
    "args": lambda w: torch.ones(4, 4),
    "rtol": lambda w: w.pick(None, 1e-3),
    "atol": lambda w: w.pick(None, 1e-3),
    "unwritten": lambda w: (),
    "function": lambda w: torch.mm,
    "columns": lambda w: ("a", "b"),
    "rows": lambda w: [(1, 2), (3, 4)],
    "note": lambda w: "note",
    "values": lambda w: w.pick(1, True, 0.5, {"aten::sum": 2}, {}, {"x.py:3": False, "": 1}),
    "new_state": lambda w: torch.spmd.get_rng_state(),
    "new_states": lambda w: torch.spmd.get_rng_state_all(),
    "n": lambda w: w.pick(1, 2, 3),
    "axis": lambda w: "data",
    "axes": lambda w: w.pick("data", ("data", "model"), 0),
    "placements": lambda w: w.pick(None, [Shard(0), Replicate()], (Replicate(), Shard(1))),
    "device_mesh": World.device_mesh,
    "device_type": lambda w: "spmd",
    "d": World.tensor,  # a DTensor takes a process group: test_dtensors.py
    "global_shape": lambda w: w.pick(None, (8, 4)),
    "func": lambda w: w.pick(None, torch.sin),
    "in_placements": lambda w: w.pick(None, ([Shard(0), Replicate()],)),
    "out_placements": lambda w: w.pick([Shard(0), Replicate()], ([Partial(), Shard(1)],)),
    "in_grad_placements": lambda w: None,
    "dtensor.local_map.device_mesh": lambda w: w.mesh,
    "redistribute_inputs": lambda w: w.pick(True, False),
    "layers": lambda w: [nn.Linear(4, 4).to("spmd") for _ in range(4)],
    "microbatches": lambda w: w.pick(1, 2, 4),
    "first": lambda w: w.pick(None, torch.relu),
    "nn.pipeline.loss": lambda w: w.pick(None, lambda y, *targets: y.mean()),
    "schedule": lambda w: w.pick("gpipe", "circular", "1f1b"),
    "checkpoint": lambda w: w.pick(True, False),
    "operand": World.tensor,
    "output": World.tensor,
    **dict.fromkeys(
        ("input_offsets", "send_sizes", "output_offsets", "recv_sizes"),
        lambda w: torch.ones(2, dtype=torch.int64, device="spmd"),
    ),
    # Objects of the methods.
    "spmd.Mesh": lambda w: w.mesh,
    "spmd.NamedSharding": World.sharding,
    "spmd.PartitionSpec": lambda w: P("data", None),
    "spmd.P": lambda w: P("data", None),
    "spmd.blocks": lambda w: spmd.blocks(2, "model"),
    "spmd.ShardReport": lambda w: spmd.ShardReport({"weight": P("data")}),
    "spmd.Shard": lambda w: w.shards()[0],
    "checkpoint.Checkpointer": lambda w: spmd.checkpoint.Checkpointer(
        f"checkpoints{w.rng.random()}"
    ),
    "spmd.Loader": lambda w: spmd.Loader(torch.utils.data.DataLoader(torch.ones(9, 4))),
    "checkpoint.RandomState": lambda w: spmd.checkpoint.RandomState(),
    "debug.Table": _table,
    "debug.CollectiveTable": _collectives,
    "debug.MemoryTable": _after_a_run(spmd.debug.memory),
    "debug.TimelineTable": _after_a_run(spmd.debug.timeline),
    "debug.Text": lambda w: spmd.debug.Text("text"),
    "debug.Printed": lambda w: spmd.debug.Printed("text"),
    "testing.Call": World.call,
}
# Plain records: they keep their arguments, which the functions that receive the record check.
RECORDS = {
    "debug.Collective", "debug.LiveValue", "debug.MadeAgain", "debug.CompileEvent",
    "debug.Timed", "testing.Tile", "spmd.Shard", "spmd.ShardReport", "checkpoint.Saving",
    "checkpoint.LoadReport",
}  # fmt: skip
# What PyTorch checks itself.
UNTOUCHED = {"x"}
# Made by functions only; runs functions of the user, whose errors are theirs (test_plan.py has the
# others).
NOT_CALLED = {"testing.Call", "spmd.plan"}


def right(name: str, parameter: str) -> Callable[[World], Any] | None:
    if parameter == "self":
        return RIGHT.get(name.rpartition(".")[0])
    return RIGHT.get(f"{name}.{parameter}") or RIGHT.get(parameter)


def without_arguments() -> list[str]:
    """Parameters of public functions without a right argument in `RIGHT`."""
    return [
        f"{name}: {parameter.name}"
        for name, call in surface().items()
        if name not in RECORDS | NOT_CALLED
        for parameter in parameters(name, call)
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        and right(name, parameter.name) is None
    ]


# --- wrong arguments ---


class Raises:
    """An object whose every method raises an error."""

    def _raise(self, *args: Any) -> Any:
        raise ZeroDivisionError("asked")

    __repr__ = __iter__ = __len__ = __index__ = __getitem__ = __float__ = __bool__ = _raise
    __fspath__ = __str__ = __eq__ = _raise
    __hash__ = object.__hash__


class RaisingDict(dict):
    def items(self) -> Any:
        raise KeyError("items")


class RaisingList(list):
    def __iter__(self) -> Any:
        raise RecursionError("deep")


class OddStr(str):
    def __repr__(self) -> str:
        raise OSError("repr")


def _contains_itself() -> Any:
    result: list[Any] = [1]
    result.append(result)
    return result


def _dict_contains_itself() -> Any:
    result: dict[Any, Any] = {}
    result["a"] = result
    return result


def _deep(n: int) -> Any:
    result: Any = []
    for _ in range(n):
        result = [result]
    return result


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(8, 4)


def _sparse() -> torch.Tensor:
    return torch.eye(4, device="spmd").to_sparse()


def _compressed() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(4).to_sparse_csr()


WRONG: list[Callable[[World], Any]] = [
    lambda w: w.pick(2**63, 2**200, -1, -(2**63) - 1, 2**31, 10**6000, 0, 3, True, False),
    lambda w: w.pick(float("nan"), float("inf"), 1.5, 1j, fractions.Fraction(1, 2), 1e300),
    lambda w: w.pick("", "x", "modle", "\ud800", "a\0b", "x'", "(", "x" * 100_000, OddStr("odd")),
    lambda w: w.pick(b"bytes", bytearray(b"x"), None, ..., slice(None), datetime.date(2000, 1, 1)),
    lambda w: w.pick((), [], {}, set(), frozenset({1}), [[]], [[[None]]], [None], (1, "a")),
    lambda w: w.pick({"a": 1}, {1: 2}, {None: None}, {"a": {"a": 1}}, types.MappingProxyType({})),
    lambda w: w.pick([2**63], [2**200], [-1], [1.5], ["x"], [b"x"], [True], ["\ud800"], ["x", "x"]),
    lambda w: w.pick((2**40,), (2**21,), (2**62, 4), (2**31, 2**31), (0,), (-1, -1), (1,) * 100),
    lambda w: w.pick(
        np.int64(3), np.float32(1.5), np.bool_(True), np.str_("x"), np.datetime64(1, "s")
    ),
    lambda w: w.pick(
        np.array([1.5]), np.arange(6).reshape(2, 3), np.array(3), np.array([object()])
    ),
    lambda w: w.pick(torch.ones(2), torch.ones((), dtype=torch.long), torch.ones(2, device="meta")),
    lambda w: w.pick(_sparse(), _compressed(), _fake(), nn.Parameter(torch.ones(2))),
    lambda w: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    lambda w: w.pick(
        torch.ones(2, device="spmd"), torch.ones(8, 4, device="spmd", requires_grad=True)
    ),
    lambda w: w.pick(torch.Tensor, int, str, dict, spmd.Mesh, P, nn.Linear, spmd.Shard),
    lambda w: w.pick(Raises(), [Raises()], {"a": Raises()}, {Raises(): 1}, RaisingDict(a=1)),
    lambda w: w.pick(RaisingList([1]), [RaisingList()], mock.MagicMock(), object(), len, World),
    lambda w: w.pick((i for i in (2, 4)), itertools.count(), iter([Raises()]), map(int, "1x")),
    lambda w: w.pick(_contains_itself(), _dict_contains_itself(), _deep(50), _deep(5000)),
    lambda w: w.pick(list(range(100_000)), range(2**62), range(10), ["x"] * 50_000, range(0)),
    lambda w: w.pick(w.mesh, w.sharding(), w.spec(), w.shards(), w.module(), spmd.UNCONSTRAINED),
    lambda w: w.pick([w.tensor(), 3], {"a": w.tensor(), "b": torch.ones(2)}, [w.tensor(), _fake()]),
    lambda w: w.pick([w.tensor(), torch.ones(2, 3, 4, device="spmd")], [w.tensor(), None]),
    lambda w: w.pick([P("data", None), P("modle", None)], [P("data", None), P("data", "data")]),
    lambda w: w.pick({"0.weight": ("data",)}, {"0.weight": P(9, None)}, {1: P()}, {"*": "x"}),
    lambda w: w.pick({re.compile(b"x"): P()}, {"*": ("data", None)}, {"*bias": (2**70,)}),
    lambda w: [spmd.Shard(w.pick(None, "x", _fake(), torch.ones(9)), (slice(0, 4),) * 2, 0, 0)],
    lambda w: [spmd.Shard(torch.ones(4), w.pick(None, (3,), (slice(0, 8, 2),) * 2, "ab"), 0, 0)],
    lambda w: [spmd.Shard(torch.ones(4), (slice("a", None), slice(1)), w.pick(2**70, -1, "x"), 0)],
]
# For parameters that are text, which PyTorch's op parser checks.
WRONG_TEXT: list[Callable[[World], Any]] = [
    lambda w: w.pick("", "x", "[", "[x=2", "[x=2] over devices 0..9", "[data=0]", "mesh @m [x=4]"),
    lambda w: w.pick("(", "('x'", "('x',)", "1", "{}", "('data', 1.5)", "(" * 1000, "x()", "None"),
]


# --- calls ---


class Hangs(BaseException):
    pass


@contextlib.contextmanager
def within(seconds: int) -> Any:
    def ring(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# What a message may call a parameter.
ALSO = {
    "t": "tensor|: t", "x": "tensor", "mesh": "Mesh", "spec": "Spec", "mesh_text": "mesh|Mesh",
    "spec_text": "spec|PartitionSpec", "shape": "size|dimension|device", "shards": "shard",
    "dims": "PartitionSpec",
    "op": "op", "kinds": "kind", "device_ids": "device id|devices|shape",
    "mesh_shape": "shape|axis",
    "axis_names": "name", "axis_bandwidths": "bandwidth", "device": "device",
    "new_state": "state|RNG",
    "new_states": "state|RNG|index 0", "rules": "rule|parameter", "unreduced": "axis",
    "name": "axis|backend", "module": "parameter", "limit": "limit",
    "backend": "backend", "text": "rule|text", "path": "does not exist",
}  # fmt: skip
# Errors that are not about an argument, as documented for these functions.
ALSO_RAISED: dict[str, tuple[type, ...]] = {
    "config.set_backend": (RuntimeError,),
    "spmd.save": (OSError, RuntimeError),
    "spmd.load": (OSError, RuntimeError),
    "checkpoint.Checkpointer": (OSError, RuntimeError),
    "debug.collectives": (RuntimeError,),
    "debug.memory": (RuntimeError,),
    "debug.timeline": (RuntimeError,),
    "debug.trace_to_chrome": (OSError,),
    "debug.save_repro": (OSError,),
    "testing.check_rule": (RuntimeError, AssertionError, NotImplementedError, ZeroDivisionError),
    "testing.calls_of": (RuntimeError, TypeError, ValueError, ZeroDivisionError),
    "torch.spmd": (RuntimeError,),
    "torch.ops": (RuntimeError,),
}
# Functions whose arguments go to PyTorch's ops, which have their own errors.
PASSED_ON = ("torch.ops", "testing.check_rule", "testing.calls_of")
NEVER = re.compile(
    "incompatible (function|constructor) arguments|Unable to cast|has no attribute|C\\+\\+ type|"
    "Invoked with|internal error|pybind|not subscriptable|INTERNAL ASSERT"
)


def random_call(seed: int) -> str | None:
    """Makes one call. Returns what is wrong with its outcome, or None."""
    world = World(seed)
    rng = world.rng
    calls = {n: c for n, c in surface().items() if n not in RECORDS | NOT_CALLED}
    name = rng.choice(sorted(calls))
    call = calls[name]
    positional, named, given = [], {}, []
    skip_rest = False
    for parameter in parameters(name, call):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if parameter.name == "self":
            positional.append(right(name, "self")(world))
            continue
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        optional = parameter.default is not inspect.Parameter.empty
        if optional and rng.random() < 0.4:
            skip_rest = True
            continue
        for _ in range(rng.randrange(1, 4) if variadic else 1):
            make = right(name, parameter.name)
            if rng.random() < 0.4 and parameter.name not in UNTOUCHED:
                make = rng.choice(WRONG if not name.startswith("torch.ops") else WRONG_TEXT)
                given.append(parameter.name)
            value = make(world)
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY or skip_rest:
                named[parameter.name] = value
            else:
                positional.append(value)
    before = _marks(world)
    what = f"call {seed}: {name}"
    raised = _raised(call, positional, named)
    if raised is not None:
        wrong = _wrong_with(name, raised, given)
        if wrong:
            return f"{what}, wrong are {given}: {wrong}"
        if _marks(world) != before:
            return f"{what}: it failed and left marks: {type(raised).__name__}: {raised}"
    return None


def _raised(call: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Any:
    settings = spmd.config.current()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            with within(20):
                result = call(*positional, **named)
                if not isinstance(result, torch.Tensor):
                    repr(result)
        except (Exception, Hangs) as error:
            return error
        finally:
            spmd.set_global_mesh(None)
            spmd.config.update(**settings)
    return None


def _marks(world: World) -> list[bool]:
    return [spmd.sharding_of(t).is_committed for t in world.made]


def _wrong_with(name: str, error: BaseException, given: list[str]) -> str | None:
    said = f"{type(error).__name__}: {str(error)[:500]}"
    for start, kinds in ALSO_RAISED.items():
        if (name + ".").startswith(start + ".") and isinstance(error, kinds):
            ours = not name.startswith(PASSED_ON)
            return f"never said: {said}" if ours and NEVER.search(str(error)) else None
    if type(error) not in (ValueError, TypeError, IndexError):
        return said
    if NEVER.search(str(error)):
        return said
    if len(str(error)) > 1500:
        return f"{len(str(error))} characters: {said}"
    if not given:
        return None  # right arguments that do not fit each other
    # If two arguments do not fit each other, the right one may be named.
    own = [p.name for p in parameters(name, surface()[name]) if p.name not in ("t", "x", "self")]
    names = "|".join([*own, *(ALSO.get(n, n) for n in [*own, *given])])
    return None if re.search(names, str(error)) else f"names no argument: {said}"


def still_works() -> None:
    """A good program after bad calls."""
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    x = spmd.mark_sharding(torch.ones(8, 4, device="spmd"), mesh, ("data", "model"))
    assert (x @ x.T).sum().item() == 256
    assert len(spmd.local_shards(x)) == 8
