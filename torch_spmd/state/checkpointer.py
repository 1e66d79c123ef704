# SPDX-License-Identifier: Apache-2.0
"""Checkpoints at intervals, of which the last ones are kept."""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType
from typing import Any

from torch_spmd import _arguments, _loading
from torch_spmd.processes import agreement
from torch_spmd.state import manifest
from torch_spmd.state.checkpoints import RandomState, Saving, load, save
from torch_spmd.state.files import CheckpointError, folder_at

_loading.refuse_reload(__name__, globals(), "Checkpointer")

_NAME = re.compile(r"step-(\d{10,})")


class Checkpointer:
    """Saves a tree every so many steps, keeps the last checkpoints, and loads the last good one.

    Saves run while training goes on; leaving the `with` block waits. The processes of a job leave
    it together: if one leaves early, or by an exception, the others get an error that says so, and
    a save that runs is not waited for. The random numbers are saved and loaded, too. On SIGTERM, as
    of a machine that is taken away, the next `save` saves at once and waits; then `stopping` is
    true, in a job in all processes, whichever got the signal. Whatever handled the signal before is
    called, too, unless it would end the process.

    Args:
        dir: a folder, or a URL that fsspec knows; a checkpoint is the folder step-0000000100 in it.
        every: `save` saves if the step is a multiple of it.
        keep: how many checkpoints are kept; None keeps all.

    Errors: TypeError, ValueError for arguments of another kind; as `save` and `load`.

    Example:
        >>> import tempfile, torch, torch_spmd as spmd
        >>> model = torch.nn.Linear(4, 4).to("spmd")
        >>> with spmd.checkpoint.Checkpointer(
        ...     tempfile.mkdtemp(), every=2, keep=1
        ... ) as checkpoints:
        ...     for step in range(checkpoints.load({"model": model}) or 0, 5):
        ...         saved = checkpoints.save(step + 1, {"model": model})
        >>> checkpoints.steps()
        [4]
    """

    def __init__(self, dir: Any, every: int = 1, keep: int | None = None) -> None:
        self._path = _arguments.path("Checkpointer", "dir", dir)
        self._every = _arguments.integer("Checkpointer", "every", every, 1)
        if keep is not None:
            keep = _arguments.integer("Checkpointer", "keep", keep, 1)
        self._keep = keep
        self._folder = folder_at(self._path)
        self._saving: Saving | None = None
        self._step = 0  # of that save
        self._before: Any = None
        self._watching = False
        self._signalled = False
        self.stopping = False

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        found = []
        for name in self._folder.folders():
            match = _NAME.fullmatch(name)
            if match and self._folder.exists(f"{name}/{manifest.NAME}"):
                found.append(int(match[1]))
        return sorted(found)

    def save(self, step: int, tree: Any, *, force: bool = False, wait: bool = False) -> bool:
        """Saves if the step is a multiple of `every`, if `force` is true, or after SIGTERM. Returns
        whether it does. What went wrong with the save before is raised here."""
        step = _arguments.integer("Checkpointer.save", "step", step, 0)
        force = _arguments.boolean("Checkpointer.save", "force", force)
        wait = _arguments.boolean("Checkpointer.save", "wait", wait)
        asked = agreement.ask(self._signalled, f"may save a checkpoint after step {step}")
        stopping = self.stopping = self.stopping or any(asked)
        if not (force or stopping or step % self._every == 0):
            return False
        self._finish()
        state = {"tree": tree, "random": RandomState()}
        self._saving = save(self._where(step), state, wait=wait or stopping)
        self._step = step
        if wait or stopping:
            self._finish()
        return True

    def load(self, tree: Any, step: int | None = None) -> int | None:
        """Loads the last good checkpoint, or that of a step, into the tree (see `spmd.load`), and
        returns its step; None if there is no checkpoint.

        A checkpoint that is altered or not complete is passed over with a warning, if there is an
        older one.

        Errors: CheckpointError if there are checkpoints, and none of them is good.
        """
        if step is not None:
            step = _arguments.integer("Checkpointer.load", "step", step, 0)
        what = f"looks for checkpoints in {self._path!r}"
        agreement.meet(what)
        self._finish()
        candidates = [step] if step is not None else agreement.ask(self.steps()[::-1], what)[0]
        for position, number in enumerate(candidates):
            try:
                load(self._where(number), {"tree": tree, "random": RandomState()})
                return int(number)
            except CheckpointError as error:
                if position == len(candidates) - 1:
                    raise
                import warnings

                warnings.warn(f"Checkpointer: {error}; the one before is tried", stacklevel=2)
        return None

    def wait(self) -> None:
        """Waits for a save that runs, and removes checkpoints that are not kept any more. All
        processes of a job call it.

        Errors: what went wrong with the save; RuntimeError in all processes if one does something
        else.
        """
        # A save needs all processes, and one whose script waits for this one cannot go on with it.
        agreement.meet(f"waits for a checkpoint in {self._path!r}")
        self._finish()

    def _finish(self) -> None:
        saving, self._saving = self._saving, None
        saved = self._step
        if saving is None:
            return
        try:
            saving.written.result()
        finally:
            # `save` and `load` would raise it again.
            from torch_spmd.state import checkpoints

            checkpoints.forget(saving)
        if self._keep is not None and agreement.rank() == 0:
            # What was saved now stays, also of a run that went back to an earlier step.
            others = [step for step in self.steps() if step != saved]
            for step in others[: max(0, len(others) + 1 - self._keep)]:
                # Without its manifest it is no checkpoint, should this be interrupted.
                self._folder.remove(f"{_name(step)}/{manifest.NAME}")
                self._folder.remove_folder(_name(step))

    def _where(self, step: int) -> str:
        return f"{self._path.rstrip('/')}/{_name(step)}"

    # --- SIGTERM ---

    def __enter__(self) -> Checkpointer:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
            self._watching = True
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if callable(self._before):
            self._before(number, frame)

    def __exit__(self, *error: object) -> None:
        if self._watching:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            self._watching = False
        kind = error[0] if error else None
        how = f" by {kind.__name__}" if isinstance(kind, type) else ""
        try:
            agreement.meet(f"leaves the block of a Checkpointer{how}")
        except RuntimeError:
            if kind is None:
                raise
            return  # the exception says what has happened
        self._finish()


def _name(step: int) -> str:
    return f"step-{step:010d}"
