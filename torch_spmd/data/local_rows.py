# SPDX-License-Identifier: Apache-2.0
"""Reads of each batch the rows that the devices of this process hold (torch_spmd/data/loader.py).

The batches of all processes are the same: each process draws the indices of whole batches, and
gives its own of them to the dataset.
"""

from __future__ import annotations

import bisect
import collections
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, default_collate

from torch_spmd import _C, _compat
from torch_spmd.processes import agreement
from torch_spmd.sharding.mesh import Mesh
from torch_spmd.sharding.shards import Shard, from_local_shards
from torch_spmd.sharding.spec import PartitionSpec, blocks, is_spec, to_spec


class OwnBatch(NamedTuple):
    """A batch of `size` rows, filled up to `full`, of which this process has read `rows`, in
    order. `tree` has those rows, or at least one of another process if there are none and
    `for_form`; None if there are none and an earlier batch has shown the form. `digest` tells
    batches of other indices apart."""

    size: int
    full: int
    rows: tuple[int, ...]
    digest: str
    for_form: bool = False
    tree: Any = None

    def shows_rows(self) -> bool:
        """Whether every value of the tree is a tensor with one row per row that was read."""
        count = 1 if self.for_form else len(self.rows_there())
        return self.tree is None or _all_rows(self.tree, count)

    def rows_there(self) -> tuple[int, ...]:
        """Those of `rows` that are not filled up."""
        return self.rows[: bisect.bisect_left(self.rows, self.size)]

    def on_device(self, host: Tensor, mesh: Mesh, spec: PartitionSpec) -> Tensor:
        """The whole tensor, of which this process has the rows `host`. Collective."""
        shape = (self.full, *host.shape[1:])
        there = len(self.rows_there())
        host = host[:there]
        if len(self.rows) > there:
            more = host.new_zeros((len(self.rows) - there, *host.shape[1:]))
            host = torch.cat([host, more])
        shards = []
        for device, box in _held_here(mesh, spec, shape):
            begin = bisect.bisect_left(self.rows, box[0][0])
            inside = (slice(begin, begin + box[0][1] - box[0][0]), *(slice(*d) for d in box[1:]))
            shards.append(Shard(host[inside], tuple(slice(*d) for d in box), device, 0))
        return from_local_shards(shards, mesh, spec, shape)


def _held_here(mesh: Mesh, spec: PartitionSpec, shape: Sequence[int]) -> list[tuple[int, Any]]:
    """(device, box) of the distinct parts that the devices of this process hold."""
    mine = agreement.local_devices()
    boxes = _C.boxes_of(mesh._core, spec, list(shape))
    found: dict[Any, int] = {}
    for device, box in boxes:
        # What is on a mesh of one device is in every process.
        if (mine is None or device in mine or len(boxes) == 1) and all(b < e for b, e in box):
            found.setdefault(box, device)
    return [(device, box) for box, device in found.items()]


def row_specs(specs: Any) -> list[PartitionSpec] | None:
    """How the rows of the tensors of a batch are sharded; None if every process needs all rows,
    since a value has no mark, or one that does not shard them."""
    found: dict[Any, PartitionSpec] = {}

    def visit(item: Any) -> bool:
        if item is None:
            return False
        if is_spec(item):
            first = PartitionSpec(*to_spec(item)[:1])
            found[repr(first)] = first
            return len(first) == 1 and first[0] is not None and not isinstance(first[0], blocks)
        return all(map(visit, item.values() if isinstance(item, Mapping) else item))

    return list(found.values()) if visit(specs) and found else None


def own_rows(mesh: Mesh, specs: Sequence[PartitionSpec], size: int) -> tuple[int, ...]:
    """The rows of a batch that this process needs."""
    rows: set[int] = set()
    for spec in specs:
        for _, box in _held_here(mesh, spec, (size,)):
            rows.update(range(*box[0]))
    return tuple(sorted(rows))


