# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers: by position, as `state_dict` has it, or by the parameters' names, as
torch.distributed.checkpoint's helpers save it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from torch_spmd._state import dtypes, parts, processes, tree

if TYPE_CHECKING:
    from torch_spmd._state.targets import Plan

Nodes = dict[Any, Any]


def plan(into: Plan, optimizer: Optimizer, node: Any, where: str) -> None:
    """Plans to read the state, each tensor to where its parameter is, and to load it."""
    there = tree.items_of(node)
    where = where or "the optimizer"
    if there is None:
        into.problems.append(f"{where!r} is an optimizer, and another value was saved")
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if "param_groups" in there:  # DCP leaves out "state" if there is none
        states = tree.items_of(there.get("state")) or {}
        saved = tree.items_of(there["param_groups"]) or {}
        groups = [tree.items_of(group) or {} for group in saved.values()]
    else:
        states, groups = _nested(there)
    names = _saved_names(into, optimizer, parameters, states, groups, where)
    if names is None:
        return
    loaded: dict[int, Callable[[], dict[str, Any]]] = {}
    for i, (name, parameter) in enumerate(zip(names, parameters)):
        node = states.get(name, states.get(str(name)))  # in DCP's files all keys are text
        fields = None if node is None else tree.items_of(node)
        if fields is not None:
            have = optimizer.state.get(parameter, {})
            loaded[i] = _state(into, parameter, have, fields, f"{where}.state.{name}")
    options = [into.value(tree.mapping(group), where) for group in groups]

    def load() -> None:
        state_dict = optimizer.state_dict()
        for group, saved in zip(state_dict["param_groups"], options):
            group.update({k: v for k, v in saved().items() if k != "params"})
        state_dict["state"] = {i: fields() for i, fields in loaded.items()}
        optimizer.load_state_dict(state_dict)

    into.at_end(load)


def _saved_names(
    into: Plan,
    optimizer: Optimizer,
    parameters: list[Tensor],
    states: Nodes,
    groups: list[Nodes],
    where: str,
) -> list[Any] | None:
    """Under which name the state of each parameter was saved. Notes what does not fit, then
    returns None."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved = [list((tree.items_of(group.get("params", [])) or {}).values()) for group in groups]
    flat = [name for group in saved for name in group]
    if [len(group) for group in saved] == sizes and all(isinstance(n, int) for n in flat):
        return flat
    own = [into.names.get(id(p)) for p in parameters]
    if None in own:
        into.problems.append(
            f"{where!r} was saved with {[len(g) for g in saved]} parameters in its groups, by name "
            f"or otherwise; the optimizer has {sizes}. To find them by name, load the module, too"
        )
        return None
    missing = [name for name in own if name not in flat and name not in states]
    if missing or (flat and len(flat) != len(own)):
        into.problems.append(
            f"{where!r} was saved with {len(flat)} parameters, and the optimizer has {len(own)}"
            + (f"; {missing[0]!r} is not among the saved ones" if missing else "")
        )
        return None
    groups[:] = _groups_of(optimizer, into, groups, saved)
    return own


def _groups_of(
    optimizer: Optimizer, into: Plan, groups: list[Nodes], saved: list[list[Any]]
) -> list[Nodes]:
    """For each group of the optimizer the saved one that has its first parameter."""
    result = []
    for group in optimizer.param_groups:
        first = into.names[id(group["params"][0])] if group["params"] else None
        result.append(next((g for g, names in zip(groups, saved) if first in names), {}))
    return result


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


def _state(
    into: Plan, parameter: Tensor, have: dict[str, Any], fields: Nodes, where: str
) -> Callable[[], dict[str, Any]]:
    results: dict[str, Callable[[], Any]] = {}
    for name, node in fields.items():
        key = tree.tensor_key(node)
        saved = into.source.tensors[key] if key is not None else None
        now = have.get(name)
        if key is None or saved is None or saved.shape != tuple(parameter.shape) or name == "step":
            results[name] = into.value(node, f"{where}.{name}")
        elif (
            isinstance(now, Tensor)
            and tuple(now.shape) == saved.shape
            and dtypes.name_of(now.dtype) == saved.dtype
        ):
            into.fill(now, key)
            results[name] = functools.partial(lambda tensor: tensor, now)
        else:
            results[name] = _like(into, parameter, key)
    return lambda: {name: result() for name, result in results.items()}


def _like(into: Plan, parameter: Tensor, key: str) -> Callable[[], Tensor]:
    """A new tensor on the parameter's device, with its mark."""
    made: list[Tensor] = []
    large = processes.count() > 1 or parts.is_large(parameter.nbytes)
    if parts.is_ours(parameter) and large:
        into.fill_like(parameter, key, made.append)
        return lambda: made[0]

    def use(host: Tensor) -> None:
        if parts.is_ours(parameter):
            host = host.clone()  # without the mark that was saved
            parts.give_mark(host, parts.mark_text(parameter))
        made.append(host.to(parameter.device))

    into.make(key, use)
    return lambda: made[0]
