# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers: by number, as `state_dict` has it, or by the parameters' names, as
torch.distributed.checkpoint's helpers save it.

A parameter is found by its names wherever both sides know them, otherwise by its number. State
keeps the type that was saved.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from torch_spmd.processes import agreement
from torch_spmd.state import dtypes, parts, tree
from torch_spmd.state.names import Known, known_as, members, without_wrappers

if TYPE_CHECKING:
    from torch_spmd.state.targets import Plan

Nodes = dict[Any, Any]


class _Parameter(NamedTuple):
    """What is known of a saved parameter."""

    known: Known
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


class _Saved(NamedTuple):
    """State and options by the keys that parameters have: numbers or names."""

    states: Nodes
    groups: list[Nodes]
    keys: list[list[Any]]  # of each group's parameters
    parameters: dict[Any, _Parameter]
    others: Nodes  # what is no state of a parameter and no group


def plan(into: Plan, optimizer: Optimizer, node: Any, where: str) -> None:
    """Plans to read the state, each tensor to where its parameter is, and to load it."""
    there = tree.items_of(node)
    own = optimizer.state_dict()
    where = where or "the optimizer"
    if there is None:
        into.problems.append(f"{where!r} is an optimizer, and another value was saved")
        return
    if "param_groups" not in own:  # its state has a form of its own
        value = into.value(node, where)
        into.at_end(lambda: optimizer.load_state_dict(into.keyed(own, value())))
        return
    saved = _saved(there, node)
    parameters = [parameter for parameter, _ in members(optimizer)]
    keys = _keys(into, optimizer, saved, where)
    if keys is None:
        return
    if not _fit(into, optimizer, saved, keys, where):
        return
    groups = _groups(into, optimizer, saved, keys, where)
    fields = _Fields(into, _on_device(into, saved.states))
    loaded: dict[Any, Callable[[], Any]] = {}
    for i, (key, parameter) in enumerate(zip(keys, parameters)):
        state = _of_key(saved.states, key)
        if state is not None:
            group = next(g for g, its in zip(saved.groups, saved.keys) if key in its)
            of = _Of(parameter, saved.parameters[key].dtype, group)
            have = optimizer.state.get(parameter, ...)
            _check_fields(into, have, state, f"{where}.state.{key}")
            loaded[i] = fields.item(have, state, f"{where}.state.{key}", of)
    taken = {str(key) for key in saved.parameters}
    for key, state in saved.states.items():
        if str(key) not in taken:
            loaded[key] = into.value(state, f"{where}.state.{key}")
    options_of = _Fields(into, True)
    options = [
        {
            name: options_of.item(group.get(name, ...), value, f"{where}.{name}")
            for name, value in given.items()
            if name != "params"
        }
        for group, given in zip(optimizer.param_groups, groups)
    ]
    others = {key: into.value(item, f"{where}.{key}") for key, item in saved.others.items()}

    def load() -> None:
        state_dict = optimizer.state_dict()
        for group, given in zip(state_dict["param_groups"], options):
            group.update({name: value() for name, value in given.items()})
        state_dict["state"] = {key: value() for key, value in loaded.items()}
        state_dict.update({key: value() for key, value in others.items()})
        # Optimizer.load_state_dict casts the state that is there by the number of a parameter.
        with contextlib.ExitStack() as hooks:
            for one in _with_wrapped(optimizer):
                hook = one.register_load_state_dict_pre_hook(_by_parameter)
                hooks.callback(hook.remove)
            optimizer.load_state_dict(state_dict)

    into.at_end(load)


def _with_wrapped(optimizer: Optimizer) -> Iterator[Optimizer]:
    """The optimizer, and those that it wraps: any of them may be the one that casts."""
    fields = vars(optimizer)
    if "_optimizer_load_state_dict_pre_hooks" in fields:  # some wrappers are made without
        yield optimizer
    for value in fields.values():
        if isinstance(value, Optimizer) and value is not optimizer:
            yield from _with_wrapped(value)


