# SPDX-License-Identifier: Apache-2.0
"""The lines of random programs: each function appends one of its kind to a scope."""

import math

import torch
from random_ops import CHANGES, FLOATS, JOINS, VALUES, filled, overlaps_itself, same_storage
from random_views import NotPossible, need, view_of

__all__ = ["LINES", "NotPossible", "source"]

DTYPES = ["float32"] * 4 + ["float64"] * 5 + ["int64"] * 2 + ["bool", "complex64"]


def source(scope):
    """A new tensor, sometimes a leaf that requires a gradient, sometimes marked."""
    random, name = scope.random, scope.name()
    shape = tuple(
        random.choice((0, 1, 2, 3, 3, 4, 4, 5, 6, 7))
        for _ in range(random.choice((0, 1, 2, 2, 2, 3)))
    )
    dtype = random.choice(DTYPES)
    scope.seeds += 1
    text = random.choice(
        [f"make({shape}, torch.{dtype}, {scope.seeds})"] * 5
        + [
            f"torch.ones({shape}, dtype=torch.{dtype}, device=device)",
            f"torch.arange({random.randint(0, 7)}, device=device).to(torch.{dtype})",
            f"torch.eye({random.randint(1, 5)}, {random.randint(1, 5)}, device=device)",
            _steps(random, dtype),
        ]
    )
    scope.add(f"{name} = {text}")
    need(name in scope.run.names)  # not of a type that is refused
    if random.random() < 0.75 and scope.tensor(name).dim():
        mark(scope, name)
    leaf = dtype in ("float32", "float64", "complex64") and scope.tensor(name).numel()
    if leaf and random.random() < 0.45:
        scope.add(f"{name}.requires_grad_()")


def _steps(random, dtype):
    begin, end = (random.choice((-3, -0.5, 0, 1, 2.75, 6)) for _ in range(2))
    step = math.copysign(random.choice((0.5, 1, 1.5, 2)), end - begin)
    call = random.choice(
        (
            f"torch.arange({begin}, {end}, {step}, ",
            f"torch.linspace({begin}, {end}, {random.randint(0, 6)}, ",
            f"torch.full(({random.randint(0, 6)},), {begin}, ",
        )
    )
    ways = f"dtype=torch.{dtype}", f"out=torch.empty(0, dtype=torch.{dtype}, device=device)"
    return f"{call}{random.choice(ways)}, device=device)"


def mark(scope, name=None):
    """A mark on a tensor that is all of its storage and has no mark yet."""

    def whole(t):
        return (
            t._base is None
            and t.is_contiguous()
            and t.numel() * t.element_size() == t.untyped_storage().nbytes()
            and t.dim() > 0
            and not t.is_inference()
            and not any(same_storage(t, scope.tensor(name)) for name in scope.marked)
        )

    name = name or scope.pick(whole)
    t = scope.tensor(name)
    need(whole(t))
    axes = list(scope.program.axes)
    scope.random.shuffle(axes)
    if scope.random.random() < 0.2:
        axes = [tuple(axes)]
    # Always the first axis, so that a mark shards something.
    entries = axes[:1] + scope.random.sample(axes[1:] + [None] * t.dim(), t.dim() - 1)
    scope.random.shuffle(entries)
    scope.marked.add(name)
    scope.add(f"mark({', '.join([name, *map(repr, entries)])})")


def view(scope):
    name = scope.pick()
    expression = view_of(scope.random, name, scope.tensor(name))
    scope.add(f"{scope.name()} = {expression}")


def parts(scope):
    """All results of a split under names of their own."""
    name = scope.pick(lambda t: t.dim() and 1 <= t.shape[0] <= 4)
    count = scope.tensor(name).shape[0]
    names = ", ".join(scope.name() for _ in range(count))
    call = scope.random.choice(("unbind(0)", "split(1)", f"chunk({count})"))
    scope.add(f"{names}, = {name}.{call}")


def value(scope):
    scope.add(f"{scope.name()} = {_maybe_without_gradient(scope, _of(scope, VALUES))}")


def join(scope):
    scope.add(f"{scope.name()} = {_of(scope, JOINS)}")


def change(scope):
    """A write to a tensor or to a view of it, seldom to a leaf, which is refused."""
    refused = scope.random.random() < 0.1
    name = scope.pick(lambda t: refused or not (t.requires_grad and t.is_leaf))
    target = name
    if scope.random.random() < 0.4:
        target = view_of(scope.random, name, scope.tensor(name))
        try:
            t = eval(target, scope.run.names)
        except Exception:
            raise NotPossible from None
    else:
        t = scope.tensor(name)
    line = _written(scope, target, t)
    if scope.random.random() < 0.25:
        line = f"with torch.no_grad(): {line}"
    scope.add(line)


def _written(scope, target, t):
    kind = scope.random.choices(list(CHANGES), list(CHANGES.values()))[0]
    if overlaps_itself(t):  # the order in which other values are written is undefined
        kind = filled
    return kind(scope, target, t)


