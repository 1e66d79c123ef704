# SPDX-License-Identifier: Apache-2.0
"""Specs for a model that a search proposes, for a machine on which nothing has to run.

    model = GPT(layers=32, width=4096)                 # on "meta", the CPU or "spmd"
    found = spmd.planning.auto_shard(
        model, batch=(tokens, targets), on="v5e-64", mesh={"data": 8, "model": 8}, autocast="bf16"
    )
    print(found)                                       # the table of what was compared
    mesh = found.make_mesh()
    spmd.shard_module(model, mesh, found)              # it is a dict of specs
    spmd.mark_sharding(tokens, mesh, found.batch_spec(tokens))

A training step of the model (forward, backward, the optimizer's update) is recorded without data.
Candidates are priced by compiling it: the seconds are those of `spmd.debug.timeline`, the bytes
those of `spmd.debug.memory`. What people write by hand is among the candidates: data parallelism,
fully sharded, tensor parallelism, both. From the best of them one parameter after the other is
changed while that helps; equal layers change together, unless memory asks for another choice
(docs/design/0036-auto-shard.md).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _C, _arguments
from torch_spmd.device.hooks import OutOfMemoryError
from torch_spmd.planning import training_step
from torch_spmd.planning.alternatives import Alternative, Estimate, Search
from torch_spmd.planning.search import Axes, batch_spec
from torch_spmd.planning.traced import leaves_of
from torch_spmd.sharding import drawing
from torch_spmd.sharding.global_mesh import read_mesh
from torch_spmd.sharding.mesh import Mesh, make_mesh
from torch_spmd.sharding.modules import Pattern, read_rules
from torch_spmd.sharding.spec import PartitionSpec, SpecLike

MOST_MODEL = 64  # devices of the second axis of a mesh that is chosen


class Proposal(dict[str, PartitionSpec]):
    """The specs by parameter, which `shard_module` takes, and what a step takes with them.

    `mesh` has the sizes of the axes by name, `batch` the axes over which dimension 0 of the batch
    is sharded. `runner_up` is the next best of the `alternatives` (None if there is one only), and
    `why` says why it lost. Printed, it is the table of the alternatives.
    """

    mesh: dict[str, int]
    batch: Axes
    estimate: Estimate
    runner_up: Alternative | None
    why: str
    alternatives: list[Alternative]

    def __init__(self, alternatives: Sequence[Alternative], mesh: Mesh | None = None) -> None:
        best = alternatives[0]
        super().__init__(best.specs)
        self.mesh, self.batch, self.estimate = best.mesh, best.batch, best.estimate
        self.alternatives = list(alternatives)
        self.runner_up = alternatives[1] if len(alternatives) > 1 else None
        self.why = _why(best, self.runner_up)
        self._given = mesh

    def make_mesh(self) -> Mesh:
        """The mesh, over the first devices of the backend; the given one if one was given."""
        if self._given is not None:
            return self._given
        return make_mesh(tuple(self.mesh.values()), tuple(self.mesh))

    def batch_spec(self, tensor: Tensor) -> PartitionSpec:
        """The spec of a tensor of the batch: dimension 0 over the axes of `batch`.

        Errors: TypeError if it is no tensor.
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"batch_spec: tensor must be a tensor; got {_arguments.shown(tensor)}")
        return batch_spec(self.batch, tensor.dim())

    def __str__(self) -> str:
        rows = [_row(alternative) for alternative in self.alternatives]
        columns = ("", "mesh", "batch over", "ms", "waiting ms", "MFU %", "peak MiB", "sent MiB")
        return drawing.table(columns, rows, self.why)

    __repr__ = __str__