def _by_parameter(optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state_dict with the state by the parameters themselves, as which it is not cast."""
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    own = dict(zip(numbers, (parameter for parameter, _ in members(optimizer))))
    return {**state_dict, "state": {own.get(k, k): v for k, v in state_dict["state"].items()}}


# --- which parameter is which ---


def _saved(there: Nodes, node: Any) -> _Saved:
    others: Nodes = {}
    if "param_groups" in there:  # DCP leaves out "state" if there is none
        states = tree.items_of(there.get("state")) or {}
        given = tree.items_of(there["param_groups"]) or {}
        groups = [tree.items_of(group) or {} for group in given.values()]
        others = {k: v for k, v in there.items() if k not in ("state", "param_groups")}
    else:
        states, groups = _nested(there)
    keys = [_items(group, "params") for group in groups]
    if not any(keys) and not all(str(key).isdigit() for key in states):
        keys = [list(states)]  # by name, without groups
        groups = groups or [{}]
    parameters: dict[Any, _Parameter] = {}
    known = tree.known_of_optimizer(node).get("parameters", [])
    for group, its in zip(groups, keys):
        names = _items(group, "param_names") or [None] * len(its)
        for key, name in zip(its, names):
            if isinstance(key, str):
                parameters[key] = _Parameter(Known((), (without_wrappers(key),)))
            elif key < len(known):
                one = known[key]
                names_of = Known(tuple(one["paths"]), tuple(one["names"]))
                shape, dtype = tuple(one["shape"]), one["dtype"]
                parameters[key] = _Parameter(known_as(names_of, name), shape, dtype)
            else:
                parameters[key] = _Parameter(known_as(Known(), name))
    groups = [{k: v for k, v in group.items() if k != "param_names"} for group in groups]
    return _Saved(states, groups, keys, parameters, others)


def _items(group: Nodes, name: str) -> list[Any]:
    return list((tree.items_of(group.get(name, [])) or {}).values())


def _of_key(states: Nodes, key: Any) -> Any:
    return states.get(key, states.get(str(key)))  # in DCP's files all keys are text


def _nested(there: Nodes) -> tuple[Nodes, list[Nodes]]:
    """From flat names, `state.layer.weight.exp_avg` and `param_groups.layer.weight.lr`."""
    found: dict[str, dict[str, dict[str, Any]]] = {"state": {}, "param_groups": {}}
    for key, node in there.items():
        kind, _, rest = str(key).partition(".")
        name, _, field = rest.rpartition(".")
        if kind in found and name:
            found[kind].setdefault(name, {})[field] = node
    groups = [{**fields, "params": [name]} for name, fields in found["param_groups"].items()]
    return dict(found["state"]), groups


def _keys(into: Plan, optimizer: Optimizer, saved: _Saved, where: str) -> list[Any] | None:
    """The key under which the state of each parameter was saved. Notes what does not fit, then
    returns None."""
    flat = [key for its in saved.keys for key in its]
    own = [known_as(into.names.of(p), name) for p, name in members(optimizer)]
    theirs = [saved.parameters[key].known for key in flat]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    by_number = not any(isinstance(key, str) for key in flat)
    if not any(map(_named, own)) or not any(map(_named, theirs)):
        if by_number and [len(its) for its in saved.keys] == sizes:
            return flat
        into.problems.append(
            f"{where!r} was saved with {[len(its) for its in saved.keys]} parameters in its "
            f"groups, by name or otherwise; the optimizer has {sizes}. To find them by name, load "
            "the module, too"
        )
        return None
    found = max(_matched(own, theirs, "paths"), _matched(own, theirs, "names"), key=len)
    missing = [known for i, known in enumerate(own) if _named(known) and i not in found]
    # Those without names keep their order.
    rest = [i for i in range(len(own)) if i not in found]
    left = [j for j in range(len(theirs)) if j not in found.values()]
    if missing or len(rest) != len(left):
        into.problems.append(
            f"{where!r} was saved with {len(flat)} parameters, and the optimizer has {len(own)}"
            + (f"; {_name(missing[0])!r} is not among the saved ones" if missing else "")
        )
        return None
    found |= dict(zip(rest, left))
    return [flat[found[i]] for i in range(len(own))]


def _named(known: Known) -> bool:
    return bool(known.paths or known.names)


def _name(known: Known) -> str:
    return next(iter((*known.names, *known.paths)))


def _matched(own: list[Known], theirs: list[Known], field: str) -> dict[int, int]:
    """The numbers of parameters that have a name in common, of `own` to `theirs`. A name that
    several have is none."""
    numbers: dict[str, set[int]] = {}
    for j, known in enumerate(theirs):
        for name in getattr(known, field):
            numbers.setdefault(name, set()).add(j)
    found: dict[int, int] = {}
    for i, known in enumerate(own):
        its = set[int]().union(*(numbers.get(name, ()) for name in getattr(known, field)))
        if len(its) == 1:
            found[i] = its.pop()
    several = {j for j in found.values() if list(found.values()).count(j) > 1}
    return {i: j for i, j in found.items() if j not in several}


def _fit(into: Plan, optimizer: Optimizer, saved: _Saved, keys: list[Any], where: str) -> bool:
    """Notes parameters that have another shape, and state that depends on their order."""
    before = len(into.problems)
    for key, (parameter, name) in zip(keys, members(optimizer)):
        one, shape = saved.parameters[key], tuple(parameter.shape)
        if one.shape is not None and one.shape != shape:
            known = known_as(into.names.of(parameter), name)
            its = _name(known) if _named(known) else key
            into.problems.append(
                f"parameter {its!r} of {where!r} has shape {shape}, and {one.shape} was saved"
            )
    if keys != [key for its in saved.keys for key in its]:
        whole = (sum(parameter.numel() for parameter, _ in members(optimizer)),)
        for state in map(functools.partial(_of_key, saved.states), keys):
            shapes = [into.source.tensors[key].shape for _, key in tree.named_keys(state)]
            if len(keys) > 1 and whole in shapes:
                into.problems.append(
                    f"{where!r} has vectors of all parameters, which were saved in another order; "
                    "give the parameters in that order"
                )
                break
    return len(into.problems) == before


def _groups(
    into: Plan, optimizer: Optimizer, saved: _Saved, keys: list[Any], where: str
) -> list[Nodes]:
    """For each group of the optimizer the saved one that has its parameters."""
    of_key = {key: i for i, its in enumerate(saved.keys) for key in its}
    result: list[Nodes] = []
    at = iter(keys)
    for i, group in enumerate(optimizer.param_groups):
        numbers = [of_key[key] for key in itertools.islice(at, len(group["params"]))]
        if not numbers and i < len(saved.keys) and not saved.keys[i]:
            numbers = [i]
        given = [saved.groups[j] for j in dict.fromkeys(numbers)]
        if any(_plain(other) != _plain(given[0]) for other in given):
            into.problems.append(
                f"group {i} of {where!r} has parameters of {len(given)} groups that were saved, "
                "whose options differ"
            )
        result.append(given[0] if given else {})
    return result


def _plain(group: Nodes) -> Nodes:
    """The options that are no tensors."""
    return {k: v for k, v in group.items() if k != "params" and tree.tensor_key(v) is None}


def _check_fields(into: Plan, have: Any, state: Any, where: str) -> None:
    """Notes state that is of another kind of optimizer: it has no name in common."""
    own = set(have) - {"step"} if isinstance(have, Mapping) else set()
    theirs = set(tree.items_of(state) or {}) - {"step"}
    if own and theirs and not {str(name) for name in own} & {str(name) for name in theirs}:
        names = [", ".join(sorted(map(str, side))) for side in (own, theirs)]
        into.problems.append(f"{where!r} has {names[0]}, and {names[1]} was saved")


# --- where state comes to be ---


def _on_device(into: Plan, states: Nodes) -> bool:
    """Whether it is known which tensors were on the device: if one was. Files of others do not say
    it, and state that was saved on the CPU altogether goes where the parameters are."""
    keys = (key for state in states.values() for _, key in tree.named_keys(state))
    return any(into.source.tensors[key].device == "spmd" for key in keys)


class _Of(NamedTuple):
    """Whose state it is: a parameter, the type that it had, and the options that its group had."""

    parameter: Tensor
    dtype: str | None
    options: Nodes


class _Fields:
    """Where state and options come to be. `on_device`: whether a tensor was on the device is
    known."""

    def __init__(self, into: Plan, on_device: bool) -> None:
        self._into = into
        self._on_device = on_device
        self._new: dict[Any, Callable[[], Tensor]] = {}  # what is one tensor stays one

    def item(self, have: Any, node: Any, where: str, of: _Of | None = None) -> Callable[[], Any]:
        """What takes the place of `have`, which is ... if there is nothing. A tensor that is there
        is filled; another one is made."""
        results: list[Callable[[], Any]] = []
        shell = self._shell(have, node, where, of, results)

        def value() -> Any:
            made = tree.decode(shell, lambda i: results[int(i)]())
            return made if have is ... else self._into.keyed(have, made)

        return value

    def _shell(
        self, have: Any, node: Any, where: str, of: _Of | None, results: list[Callable[[], Any]]
    ) -> Any:
        """The JSON, whose tensors and plain values are numbers of `results`."""
        # Optimizers make a tensor of a step that is a number.
        is_step = of is not None and where.endswith(".step")
        if not (is_step and isinstance(have, Tensor)):
            self._into.check_kind(have, node, where)
        key, items = tree.tensor_key(node), tree.items_of(node)
        if items is not None and key is None:
            shells = {
                name: self._shell(
                    _item(have, name, len(items)), item, f"{where}.{name}", of, results
                )
                for name, item in items.items()
            }
            return tree.with_items(node, shells)
        if key is None:
            results.append(self._into.value(node, where))
        elif isinstance(have, Tensor) and not is_step:
            if self._into.fits(have, key, where):
                self._into.fill(have, key)
            results.append(lambda: have)
        else:
            results.append(self._made(key, of, is_step))
        return {"$": "tensor", "key": len(results) - 1}

    def _made(self, key: str, of: _Of | None, is_step: bool) -> Callable[[], Tensor]:
        """A new tensor: where the saved one was, and if that is not known, where
        Optimizer.load_state_dict has it."""
        saved = self._into.source.tensors[key]
        like = of is not None and not is_step and saved.shape == tuple(of.parameter.shape)
        there = (key, of.parameter if of is not None and like else None)
        if there in self._new:
            return self._new[there]
        ours = of is None or parts.is_ours(of.parameter)
        if self._on_device:
            ours = ours and saved.device == "spmd"
        elif of is not None and is_step:
            ours = ours and (of.options.get("capturable") or of.options.get("fused")) is True
        made: list[Tensor] = []
        if of is not None and like:
            self._make_like(key, of, ours, made)
        elif ours:
            self._into.make(key, lambda host: made.append(host.to("spmd")), on_device=True)
        else:
            self._into.make(key, made.append)
        self._new[there] = lambda: made[0]
        return self._new[there]

    def _make_like(self, key: str, of: _Of, ours: bool, made: list[Tensor]) -> None:
        """A new tensor with the parameter's mark. `cast` is for state of the parameter's type."""
        parameter, dtype = of.parameter, self._into.source_dtype(key)
        if (
            self._into.cast
            and dtype.is_floating_point
            and of.dtype in (None, dtypes.name_of(dtype))
        ):
            dtype = parameter.dtype
        large = agreement.count() > 1 or parts.is_large(parameter.numel() * dtype.itemsize)
        if ours and large:
            self._into.fill_like(parameter, key, dtype, made.append)
            return

        def use(host: Tensor) -> None:
            if not ours:
                made.append(host.to(dtype))
                return
            host = host.to(dtype, copy=True)  # without the mark that was saved
            parts.give_mark(host, parts.mark_text(parameter))
            made.append(host.to("spmd"))

        self._into.make(key, use)


def _item(have: Any, name: Any, count: int) -> Any:
    """What is there under a name of saved items, of which there are `count`."""
    if isinstance(have, Mapping):
        return have.get(name, next((v for k, v in have.items() if str(k) == name), ...))
    if isinstance(have, (list, tuple)) and len(have) == count and isinstance(name, int):
        return have[name]
    return ...