def _of(scope, table):
    kind = scope.random.choices(list(table), list(table.values()))[0]
    return kind(scope)


def _maybe_without_gradient(scope, expression):
    return f"{expression}.detach()" if scope.random.random() < 0.05 else expression


def without_gradient(scope):
    name = scope.pick()
    expression = view_of(scope.random, name, scope.tensor(name))
    scope.add(f"with torch.no_grad(): {scope.name()} = {expression}")


def backward(scope):
    """A backward pass from a result, of all of it or weighted."""
    name = scope.pick(lambda t: t.requires_grad)
    t = scope.tensor(name)
    keep = scope.random.choice(("", "", "retain_graph=True"))
    if t.is_complex() or scope.random.random() < 0.3:
        line = f"{name}.backward({', '.join(filter(None, [f'torch.ones_like({name})', keep]))})"
    else:
        line = (
            f"{name}.{scope.random.choice(('sum()', 'square().sum()', 'mean()'))}.backward({keep})"
        )
    scope.add(line)


def gradient(scope):
    """Gradients as values, perhaps differentiable again."""
    name = scope.pick(lambda t: t.requires_grad)
    of = scope.pick(lambda t: t.requires_grad)
    graph = scope.random.choice(("", ", create_graph=True"))
    scope.add(
        f"{scope.name()}, = torch.autograd.grad({name}.abs().square().sum(), {of}, "
        f"allow_unused=True, materialize_grads=True{graph})"
    )


def tangent(scope):
    """What `torch.func` calls a Jacobian-vector product, as a value."""
    continuous = (*FLOATS, torch.complex64)
    name = scope.pick(lambda t: t.dtype in continuous and not overlaps_itself(t))
    t = scope.tensor(name)
    functions = ["a * a", "a.sum(0) * a", "a.mean()", "a.cumsum(0)", "a.prod(0)", "a[:1] + a"]
    if 1 <= t.dim() <= 2:
        functions += ["F.linear(a, a)", "F.linear(a, a[:1])", "torch.cat([a, a * 2])"]
    if not t.is_complex():
        functions += [
            "a.softmax(-1) * a",
            "a.logsumexp(0) * a",
            "a.amax(-1)",
            "a.sort(0)[0]",
            "a.sin()",
        ]
    function = scope.random.choice(functions)
    scope.add(
        f"{scope.name()} = torch.func.jvp(lambda a: {function}, "
        f"({name}.detach(),), (torch.ones_like({name}),))[1]"
    )


def about_gradients(scope):
    """Hooks, and what one does with `grad`."""
    name = scope.pick(lambda t: t.requires_grad)
    t = scope.tensor(name)
    choices = [
        f"{name}.grad = None",
        f"{name}.requires_grad_(False)",
        f"{scope.name()} = {name}.detach().requires_grad_()",
    ]
    if t._base is None:  # PyTorch crashes at hooks of some views of tensors that were written since
        choices += [f"{name}.register_hook(lambda g: g * 2)", f"{name}.retain_grad()"]
    if (t.is_leaf or t.retains_grad) and t.grad is not None:
        choices += [
            f"{name}.grad.zero_()",
            f"{name}.grad.mul_(2)",
            f"{scope.name()} = {name}.grad",
            f"with torch.no_grad(): {name}.sub_({name}.grad)",
            f"{name}.data.sub_({name}.grad, alpha=0.5)",
        ]
    scope.add(scope.random.choice(choices))


def state(scope):
    """Copies and exchanges of what a tensor holds."""
    name = scope.pick()
    t = scope.tensor(name)
    fresh = scope.name()
    choices = [
        f"{fresh} = copy.deepcopy({name})",
        f"{fresh} = {name}.clone()",
        f"{fresh} = {name}.contiguous()",
        f"{fresh} = torch.zeros_like({name})",
        f"{fresh} = {name}.new_ones({list(t.shape)})",
        f"{fresh} = {name}.data",
    ]
    if t.is_leaf and name not in scope.marked:
        choices.append(f"{name}.data = {name}.data * 2")
        choices.append(f"{name}.data = {name}.detach().clone()")
    line = scope.random.choice(choices)
    scope.add(line)
    if "deepcopy" in line and fresh in scope.run.names:  # which has the mark of the original
        scope.marked.add(fresh)


def look(scope):
    """Runs what is pending."""
    name = scope.pick(lambda t: t.numel())
    scope.add(scope.random.choice(("sync()", f"{name}.tolist()", f"{name}.abs().sum().item()")))


# Each with its weight.
LINES = {
    source: 2,
    mark: 2,
    view: 9,
    parts: 1,
    value: 9,
    join: 3,
    change: 10,
    without_gradient: 1,
    backward: 3,
    gradient: 1,
    tangent: 1,
    about_gradients: 2,
    state: 2,
    look: 1,
}