def auto_shard(
    build: nn.Module | Callable[[], nn.Module],
    *,
    batch: Any,
    on: str | None = None,
    mesh: Mesh | Mapping[str, int] | str = "auto",
    specs: Mapping[Pattern, SpecLike] | None = None,
    loss: Callable[..., Tensor] | None = None,
    optimizer: str | Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = "adamw",
    autocast: str | torch.dtype | None = None,
) -> Proposal:
    """Proposes specs for the parameters of a model, and axes for the batch, on a machine.

    Nothing runs and nothing is changed: the model may be on `meta`, on the CPU or on `spmd`, and a
    step of it is recorded without data. Parameters that are marked keep their marks, and marks in
    the model's code hold. Of what fits the memory of the machine's devices, the fastest that was
    found is returned. The first few of `alternatives` were compiled whole (`is_whole`); the times
    and bytes of the others are extrapolated from steps with one and with two of equal layers.

    Args:
        build: the model, or a function that makes it (called with `meta` as the default device).
        batch: what the model is called with: a tensor, a tuple of them, or a dict by name. Only
            shapes and types matter, which are those of the batch of all devices together.
        on: the machine: a TPU slice ("v5e-256") or GPUs ("8xh100"); that of the backend if it is
            None and the backend simulates one.
        mesh: the axes and their sizes, or a Mesh; "auto" tries one axis, "data", and two, "data"
            and "model", over all devices. A mesh in which parameters or values are marked is kept.
        specs: rules as `shard_module` takes them, for parameters that are not free.
        loss: called as loss(model, *batch); without it, the loss is what the model returns, or the
            attribute `loss` of that.
        optimizer: "adamw", "adam", "adafactor", "momentum" or "sgd", or a function that makes an
            optimizer of a list of parameters; None: the step ends with the gradients.
        autocast: "bf16", "f16" or a dtype, in which the forward pass computes.

    Errors:
        TypeError: an argument of another kind.
        ValueError: a machine or a dtype that is not known; a mesh of other devices than the
            machine's; a spec that does not fit; a result that is no loss.
        OutOfMemoryError: nothing that was tried fits; the message has the least that is needed.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from torch import nn
        >>> with torch.device("meta"):
        ...     model = nn.Sequential(
        ...         nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)
        ...     )
        ...     x = torch.empty(65536, 4096)
        >>> found = spmd.planning.auto_shard(
        ...     model,
        ...     batch=x,
        ...     on="v5e-8",
        ...     mesh={"data": 2, "model": 4},
        ...     loss=lambda model, x: model(x).square().mean(),
        ... )
        >>> found["0.weight"], found["2.weight"], found.batch
        (P(('data', 'model'), None), P(None, ('data', 'model')), ('data', 'model'))
        >>> found.estimate.fits, found.estimate.seconds <= found.runner_up.estimate.seconds
        (True, True)
    """
    found = best_on(build, batch, on, mesh, specs, loss, optimizer, autocast)
    best = found.alternatives[0].estimate
    if not best.fits:
        raise OutOfMemoryError(
            f"auto_shard: nothing that was tried fits the {best.memory_bytes / 2**30:.2f} GiB of a "
            f"device of {known_machine(on)['name']}; the least is {best.peak_bytes / 2**30:.2f} "
            f"GiB, {_axes_text(found.alternatives[0].mesh)}, {found.alternatives[0].origin}: take "
            "more devices, a smaller batch, or checkpointing"
        )
    return found


def best_on(
    build: nn.Module | Callable[[], nn.Module],
    batch: Any,
    on: str | None,
    mesh: Mesh | Mapping[str, int] | str,
    specs: Mapping[Pattern, SpecLike] | None,
    loss: Callable[..., Tensor] | None,
    optimizer: str | Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
    autocast: str | torch.dtype | None,
) -> Proposal:
    """As `auto_shard`, whether it fits or not: then what needs least."""
    machine = known_machine(on)
    step = training_step.read("auto_shard", batch, loss, optimizer, autocast)
    model = _built(build)
    leaves = leaves_of(model)
    fixed = {} if specs is None else read_rules("auto_shard", specs)
    meshes, given = meshes_to_try(mesh, machine["devices"], model)
    nothing_waits = _C.sizes()["pending_records"] == 0
    try:
        alternatives = Search(model, leaves, fixed, step, machine).alternatives(meshes)
    finally:
        if nothing_waits:
            _forget()
    return Proposal(alternatives, given)


def _forget() -> None:
    """Ends the tape. Nothing of the trace runs: what nobody holds is dropped, and what the model
    keeps of it is lost."""
    gc.collect()  # an optimizer and its state are a cycle
    with contextlib.suppress(NotImplementedError):
        _C.sync(False)


def _why(best: Alternative, other: Alternative | None) -> str:
    if other is None:
        return "nothing else was compared"
    name = f"the next best ({other.origin}, {_axes_text(other.mesh)})"
    a, b = best.estimate, other.estimate
    if not b.fits:
        return f"{name} needs {b.peak_bytes / 2**30:.2f} GiB of {b.memory_bytes / 2**30:.2f}"
    if b.seconds == a.seconds:
        return f"{name} takes as long and needs {(b.peak_bytes - a.peak_bytes) / 2**20:+.1f} MiB"
    waiting = b.exposed_seconds - a.exposed_seconds
    more = b.seconds - a.seconds
    return (
        f"{name} takes {1e3 * more:.3g} ms more ({100 * more / a.seconds:.1f} %): "
        f"{1e3 * waiting:+.3g} ms of waiting for communication, {1e3 * (more - waiting):+.3g} ms "
        "of computation"
    )


