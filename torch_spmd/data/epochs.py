# SPDX-License-Identifier: Apache-2.0
"""One epoch of a Loader: batches that a thread reads ahead."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_spmd.data.batches import (
    digest,
    set_own_random_state,
)
from torch_spmd.data.local_rows import (
    OwnBatch,
    without_rows,
)
from torch_spmd.processes import agreement
from torch_spmd.state import randomness

if TYPE_CHECKING:
    from torch_spmd.data.loader import Loader


class _Item(NamedTuple):
    """A batch, or what was raised in its place, and the position behind it."""

    batch: Any
    error: BaseException | None
    position: Any


class Batches:
    """One epoch. The first batch is read by the caller's thread, since samplers then draw their
    seed, and the others by a thread of its own."""

    def __init__(self, loader: Loader) -> None:
        self._stopped = threading.Event()
        self._loader = loader
        self._iterator, self._count, self._begin = loader._begin()
        self._first = self._count
        self._form: Any = None  # of the batches, without rows
        self._queue: queue.Queue[_Item] = queue.Queue(max(1, loader._prefetch))
        self._thread: threading.Thread | None = None
        self._done = self._left = False
        self._seen: str | None = None  # a digest of the last batch
        loader._state = self._position(None)
        _all.add(self)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._left:
            raise RuntimeError(
                "Loader: this iteration was ended by a later one over the same Loader; make a "
                "Loader for each"
            )
        if self._done:
            raise StopIteration
        if self._loader._prefetch == 0:
            item = self._read()
        elif self._thread is None:
            item = self._read()
            self._thread = threading.Thread(
                target=_fill,
                args=(weakref.ref(self), self._queue, self._stopped),
                daemon=True,
                name="torch_spmd.Loader",
            )
            _threads.add(self._thread)
            self._thread.start()
        else:
            item = self._queue.get()
        if self._loader._own is not None:
            item = self._of_all(item)
        if item.error is not None:
            self.close()
            if isinstance(item.error, StopIteration):
                self._loader._state = None  # the next epoch begins
                raise StopIteration
            raise item.error
        self._loader._state = item.position
        return item.batch

    def _of_all(self, item: _Item) -> _Item:
        """The batch, put together of what all processes have read. Collective: what one process
        meets, all raise, and they end together."""
        batch, error = item.batch, item.error
        if error is not None and not isinstance(error, Exception):
            return item
        what = "end" if isinstance(error, StopIteration) else batch.digest if batch else "error"
        failed = error is not None and not isinstance(error, StopIteration)
        mine = [what, type(error).__name__ if failed else "", str(error) if failed else ""]
        every = agreement.ask(mine, "asks a Loader for a batch")
        for process, (_, kind, text) in enumerate(every):
            if kind:
                raised = agreement.error_of(kind, f"{text} (in process {process})")
                raised.__cause__ = error if failed else None
                return _Item(None, raised, None)
        for process, (theirs, _, _) in enumerate(every):
            if theirs != every[0][0]:
                raised = RuntimeError(
                    f"Loader: process {process} draws another batch than process 0; give all of "
                    "them the same seed (torch.manual_seed, or the DataLoader's generator), and a "
                    "sampler that draws the batches of all"
                )
                return _Item(None, raised, None)
        if batch is None:
            return item
        if batch.tree is None:
            batch = batch._replace(tree=self._form)
        self._form = without_rows(batch.tree)
        try:
            return item._replace(batch=self._loader._together(batch))
        except Exception as raised_here:  # of specs and shapes, the same in all
            return _Item(None, raised_here, None)

    def _position(self, state: Any) -> Any:
        begin = self._begin
        if self._seen is not None and begin is not None:
            begin = {**begin, "seen": self._seen}
        return {"loader": state, "batches": self._count, "random": begin}

    def _read(self) -> _Item:
        try:
            while True:
                batch = next(self._iterator)
                if isinstance(batch, OwnBatch):
                    if not batch.shows_rows():
                        self._read_whole(batch)
                        continue
                else:
                    if self._loader._checks_skip():
                        self._seen = digest(batch)
                    batch = self._loader._ready(batch)
                self._count += 1
                if batch is not None:
                    return _Item(batch, None, self._position(self._loader._loaders_state()))
        except BaseException as error:
            return _Item(None, error, None)

    def _read_whole(self, batch: OwnBatch) -> None:
        """Begins again with whole batches, since these cannot be read by rows. In all processes,
        since a batch has the same form in all."""
        if self._thread is not None or self._count != self._first:
            raise ValueError(
                "Loader: the batches are not of one form: one has a value that is no tensor with "
                "one row per row of the batch, as the first one had"
            )
        self._loader._own = None
        if self._first == 0:
            randomness.set_host_state(self._begin)
            set_own_random_state(self._loader._loader, self._begin["own"])
        else:
            self._loader._resume = self._position(None)
        self._iterator, self._count, self._begin = self._loader._begin()

    def leave(self) -> None:
        """As `close`; who asks for a batch again is told."""
        self._left = not self._done
        self.close()

    def close(self) -> None:
        """Ends the thread. What was read ahead is dropped."""
        self._done = True
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._iterator = iter(())

    def __del__(self) -> None:
        self._stopped.set()


_all: weakref.WeakSet[Batches] = weakref.WeakSet()

# Also of epochs that were left, whose threads may still read. Where Python ends, a thread that is
# in the middle of a call of the device would end the process with an error.
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the device is shut down."""
    for batches in list(_all):
        with contextlib.suppress(Exception):
            batches.close()
    for thread in list(_threads):
        thread.join()


def _fill(ref: weakref.ref[Batches], items: queue.Queue[_Item], stopped: threading.Event) -> None:
    """The thread. It holds the epoch only while it reads, so that one that is left is dropped."""
    while not stopped.is_set():
        batches = ref()
        if batches is None:
            return
        item = batches._read()
        del batches
        while not stopped.is_set():
            try:
                items.put(item, timeout=0.05)
                break
            except queue.Full:
                if ref() is None:
                    return
        if item.error is not None:
            return
