# SPDX-License-Identifier: Apache-2.0
"""Saves and loads trees of tensors, modules and optimizers (docs/checkpoints.md)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_spmd import _arguments, _loading
from torch_spmd.processes import agreement
from torch_spmd.sharding import modules
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_sharding
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import SpecLike
from torch_spmd.state import export, parts, randomness, sources, targets, tree, writing
from torch_spmd.state.files import CheckpointError, folder_at
from torch_spmd.state.names import Names

_loading.refuse_reload(__name__, globals(), "Saving")

FORMATS = ("spmd", "safetensors", "hub", "dcp")


class Saving(NamedTuple):
    """A save that may still run. `copied` is done when later steps can no longer change what is
    saved, which is so when `save` returns; `written` when the checkpoint is complete. `result()` of
    either waits, and raises what went wrong."""

    copied: Future[None]
    written: Future[None]


class LoadReport(NamedTuple):
    """What the last load of this process read: bytes that its tensors need, bytes that were read
    for them, bytes that were read before that to check digests, and names that were saved and that
    the target does not have."""

    bytes_needed: int
    bytes_read: int
    bytes_checked: int
    left_out: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Bytes read over bytes needed."""
        return self.bytes_read / self.bytes_needed if self.bytes_needed else 1.0


class RandomState:
    """The states of the random numbers of the device, PyTorch, Python, and numpy if it is in use,
    as a part of a tree that is saved and loaded. In a job whose processes draw different numbers on
    the host, those of each are saved; a process that was not there gets those of process 0.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> path = tempfile.mkdtemp()
        >>> _ = spmd.save(path, {"random": spmd.checkpoint.RandomState()})
        >>> drawn = torch.randn(2), torch.randn(2, device="spmd")
        >>> _ = spmd.load(path, {"random": spmd.checkpoint.RandomState()})
        >>> (
        ...     torch.equal(drawn[0], torch.randn(2)),
        ...     torch.equal(drawn[1], torch.randn(2).to("spmd")),
        ... )
        (True, False)
    """

    def state_dict(self) -> dict[str, Any]:
        """The states, as a tree that can be saved."""
        device: Any = torch.spmd  # type: ignore[attr-defined]
        return {**randomness.host_state(), "spmd": device.get_rng_state()}

    def state_of_job(self) -> dict[str, Any]:
        """The states of all processes, which all call it: what `save` saves."""
        state = self.state_dict()
        if agreement.count() > 1:
            mine = randomness.to_json(randomness.host_state())
            every = agreement.ask(mine, "saves the states of random numbers")
            if any(theirs != every[0] for theirs in every):
                state["processes"] = [randomness.from_json(theirs) for theirs in every]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the states that `state_dict` returned.

        Errors: TypeError or ValueError for another value.
        """
        what = "what RandomState.state_dict returned"
        given = _arguments.mapping("load_state_dict", "state", state, what)
        if not {"torch", "spmd", "python"} <= set(given):
            raise ValueError(
                f"load_state_dict: state must be {what}; got {_arguments.shown(state)}"
            )
        try:
            torch.spmd.set_rng_state(given["spmd"])  # type: ignore[attr-defined]
            every = given.get("processes", [])
            rank = agreement.rank()
            randomness.set_host_state(every[rank] if rank < len(every) else given)
        except Exception as error:
            raise ValueError(f"load_state_dict: state must be {what}: {error}") from error


def save(path: Any, tree: Any, *, wait: bool = True, format: str = "spmd") -> Saving:
    """Saves a tree: dicts, lists and tuples of tensors, numbers and text, and of objects with
    `state_dict` (modules, optimizers, schedulers, loaders, RandomState); or one of these.

    The folder has the checkpoint that was there before until the new one is complete. Every process
    writes the parts of its devices once, part by part, as files of safetensors; `manifest.json`
    says which box of which tensor is where, with digests. Nothing is pickled.

    Args:
        path: a folder, or a URL that fsspec knows ("s3://…", "memory://…").
        tree: what is saved.
        wait: False returns when nothing can change any more what is saved, and writes while
            training goes on. What goes wrong is raised by `written.result()`, or by the next call
            of save or load.
        format: "spmd"; "safetensors", one file that is called `path`; "hub", the files and the
            index of Hugging Face's hub; "dcp", PyTorch's torch.distributed.checkpoint.

    Errors:
        TypeError: an object that has neither `state_dict` nor a form in JSON.
        ValueError: a tensor without values (meta), a tree that contains itself, a folder that has a
            checkpoint of another form, which `load` would go on reading.
        OSError: a file cannot be written; then nothing is changed.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> path = tempfile.mkdtemp()
        >>> model = torch.nn.Linear(4, 4).to("spmd")
        >>> _ = spmd.save(path, {"model": model, "step": 7})
        >>> spmd.load(path, {"model": model, "step": 0})["step"]
        7
    """
    name = _arguments.path("save", "path", path)
    wait = _arguments.boolean("save", "wait", wait)
    format = _arguments.text("save", "format", format)
    if format not in FORMATS:
        raise ValueError(f"save: format must be one of {FORMATS}; got {_arguments.plain(format)}")
    what = f"saves a checkpoint to {name!r}"
    agreement.meet(what)
    _last.join()
    write = _writer(name, tree, wait, format, what)
    if wait:
        write()
        return Saving(_done(), _done())
    return Saving(_done(), _last.start(name, write))


def _writer(path: str, value: Any, wait: bool, format: str, what: str) -> Callable[[], None]:
    """A function that writes what the tree is now."""
    error: BaseException | None = None
    try:
        encoder = tree.Encoder("save", Names(value))
        node = encoder.encode(value)
        tensors = {key: parts.resolved(tensor) for key, tensor in encoder.tensors.items()}
        if format in ("safetensors", "hub"):
            export.check_flat(node, tensors)
        elif format == "dcp":
            export.check_readable(node)
        folder = folder_at(path)
    except BaseException as raised:
        error = raised
    agreement.raise_any_in_scripts(error, what)
    if not wait:
        tensors = writing.snapshot(tensors)
    elif agreement.count() > 1:
        tensors = parts.readable(tensors)

    def write() -> None:
        with agreement.doing(what):
            if format == "dcp":
                writing.check_alike(tensors)
                export.to_dcp(path, node, tensors)
            elif format == "spmd":
                writing.write(folder, node, tensors)
            else:
                export.to_safetensors(path, tensors, sharded=format == "hub")

    return write


class _Last:
    """The save of this process that was begun last."""

    def __init__(self) -> None:
        self._written: Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._path = ""

    def start(self, path: str, write: Callable[[], None]) -> Future[None]:
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()

        def run() -> None:
            try:
                write()
            except BaseException as error:
                written.set_exception(error)
            else:
                written.set_result(None)

        # No daemon: the process ends when the checkpoint is written.
        self._thread = threading.Thread(target=run, name=agreement.WRITER)
        self._written, self._path = written, path
        self._thread.start()
        return written

    def forget(self, written: Future[None]) -> None:
        """Somebody else has waited for it, and has seen what went wrong."""
        if self._written is written:
            self._written = None

    def join(self) -> None:
        """Waits for it. Errors: RuntimeError, once, if it failed."""
        written, self._written = self._written, None
        if written is None:
            return
        error = written.exception()
        if error is not None:
            raise RuntimeError(f"the last save, to {self._path!r}, failed: {error}") from error


_last = _Last()


def forget(saving: Saving) -> None:
    """What went wrong with it is not raised by later calls."""
    _last.forget(saving.written)


_report: LoadReport | None = None


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


def load(
    path: Any,
    target: Any,
    *,
    strict: bool = True,
    cast: bool = False,
    verify: bool = True,
    mesh: Mesh | None = None,
    rules: Mapping[Any, SpecLike] | None = None,
) -> Any:
    """Loads into a tree or a module what was saved, on any mesh; returns the tree.

    Tensors are overwritten in place and keep their marks; each process reads the byte ranges that
    its devices need. Modules, optimizers and objects with `load_state_dict` are loaded; state of
    optimizers keeps its dtype and goes to the parameter of the same name in the tree. Numbers,
    text and tuples are replaced in the dicts and lists that hold them. The tree names what is
    loaded, so a value that is to be replaced needs a placeholder: `{"step": 0}`. If anything is
    missing, altered or does not fit, nothing is changed.

    Reads what `save` wrote, checkpoints of torch.distributed.checkpoint (DistributedDataParallel,
    FSDP, torchtitan), and files of safetensors: one, a folder, or the hub's form with an index.

    Args:
        path: the folder or file, or a URL that fsspec knows.
        target: a module, an optimizer, or a tree of these, tensors and placeholders. Parameters
            on `meta` are created on `spmd`, as `rules` say.
        strict: False leaves out what was saved and the target does not have.
        cast: True converts tensors to the target's dtypes.
        verify: False does not check digests, which takes reading what is needed twice.
        mesh, rules: as for `shard_module`, for parameters on `meta`.

    Errors:
        CheckpointError: a file is missing, truncated, altered or cannot be read, or there is no
            checkpoint. If the disk fails while tensors are filled, it names those that have been.
        ValueError: a name, a shape or a dtype does not fit; all that do not are named.
        TypeError: an argument of another kind.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> path = tempfile.mkdtemp()
        >>> two, four = (spmd.make_mesh((n,), ("x",)) for n in (2, 4))
        >>> rows = spmd.mark_sharding(
        ...     torch.arange(8.0).view(4, 2).to("spmd"), two, ("x", None)
        ... )
        >>> _ = spmd.save(path, {"w": rows})
        >>> w = spmd.mark_sharding(torch.zeros(4, 2).to("spmd"), four, ("x", None))
        >>> spmd.load(path, {"w": w})["w"].tolist()
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    """
    global _report
    name = _arguments.path("load", "path", path)
    strict = _arguments.boolean("load", "strict", strict)
    cast = _arguments.boolean("load", "cast", cast)
    verify = _arguments.boolean("load", "verify", verify)
    place = _placer(mesh, rules)
    what = f"loads the checkpoint {name!r}"
    agreement.meet(what)
    with agreement.doing(what):
        _last.join()
        error: Exception | None = None
        try:
            source = sources.open_source(name)
            plan = targets.Plan(source, cast, place, Names(target))
            result = plan.item(target, source.tree, "")
            targets.compare(plan, "load", name, strict)
        except Exception as raised:
            error = _of_checkpoint(raised)
        agreement.raise_any(error)
        try:
            plan.prepare()
        except Exception as raised:  # no memory, say
            error = raised
        agreement.raise_any_in_scripts(error, what)
        try:
            source.check(plan.wanted, verify)
        except Exception as raised:
            error = _of_checkpoint(raised)
        agreement.raise_any(error)
        try:
            plan.run()
        except Exception as raised:
            if plan.all_know:
                raise
            error = raised
        agreement.raise_any(error)
    counts = source.counts
    _report = LoadReport(counts.needed, counts.read, counts.checked, tuple(plan.extra))
    return result()


def _of_checkpoint(error: Exception) -> Exception:
    if not isinstance(error, OSError):
        return error
    found = CheckpointError(f"load: {error}")
    found.__cause__ = error
    return found


def _placer(mesh: Mesh | None, rules: Any) -> Callable[[str, Tensor], Tensor]:
    """Where parameters on `meta` come to be."""
    if rules is None:
        if mesh is not None:
            raise ValueError("load: a mesh was given without rules; give both, or neither")
        return lambda name, host: host.to("spmd")
    mesh = mesh_or_global("load", mesh)
    specs = modules.read_rules("load", rules)

    def place(name: str, host: Tensor) -> Tensor:
        spec = modules.matching_spec(specs, [name])
        return mark_sharding(host.to("spmd"), mesh, (None,) * host.dim() if spec is None else spec)

    return place


def last_load() -> LoadReport | None:
    """What the last `load` of this process read; None if there was none.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> path = tempfile.mkdtemp()
        >>> _ = spmd.save(path, {"w": torch.ones(4)})
        >>> _ = spmd.load(path, {"w": torch.zeros(4)})
        >>> report = spmd.checkpoint.last_load()
        >>> report.bytes_needed, report.bytes_read, report.ratio
        (16, 16, 1.0)
    """
    return _report


__all__ = [
    "CheckpointError",
    "LoadReport",
    "RandomState",
    "Saving",
    "last_load",
    "load",
    "save",
]