class OwnRows:
    """A DataLoader as `loader`, whose batches are OwnBatch. Iterating draws the random numbers
    that iterating over `loader` draws."""

    def __init__(
        self, loader: DataLoader[Any], mesh: Mesh, specs: Sequence[PartitionSpec], last: str
    ) -> None:
        self._whole: Any = loader.batch_sampler
        self._full = loader.batch_size or getattr(self._whole, "batch_size", None)
        self._last = last
        self._rows: Callable[[int], tuple[int, ...]] = lambda size: own_rows(mesh, specs, size)
        self._drawn: collections.deque[OwnBatch] = collections.deque()
        self._given: Iterator[Any] = iter(())  # the indices that are left to be drawn
        self._skipped = 0  # batches of which no worker is to hear
        self._reader = like(loader, batch_sampler=_Drawn(self))

    @staticmethod
    def fits(loader: Any) -> bool:
        """Whether the rows of a batch can be read one by one: of a dataset with indices, by a
        DataLoader that puts them together row by row."""
        return (
            type(loader) is DataLoader
            and loader.batch_sampler is not None
            and not isinstance(loader.dataset, IterableDataset)
            and loader.collate_fn is default_collate
            and getattr(loader, "in_order", True)
        )

    def draw(self) -> Iterator[list[Any]]:
        """The indices that are read, batch by batch; `_drawn` has the batches."""
        first = True
        for given in self._given:
            indices = list(given)
            size = len(indices)
            self._full = self._full or size
            if self._skipped > 0:
                self._skipped -= 1
                continue
            if size < self._full and self._last == "drop":
                continue
            full = max(size, self._full) if self._last == "pad" else size
            digest = hashlib.blake2b(repr(indices).encode(), digest_size=8).hexdigest()
            batch = OwnBatch(size, full, self._rows(full), digest)
            wanted = [indices[row] for row in batch.rows_there()]
            if not wanted and first:
                batch, wanted = batch._replace(for_form=True), indices[:1]
            first = False
            self._drawn.append(batch)
            if wanted:
                yield wanted

    def __iter__(self) -> Iterator[OwnBatch]:
        return self.begin_behind(0)

    def begin_behind(self, count: int, skip: bool = False) -> Iterator[OwnBatch]:
        """An iterator over what follows on the first batches. As that of a Loader."""
        self._drawn.clear()
        self._given = iter(self._whole)
        self._skipped = 0
        if skip and self._reader.num_workers > 0:
            self._skipped, count = count, 0
        batches = self._batches(iter(self._reader))
        for _ in range(count):
            # Drawn now, with the random numbers that hold now.
            if self._reader.num_workers == 0:
                indices = list(next(self._given, ()))
                self._full = self._full or len(indices)
            else:
                next(batches, None)
        return batches

    def _batches(self, trees: Iterator[Any]) -> Iterator[OwnBatch]:
        for tree in trees:
            while not self._reads(self._drawn[0]):
                yield self._drawn.popleft()
            yield self._drawn.popleft()._replace(tree=tree)
        while self._drawn:
            yield self._drawn.popleft()

    def _reads(self, batch: OwnBatch) -> bool:
        return batch.for_form or len(batch.rows_there()) > 0


class _Drawn:
    """The batch sampler of the DataLoader that reads."""

    def __init__(self, rows: OwnRows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[list[Any]]:
        return self._rows.draw()


def like(loader: DataLoader[Any], **sampler: Any) -> DataLoader[Any]:
    """A DataLoader that differs in its sampler."""
    return DataLoader(
        loader.dataset,
        **sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
        in_order=getattr(loader, "in_order", True),
    )


class _Behind:
    """A sampler that goes on behind the first items of another."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler = sampler
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._sampler, self._count, None)


def behind(loader: Any, count: int) -> DataLoader[Any] | None:
    """A DataLoader of the batches that follow on the first ones, of which its workers do not hear;
    None if that is not possible: of a dataset without indices."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.batch_sampler is None:
        return like(loader, batch_size=None, sampler=_Behind(loader.sampler, count))
    return like(loader, batch_sampler=_Behind(loader.batch_sampler, count))


def batch_skipper(iterator: Any) -> Callable[[], Any] | None:
    """A function that goes behind the next batch of a DataLoader's iterator without reading it;
    None if that is not possible."""
    draw: Callable[[], Any] | None = _compat.next_indices(iterator)
    return draw


def without_rows(tree: Any) -> Any:
    """A batch of the same form that has no rows."""
    if isinstance(tree, Tensor):
        return tree[:0]
    if isinstance(tree, Mapping):
        return {key: without_rows(value) for key, value in tree.items()}
    items = [without_rows(item) for item in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def _all_rows(tree: Any, count: int) -> bool:
    if isinstance(tree, Tensor):
        return tree.dim() > 0 and tree.shape[0] == count
    if isinstance(tree, Mapping):
        return all(_all_rows(value, count) for value in tree.values())
    return isinstance(tree, (list, tuple)) and all(_all_rows(item, count) for item in tree)