def _axes_text(mesh: Mapping[str, int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in mesh.items())


def _row(a: Alternative) -> list[str]:
    e = a.estimate
    return [
        a.origin
        + ("" if a.is_whole else " (by few layers)")
        + ("" if e.fits else ", does not fit"),
        _axes_text(a.mesh),
        ", ".join(a.batch) or "none",
        f"{1e3 * e.seconds:.3f}",
        f"{1e3 * e.exposed_seconds:.3f}",
        f"{100 * e.mfu:.1f}",
        f"{e.peak_bytes / 2**20:.1f}",
        f"{e.wire_bytes / 2**20:.1f}",
    ]


# --- arguments ---


def known_machine(on: str | None) -> dict[str, Any]:
    """Its name, how many devices it has, and their memory. None: what the backend simulates."""
    if on is None:
        kind, _, rest = _C.backend_name().partition(":")
        on = rest.split(":")[0]
        if not kind.startswith("mock_"):
            raise ValueError(
                f"auto_shard: on: the backend {_C.backend_name()!r} is no machine that is known; "
                "name one, such as on='v5e-8' or on='8xh100'"
            )
    on = _arguments.text("auto_shard", "on", on)
    try:
        return _C.machine(on)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"auto_shard: on: {str(error)[:400]}") from None


def _built(build: Any) -> nn.Module:
    model = build
    if not isinstance(build, nn.Module):
        other_class = isinstance(build, type) and not issubclass(build, nn.Module)
        if other_class or not callable(build):
            raise TypeError(
                "auto_shard: build must be an nn.Module or a function that makes one; got "
                f"{_arguments.shown(build)}"
            )
        with torch.device("meta"):
            model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"auto_shard: build made no nn.Module but {_arguments.shown(model)}")
    if not any(True for _ in model.parameters()):
        raise ValueError("auto_shard: build: the model has no parameters")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"auto_shard: build: parameter {name!r} has no shape yet; run the module once"
            )
    return model


def meshes_to_try(mesh: Any, devices: int, model: nn.Module) -> tuple[list[_C.Mesh], Mesh | None]:
    """Those to try, and the one that was given or in which parameters are marked."""
    from torch_spmd.sharding.marks import mark_of

    mesh = read_mesh(mesh)
    for parameter in model.parameters():
        if parameter.device.type == "spmd" and (found := mark_of(parameter)):
            if isinstance(mesh, str) and mesh == "auto":
                mesh = found.mesh
            break
    if isinstance(mesh, Mesh):
        shape, names = list(mesh.mesh_shape), list(mesh.axis_names)
    elif isinstance(mesh, str):
        if mesh != "auto":
            given = _arguments.plain(_arguments.text("auto_shard", "mesh", mesh))
            raise ValueError(f"auto_shard: mesh {given} is not known; give a mapping, or 'auto'")
        found_meshes = [_core([devices], ["data"])]
        for model_size in range(2, min(MOST_MODEL, devices // 2) + 1):
            if devices % model_size == 0:
                found_meshes.append(_core([devices // model_size, model_size], ["data", "model"]))
        return found_meshes, None
    else:
        sizes = _arguments.mapping("auto_shard", "mesh", mesh, "a mapping from names to sizes")
        names = [_arguments.text("auto_shard", "a name of mesh", name) for name in sizes]
        shape = [
            _arguments.integer("auto_shard", f"mesh[{name!r}]", size, 1)
            for name, size in sizes.items()
        ]
    total = 1
    for size in shape:
        total *= size
    if total > devices or devices % total:
        raise ValueError(
            f"auto_shard: mesh {_axes_text(dict(zip(names, shape)))} has {total} devices, which do "
            f"not divide the {devices} of the machine"
        )
    if isinstance(mesh, Mesh):
        return [mesh._core], mesh
    try:
        return [_core(shape, names)], None
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"auto_shard: mesh: {str(error)[:400]}") from None


def _core(shape: list[int], names: list[str]) -> _C.Mesh:
    count = 1
    for size in shape:
        count *= size
    return _C.Mesh(list(range(count)), shape, names)
