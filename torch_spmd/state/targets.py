# SPDX-License-Identifier: Apache-2.0
"""Finds in saved state what the tree of a user needs, and puts it there.

First everything is found and compared (`Plan`), and then filled, so that a checkpoint that does not
fit changes nothing.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_spmd import _arguments, _compat
from torch_spmd.processes import agreement
from torch_spmd.state import boxes, conversions, dtypes, initialize, optimizers, parts, tree
from torch_spmd.state.files import CheckpointError
from torch_spmd.state.names import Names, joined
from torch_spmd.state.reading import Ranges, Source
from torch_spmd.state.target_parts import (
    as_named,
    by_identity,
    half_done,
    overlaps_itself,
    replace_tensor,
    set_extra,
    set_state,
    tensors_of,
    with_keys_of,
)


class Plan:
    """What is to be read, and what is done with it.

    `problems` are the differences between the saved state and the target. `place` decides where a
    parameter on `meta` comes to be. `names` are those of the target's parameters. `all_know`: what
    `run` has raised is raised in all processes.
    """

    def __init__(
        self,
        source: Source,
        cast: bool,
        place: Callable[[str, Tensor], Tensor],
        names: Names,
    ) -> None:
        self.source = source
        self.cast = cast
        self.place = place
        self.problems: list[str] = []
        self.extra: list[str] = []
        self.wanted: list[tuple[str, boxes.Box]] = []
        self.names = names
        self._targets: list[tuple[Tensor, str]] = []  # what is overwritten
        # (key, whether it is filled in pieces, what fills it)
        self._overwriting: list[tuple[str, bool, Callable[[], None]]] = []
        self._fills: list[Callable[[], None]] = []
        self._ends: list[Callable[[], None]] = []
        self._made: dict[str, Tensor] = {}
        self.all_know = False

    # --- comparing ---

    def item(self, target: Any, node: Any, where: str) -> Callable[[], Any]:
        """Compares a target with the JSON of what was saved; returns a function that returns what
        takes its place. It is called when all tensors are filled."""
        if isinstance(target, nn.Module):
            self.module(target, node, where)
            return lambda: target
        if isinstance(target, torch.optim.Optimizer):
            optimizers.plan(self, target, node, where)
            return lambda: target
        if isinstance(target, Tensor):
            return self.tensor(target, node, where)
        if isinstance(target, Mapping):
            return self._mapping(target, node, where)
        if isinstance(target, (list, tuple)):
            return self._sequence(target, node, where)
        if isinstance(target, torch.Generator):
            if tree.tensor_key(node) is None:
                self.problems.append(f"{where!r} is a generator, and another value was saved")
            state = self.value(node, where)
            self._ends.append(functools.partial(set_state, target, state))
            return lambda: target
        if not isinstance(target, type) and callable(getattr(target, "load_state_dict", None)):
            value = self.value(node, where)
            self._ends.append(lambda: target.load_state_dict(self._as_own(value(), target)))
            return lambda: target
        if where or target is not None:
            self.check_kind(target, node, where)
        return self.value(node, where)

    def check_kind(self, target: Any, node: Any, where: str) -> None:
        """Notes a tensor that was saved where the target has a plain value, and the other way
        round. Where the target has nothing, which is ..., anything fits."""
        if isinstance(target, Tensor):
            if tree.tensor_key(node) is None:
                self.problems.append(f"{where!r} is a tensor, and another value was saved")
        elif (
            target is not ...
            and not isinstance(target, (Mapping, list, tuple, collections.deque))
            and any(True for _ in tree.named_keys(node))
        ):
            self.problems.append(f"{where!r} is {_arguments.shown(target)}, and a tensor was saved")

    def _as_own(self, value: Any, target: Any) -> Any:
        """The value, with the keys that the target's own state has."""
        own = getattr(target, "state_dict", None)
        return self.keyed(own(), value) if callable(own) else value

    def keyed(self, own: Any, value: Any) -> Any:
        """The value, with the keys that `own` has if those of files are text."""
        return with_keys_of(own, value) if self.source.text_keys else value

    def _mapping(self, target: Mapping[Any, Any], node: Any, where: str) -> Callable[[], Any]:
        there = tree.items_of(node)
        if there is None:
            self.problems.append(f"{where or 'the tree'} is a mapping, and another value was saved")
            return lambda: target
        results = {}
        for key, value in target.items():
            inner = joined(where, key)
            name = self._saved_key(key, there)
            if name in there:
                results[key] = self.item(value, there[name], inner)
            elif not (self.source.text_keys and isinstance(value, Mapping) and not value):
                self.problems.append(f"{inner!r} was not saved")
        self._note_extra(there, {self._saved_key(key, there) for key in target}, where)
        if not isinstance(target, MutableMapping):
            return lambda: {key: result() for key, result in results.items()}
        # In place, and only when everything was read.
        self._ends.append(lambda: target.update({k: r() for k, r in results.items()}))
        return lambda: target

    def _saved_key(self, key: Any, there: Mapping[Any, Any]) -> Any:
        return str(key) if self.source.text_keys and key not in there else key

    def _note_extra(self, there: Mapping[Any, Any], wanted: Any, where: str) -> None:
        self.extra += [joined(where, key) for key in there if key not in wanted]

    def _sequence(self, target: Any, node: Any, where: str) -> Callable[[], Any]:
        there = tree.items_of(node)
        if there is None or set(there) != set(range(len(target))):
            count = "another value" if there is None else f"a container of {len(there)}"
            self.problems.append(
                f"{where or 'the tree'} has {len(target)} items, and {count} was saved"
            )
            return lambda: target
        results = [self.item(v, there[i], f"{where}.{i}") for i, v in enumerate(target)]
        if isinstance(target, tuple):
            make: Any = getattr(type(target), "_make", tuple)  # of named tuples
            return lambda: make(r() for r in results)

        def replace_items() -> None:
            target[:] = [r() for r in results]

        self._ends.append(replace_items)
        return lambda: target

    def _sparse(self, target: Tensor, node: Any, where: str) -> None:
        """A sparse tensor is filled in place, and so has as many values as there were."""
        saved = tree.sparse_like(node)
        layout = str(target.layout).removeprefix("torch.")
        if saved is None:
            self.problems.append(f"{where!r} is a sparse tensor, and another value was saved")
        elif (layout, list(target.shape)) != saved[:2]:
            self.problems.append(
                f"{where!r} is of {layout} and shape {tuple(target.shape)}, and {saved[0]} of "
                f"shape {tuple(saved[1])} was saved"
            )
        else:
            for name, part in tree.parts_of_sparse(target).items():
                self.tensor(part, tree.child(node, name), joined(where, name))
            if layout == "sparse_coo":
                self._ends.append(lambda: _compat.set_coalesced(target, saved[2]))

    def tensor(self, target: Tensor, node: Any, where: str) -> Callable[[], Any]:
        if tree.is_sparse(target):
            self._sparse(target, node, where)
            return lambda: target
        key = tree.tensor_key(node)
        if key is None:
            self.problems.append(f"{where!r} is a tensor, and another value was saved")
        elif self.fits(target, key, where):
            if target.is_meta:
                made: list[Tensor] = []
                self._make_placed(where, key, self.source_dtype(key), made.append)
                return lambda: made[0]
            self.fill(target, key)
        return lambda: target

    def fits(self, target: Tensor, key: str, where: str) -> bool:
        saved = self.source.tensors[key]
        before = len(self.problems)
        if target.layout != torch.strided:
            self.problems.append(f"{where!r} is no dense tensor: its layout is {target.layout}")
        elif tuple(target.shape) != saved.shape:
            self.problems.append(
                f"{where!r} has shape {tuple(target.shape)}, and {saved.shape} was saved"
            )
        elif dtypes.name_of(target.dtype) != saved.dtype and not self.cast:
            self.problems.append(
                f"{where!r} is of {target.dtype}, and torch.{saved.dtype} was saved (cast=True "
                "converts it)"
            )
        elif overlaps_itself(target):
            self.problems.append(
                f"{where!r} has one element in several places (expand, unfold), and cannot be "
                "overwritten"
            )
        return len(self.problems) == before

    def module(self, module: nn.Module, node: Any, where: str) -> None:
        there = tree.items_of(node)
        if there is None:
            self.problems.append(f"{where or 'the tree'} is a module, and another value was saved")
            return
        names = tensors_of(module)
        extras = {
            f"{name}.{_EXTRA}" if name else _EXTRA: child
            for name, child in module.named_modules()
            if type(child).get_extra_state is not nn.Module.get_extra_state
        }
        there = as_named(self._converted(module, names, there), {**names, **extras})
        for tensor, its_names in by_identity(names).items():
            saved = [name for name in its_names if name in there]
            inner = joined(where, its_names[0])
            if not saved:
                self.problems.append(f"{inner!r} was not saved")
            else:
                self._of_module(module, tensor, its_names, there[saved[0]], inner)
        for extra, child in extras.items():
            if extra in there:
                value = self.value(there[extra], extra)
                self._ends.append(functools.partial(set_extra, child, value))
        self._note_extra(there, {**names, **extras}, where)
        unsaved = initialize.meta_buffers(module)
        self.problems += initialize.without_value(module, unsaved)
        self._fills.append(functools.partial(initialize.fill_buffers, module, unsaved))

    def _converted(
        self, module: nn.Module, names: dict[str, Tensor], there: dict[Any, Any]
    ) -> dict[Any, Any]:
        """What was saved, as a model of transformers has it, if files have it otherwise."""
        if not isinstance(self.source, Ranges) or all(name in there for name in names):
            return there
        keys = {str(name): tree.tensor_key(node) for name, node in there.items()}
        saved = {name: self.source.tensors[key] for name, key in keys.items() if key is not None}
        found = {name: node for name, node in there.items() if str(name) not in saved}
        for name, tensor in conversions.converted(module, names, saved).items():
            if tensor is saved.get(name):
                found[name] = there[name]
                continue
            key = f"{name} of {type(module).__name__}"
            self.source.tensors[key] = tensor
            found[name] = {"$": "tensor", "key": key}
        return found

    def _of_module(
        self, module: nn.Module, tensor: Tensor, names: list[str], node: Any, where: str
    ) -> None:
        key = tree.tensor_key(node)
        if tree.is_sparse(tensor):
            self._sparse(tensor, node, where)
        elif key is None:
            self.problems.append(f"{where!r} is a tensor, and another value was saved")
        elif self.fits(tensor, key, where):
            if not tensor.is_meta:
                self.fill(tensor, key)
                return

            put = functools.partial(replace_tensor, module, names, tensor)
            self._make_placed(names[0], key, tensor.dtype, put)

    # --- reading ---

    def fill(self, target: Tensor, key: str) -> None:
        self._targets.append((target, key))

    def fill_like(
        self, parameter: Tensor, key: str, dtype: torch.dtype, use: Callable[[Tensor], Any]
    ) -> None:
        """Calls `use` with a new tensor that is sharded as `parameter`, and filled."""
        made = parts.like(parameter, dtype)
        self.fill(made, key)
        self._fills.append(lambda: use(made))

    def prepare(self) -> None:
        """Finds the parts that this process needs. Called when everything has been compared."""
        self._overwriting = [(key, *self._filling(target, key)) for target, key in self._targets]

    def _filling(self, target: Tensor, key: str) -> tuple[bool, Callable[[], None]]:
        ours = parts.is_ours(target)
        in_pieces = (ours and agreement.count() > 1) or parts.is_large(target.nbytes)
        filled = parts.fillable(target) if ours and in_pieces else target
        regions = boxes.regions(parts.to_read(filled))
        self.wanted += [(key, region) for region in regions]

        def run() -> None:
            if in_pieces:
                self._fill_in_pieces(filled, key, regions)
                parts.put(target, filled)
            elif regions:  # one region: the whole
                parts.fill(target, self.source.read(key, regions[0]))

        return in_pieces, run

    def _fill_in_pieces(self, filled: Tensor, key: str, regions: list[boxes.Box]) -> None:
        """Fills what this process needs, if all processes can read what they need."""
        end: Callable[[bool], None] | None = None
        error: Exception | None = None
        try:
            pieces = (piece for region in regions for piece in self.source.pieces(key, region))
            end = parts.fill_in_pieces(filled, pieces, functools.partial(self.source.read, key))
        except Exception as raised:
            error = raised
        try:
            if parts.is_ours(filled):
                self.all_know = True
                agreement.raise_any(error)
                self.all_know = False
            elif error is not None:
                raise error
        except Exception:
            if end is not None:
                end(False)
            raise
        if end is not None:
            end(True)

    def source_dtype(self, key: str) -> torch.dtype:
        return dtypes.named(self.source.tensors[key].dtype)

    def _make_placed(
        self, name: str, key: str, dtype: torch.dtype, use: Callable[[Tensor], Any]
    ) -> None:
        """Calls `use` with a new tensor that is where a parameter of this name comes to be."""
        saved = self.source.tensors[key]
        if agreement.count() == 1 and not parts.is_large(saved.nbytes):
            self.make(key, lambda host: use(self.place(name, host.to(dtype))))
            return
        made = self.place(name, parts.empty(saved.shape, dtype, saved.mark))
        self.fill(made, key)
        self._fills.append(lambda: use(made))

    def make(self, key: str, use: Callable[[Tensor], Any], on_device: bool = False) -> None:
        """Reads a tensor, and calls `use` with it: with one on the host that has the mark that was
        saved, so that its copy on the device has it. If it is to be `on_device` and is large or
        there are several processes, with one on the device, of which each has read its parts."""
        saved = self.source.tensors[key]
        if on_device and (agreement.count() > 1 or parts.is_large(saved.nbytes)):
            made = parts.empty(saved.shape, self.source_dtype(key), saved.mark)
            self.fill(made, key)
            self._fills.append(lambda: use(made))
            return
        region = boxes.whole(saved.shape)
        self.wanted.append((key, region))

        def run() -> None:
            host = self.source.read(key, region)
            parts.give_mark(host, saved.mark)
            use(host)

        self._fills.append(run)

    def value(self, node: Any, where: str) -> Callable[[], Any]:
        """A value that is made anew, its tensors where they were saved."""
        made = self._made
        try:
            keys = tree.keys_in(node)
        except ValueError as error:
            self.problems.append(f"{where!r}: {error}")
            return lambda: None
        for key in keys:
            ours = self.source.tensors[key].device == "spmd"

            def use(host: Tensor, key: str = key, ours: bool = ours) -> None:
                made[key] = host.to("spmd") if ours else host

            self.make(key, use, on_device=ours)
        return lambda: tree.decode(node, made.__getitem__)

    def at_end(self, action: Callable[[], None]) -> None:
        self._ends.append(action)

    def run(self) -> None:
        """Errors: CheckpointError if what is needed cannot be read. It says what has been
        overwritten."""
        done: list[str] = []
        now: str | None = None
        try:
            for key, in_pieces, fill in self._overwriting:
                now = key if in_pieces else None
                fill()
                done.append(key)
            now = None
            for fill in self._fills:
                fill()
        except (OSError, CheckpointError) as error:
            raise CheckpointError(half_done(str(error), done, now)) from error
        for action in self._ends:
            action()


_EXTRA = "_extra_state"


def compare(plan: Plan, caller: str, path: str, strict: bool) -> None:
    """Errors: ValueError that names the differences."""
    problems = list(plan.problems)
    if strict and plan.extra:
        names = ", ".join(_arguments.plain(name) for name in plan.extra[:5])
        more = f" and {len(plan.extra) - 5:,} more" if len(plan.extra) > 5 else ""
        problems.append(
            f"{names}{more} was saved, and the target has no such name (strict=False leaves it out)"
        )
    if problems:
        first = "; ".join(problems[:5])
        more = f"; and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        raise ValueError(f"{caller}: {path!r} does not fit the target: {first}{more}")
