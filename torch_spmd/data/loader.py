# SPDX-License-Identifier: Apache-2.0
"""Batches of a DataLoader, on the device and sharded, ahead of the steps that use them."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _arguments, _loading
from torch_spmd.data.batches import (
    checked_specs,
    digest,
    fields_of,
    first_spec,
    generators,
    length_of,
    moves_itself,
    part_of_specs,
    random_state_of,
    rebuilt,
    rows_of,
    set_own_random_state,
)
from torch_spmd.data.epochs import (
    Batches,
)
from torch_spmd.data.local_rows import (
    OwnBatch,
    OwnRows,
    batch_skipper,
    behind,
    row_specs,
)
from torch_spmd.processes import agreement
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_sharding
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.spec import PartitionSpec, is_spec, of_rank, to_spec
from torch_spmd.state import randomness

_loading.refuse_reload(__name__, globals(), "Loader")

_LAST = ("keep", "drop", "pad")

_POSITION = {"loader", "batches", "random"}


class Loader:
    """Iterates over a DataLoader: each batch is moved to `spmd` and marked, `prefetch` of them
    ahead, in a thread, while the step before runs.

    Args:
        loader: a torch DataLoader, a StatefulDataLoader, or anything that can be iterated over
            more than once; its batches are trees (dicts, lists, tuples, dataclasses) with tensors
            on the host. Other values pass through; those with a method `to`, such as a
            PackedSequence, are moved by it.
        specs: how tensors are sharded: one spec for all of them, or a tree of specs of the form of
            a batch, in which None means no mark. A spec that is shorter than a tensor's rank leaves
            the last dimensions whole: P("data"). None: no tensor is marked.
        prefetch: how many batches are ready ahead; 0: none, and there is no thread. Datasets that
            draw PyTorch's random numbers in this process (num_workers=0) need 0 to be
            reproducible.
        mesh: the mesh; None means the global one.
        last: what happens to a last batch with fewer rows: "keep", "drop", or "pad" with zeros.
            With "pad", items are pairs (batch, mask), and the mask is false for rows that were
            added.
        skip: True says that the dataset gives the same row whenever it is asked for an index: it
            draws no random numbers in its workers. Then a position is found again without reading
            what was taken, with workers, too, but for the last batch: in one process, that is
            read again and compared.

    The position is state: `state_dict` and `load_state_dict` go on behind the last batch that was
    taken, whatever was read ahead; `spmd.save` and `spmd.load` take a Loader. A loader without
    state_dict of its own begins the epoch again, with the same random numbers, and goes on behind
    that batch: a DataLoader without workers, or with `skip`, only draws indices until there, others
    read. The random numbers are those of PyTorch, Python and numpy, and those of generators that
    the loader or its samplers have.

    One iteration at a time: a second one ends the first, which then raises an error.

    In a job of several processes all of them iterate, and get the same batches as one process. Each
    reads only the rows that its devices hold, if the loader is a DataLoader of a dataset with
    indices and PyTorch's own collate function, and every value of a batch is a tensor whose spec
    shards the rows; otherwise each reads whole batches.

    What the dataset or its workers raise is raised where its batch is asked for, in all processes.

    Errors: TypeError, ValueError for arguments of another kind, and for specs that do not fit a
    batch, when it is asked for. RuntimeError if the processes draw different batches, or if the
    last batch before a position is another one with `skip`.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> mesh = spmd.make_mesh((4,), ("data",))
        >>> rows = [{"x": torch.full((3,), float(i)), "y": i} for i in range(10)]
        >>> host = torch.utils.data.DataLoader(rows, batch_size=4)
        >>> for batch in spmd.Loader(host, spmd.P("data"), mesh=mesh):
        ...     print(tuple(batch["x"].shape), spmd.sharding_of(batch["x"]).spec)
        (4, 3) P('data', None)
        (4, 3) P('data', None)
        (2, 3) P('data', None)
    """

    def __init__(
        self,
        loader: Any,
        specs: Any = None,
        *,
        prefetch: int = 2,
        mesh: Mesh | None = None,
        last: str = "keep",
        skip: bool = False,
    ) -> None:
        if isinstance(loader, (str, bytes, type)) or not hasattr(type(loader), "__iter__"):
            raise TypeError(
                f"Loader: loader must be a DataLoader, or something else to iterate over; got "
                f"{_arguments.shown(loader)}"
            )
        if hasattr(type(loader), "__next__"):
            raise TypeError(
                "Loader: loader must be something to iterate over more than once; got the "
                f"iterator {_arguments.shown(loader)}"
            )
        self._loader = loader
        self._prefetch = _arguments.integer("Loader", "prefetch", prefetch, 0, 1 << 10)
        self._last = _arguments.text("Loader", "last", last)
        if self._last not in _LAST:
            raise ValueError(f"Loader: last must be one of {_LAST}; got {_arguments.plain(last)}")
        self._skip = _arguments.boolean("Loader", "skip", skip)
        if mesh is not None or specs is not None:
            mesh = mesh_or_global("Loader", mesh)
        self._mesh = mesh
        self._specs = checked_specs(specs, "specs")
        self._own: OwnRows | None = None  # reads the rows of this process only
        by_row = row_specs(self._specs)
        if by_row is not None and agreement.count() > 1 and OwnRows.fits(loader):
            assert mesh is not None
            self._own = OwnRows(loader, mesh, by_row, self._last)
        self._rows: int | None = None  # of a full batch
        self._state: Any = None  # behind the last batch that was taken
        self._resume: Any = None
        self._running: weakref.ref[Batches] | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch. Errors: TypeError if the loader has no length."""
        count = len(self._loader)
        rows, size = length_of(getattr(self._loader, "sampler", None)), self._batch_size()
        if self._last == "drop" and rows is not None and size is not None and rows % size:
            count -= 0 if getattr(self._loader, "drop_last", False) else 1
        return count

    def __iter__(self) -> Iterator[Any]:
        running = self._running() if self._running is not None else None
        if running is not None:
            running.leave()  # of an epoch that was left
        batches = Batches(self)
        self._running = weakref.ref(batches)
        return batches

    # --- the position ---

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last batch that was taken."""
        position = self._state if self._resume is None else self._resume
        if position is None and self._loaders_state() is None:
            own = [randomness.generator_state(g) for g in generators(self._loader)]
            if own:  # whose next epoch goes on where the last one ended
                position = {"loader": None, "batches": 0, "random": {"own": own}}
        return {"position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there.

        Errors: TypeError or ValueError for what no `state_dict` of a Loader returned.
        """
        what = "what Loader.state_dict returned"
        given = _arguments.mapping("load_state_dict", "state", state, what)
        position = given.get("position", given)
        right = position is None or (isinstance(position, Mapping) and set(position) == _POSITION)
        if set(given) != {"position"} or not right:
            raise ValueError(
                f"load_state_dict: state must be {what}; got {_arguments.shown(state)}"
            )
        self._resume = position
        if position is None:
            self._state = None

    def _batch_size(self) -> int | None:
        size = getattr(self._loader, "batch_size", None)
        return size if isinstance(size, int) else None

    def _begin(self) -> tuple[Iterator[Any], int, Any]:
        """The loader's iterator, how many batches of the epoch are behind it, and the random
        numbers at the epoch's beginning."""
        begun = self._begin_at(self._resume)
        self._resume = None
        return begun

    def _begin_at(self, resume: Any) -> tuple[Iterator[Any], int, Any]:
        stateful = callable(getattr(self._loader, "load_state_dict", None))
        if resume is not None and resume["loader"] is not None and stateful:
            self._loader.load_state_dict(resume["loader"])
            return iter(self._loader), resume["batches"], None
        if resume is not None and resume["random"] is not None:
            set_own_random_state(self._loader, resume["random"]["own"])
            if "torch" not in resume["random"]:
                resume = None  # at the end of an epoch
        if resume is None or (resume["batches"] == 0 and resume["random"] is None):
            begin = random_state_of(self._loader)
            return iter(self._reader()), 0, begin
        if resume["random"] is None:
            raise ValueError(
                "Loader: the position was saved of a loader with load_state_dict, which this one "
                "has not"
            )
        begin = dict(resume["random"])
        seen = begin.pop("seen", None)
        now = randomness.host_state()
        randomness.set_host_state(begin)
        try:
            iterator = self._begin_behind(resume["batches"], seen)
        finally:
            randomness.set_host_state(now)
        return iterator, resume["batches"], begin

    def _begin_behind(self, count: int, seen: str | None) -> Iterator[Any]:
        """An iterator over what follows on the first batches. Without workers a dataset with
        indices is not asked for these; workers are, since each has random numbers of its own, if
        the user does not say that they draw none."""
        if self._own is not None:
            return self._own.begin_behind(count, self._skip)
        if self._checks_skip() and count > 0:
            rest = behind(self._loader, count if seen is None else count - 1)
            if rest is not None:
                iterator = iter(rest)
                if seen is not None and digest(next(iterator, None)) != seen:
                    raise RuntimeError(
                        "Loader: skip=True says that the dataset gives the same rows again, but "
                        "the last batch before the position is not the one that was taken there; "
                        "leave skip out if the dataset draws random numbers"
                    )
                return iterator
        iterator = iter(self._loader)
        skip = batch_skipper(iterator) or (lambda: next(iterator))
        with contextlib.suppress(StopIteration):
            for _ in range(count):
                skip()
        return iterator

    def _checks_skip(self) -> bool:
        return self._skip and getattr(self._loader, "num_workers", 0) > 0

    def _reader(self) -> Any:
        return self._loader if self._own is None else self._own

    def _loaders_state(self) -> Any:
        state = getattr(self._loader, "state_dict", None)
        return state() if callable(state) else None

    # --- a batch ---

    def _ready(self, batch: Any) -> Any:
        """The batch on the device; None if it is dropped."""
        rows = rows_of(batch)
        if self._rows is None:
            self._rows = self._batch_size() or rows
        full = self._rows
        if rows is None or full is None:
            full = rows = 0
        if self._last == "drop" and rows < full:
            return None
        padded = full if self._last == "pad" else 0

        def move(item: Tensor, specs: Any, where: str) -> Tensor:
            if item.dim() and 0 < item.shape[0] < padded:
                more = item.new_zeros((padded - item.shape[0], *item.shape[1:]))
                item = torch.cat([item, more])
            return self._on_device(item, specs, where)

        moved = self._moved(batch, self._specs, "", move)
        return self._with_mask(moved, rows, max(rows, full))

    def _together(self, batch: OwnBatch) -> Any:
        """The batch of which each process has read its rows. Collective."""

        def move(item: Tensor, specs: Any, where: str) -> Tensor:
            assert self._mesh is not None
            return batch.on_device(item, self._mesh, self._spec_of(item, specs, where))

        moved = self._moved(batch.tree, self._specs, "", move)
        return self._with_mask(moved, batch.size, batch.full)

    def _with_mask(self, moved: Any, rows: int, full: int) -> Any:
        if self._last != "pad":
            return moved
        mask = torch.arange(full, device="cpu") < rows
        return moved, self._on_device(mask, self._mask_spec(), "the mask")

    def _mask_spec(self) -> Any:
        """The mask is sharded as the rows of the first tensor that has a spec."""
        found = first_spec(self._specs)
        return None if found is None else PartitionSpec(*found[:1])

    def _moved(self, item: Any, specs: Any, where: str, move: _Move) -> Any:
        """The tree with `move(tensor, specs, where)` for each tensor."""
        if isinstance(item, Tensor):
            return move(item, specs, where or "the batch")
        if moves_itself(item):
            return item.to("spmd")
        if isinstance(item, Mapping):
            moved = {
                key: self._moved(v, part_of_specs(specs, key, where), f"{where}[{key!r}]", move)
                for key, v in item.items()
            }
            return moved if type(item) is dict else rebuilt(item, moved)
        if isinstance(item, (list, tuple)):
            moved_items = [
                self._moved(v, part_of_specs(specs, i, where), f"{where}[{i}]", move)
                for i, v in enumerate(item)
            ]
            if hasattr(item, "_fields"):
                return type(item)(*moved_items)
            return type(item)(moved_items) if type(item) in (list, tuple) else moved_items
        fields = fields_of(item)
        if fields is not None:
            new = copy.copy(item)
            for name, value in fields.items():
                inner = self._moved(
                    value, part_of_specs(specs, name, where), f"{where}.{name}", move
                )
                object.__setattr__(new, name, inner)
            return new
        return item

    def _on_device(self, tensor: Tensor, spec: Any, where: str) -> Tensor:
        if spec is None:
            return tensor.to("spmd")
        whole = self._spec_of(tensor, spec, where)
        return mark_sharding(tensor.to("spmd"), self._mesh, whole)

    def _spec_of(self, tensor: Tensor, spec: Any, where: str) -> PartitionSpec:
        """The spec of a tensor, one entry per dimension."""
        if not is_spec(spec):
            raise ValueError(f"Loader: {where} is a tensor, and specs has {_arguments.shown(spec)}")
        found = to_spec(spec)
        if len(found) > tensor.dim():
            if tensor.dim():
                raise ValueError(
                    f"Loader: {where} has {tensor.dim()} dimensions, and its spec is {found!r}"
                )
            found = PartitionSpec()
        return of_rank(found, tensor.dim())


_Move = Callable[[Tensor, Any, str], Tensor]
