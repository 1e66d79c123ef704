# SPDX-License-Identifier: Apache-2.0
"""Ops for random programs, on tensors that a scope has.

Those of `VALUES` and `JOINS` return an expression, those of `CHANGES` a line that writes a target.
"""

import torch
from random_views import dim_of, need, sizes, view_of

NUMBERS = (-2, -0.5, 0, 0.5, 1, 2, 3)
FLOATS = (torch.float32, torch.float64)


def number(scope, t):
    values = NUMBERS if t.dtype in FLOATS or scope.random.random() < 0.1 else (-2, 0, 1, 2, 3)
    return "True" if t.dtype == torch.bool else str(scope.random.choice(values))


def broadcastable(scope, t, written=None):
    """The name of a tensor that fits `t`, and may be read while `written` is written."""
    names = []
    for name, other in scope.run.tensors.items():
        try:
            shape = torch.broadcast_shapes(other.shape, t.shape)
        except RuntimeError:
            continue
        if len(shape) > 5 or shape.numel() > 400 or (written and shape != t.shape):
            continue
        # Of the CPU, integers then say that they require a gradient, and complex ones refuse it.
        if written and other.requires_grad and other.is_complex() != t.is_complex():
            continue
        if written and other.requires_grad and not (t.is_floating_point() or t.is_complex()):
            continue
        if not written or name == written or overlap_is_seen(other, t, written):
            names.append(name)
    need(names)
    return scope.random.choice(names)


def same_storage(a, b):
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def overlap_is_seen(read, written, target):
    """Whether no written element is read later, or PyTorch sees that one is, and refuses."""
    if not same_storage(read, written):
        return True
    return target != "a part" and all(map(_dense, (read, written)))


def _dense(t):
    sizes = sorted((s, n) for s, n in zip(t.stride(), t.shape) if n > 1)
    extent = 1
    for stride, size in sizes:
        if stride != extent:
            return False
        extent *= size
    return True


def overlaps_itself(t):
    """Whether two elements share memory."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
    places = torch.arange(last + 1).as_strided(t.shape, t.stride(), 0)
    return places.unique().numel() < t.numel()


def indices(scope, size, count, unique=False):
    """Rows of a dimension."""
    need(size or not count)
    rows = range(size)
    return scope.random.sample(rows, count) if unique else scope.random.choices(rows, k=count)


# --- values ---


def unary(scope):
    name = scope.pick()
    t = scope.tensor(name)
    calls = [".neg()", ".abs()", ".mul(1)", ".clone()", ".contiguous()", ".square()", ".conj()"]
    if t.dtype in FLOATS:
        calls += [".sin()", ".tanh()", ".sigmoid()", ".relu()", ".abs().sqrt()", ".floor()"]
        calls += [".abs().add(1).log()", ".clamp(-1, 1)", ".neg().abs().exp()", ".reciprocal()"]
        calls += [".softmax(-1)", ".log_softmax(0)", ".cos()", ".isnan()", ".round()", ".erf()"]
    if t.dtype == torch.bool:
        calls = [".logical_not()", ".clone()", ".int()", ".float()", ".contiguous()"]
    dtype = scope.random.choice(("float32", "float64", "int64", "bool", "complex64"))
    calls += [f".to(torch.{dtype})", ".float()", ".double()"]
    return name + scope.random.choice(calls)


def binary(scope):
    name = scope.pick()
    other = broadcastable(scope, scope.tensor(name))
    ops = [
        "{} + {}",
        "{} - {}",
        "{} * {}",
        "{} * {}",
        "{} == {}",
        "{} != {}",
        "{} / ({}.abs() + 1)",
    ]
    if not (scope.tensor(name).is_complex() or scope.tensor(other).is_complex()):
        ops += ["torch.maximum({}, {})", "torch.minimum({}, {})", "{} > {}", "{} <= {}"]
        ops += ["torch.where({} > 0, {}, 0.5)", "torch.logical_and({}, {})"]
    ops += [
        "torch.add({}, {}, alpha=2)",
        "torch.addcmul({0}, {1}, {1})",
        "torch.lerp({}, {}, 0.25)",
    ]
    if scope.random.random() < 0.3:
        other = number(scope, scope.tensor(name))
        ops = ["{} + {}", "{} * {}", "{1} - {0}", "{} == {}", "{0} ** 2", "{0} ** 3", "{0} / 4"]
        ops += ["{0} // 2", "{0} % 2"]
    return "(" + scope.random.choice(ops).format(name, other) + ")"


def reduction(scope):
    name = scope.pick()
    t = scope.tensor(name)
    dim = dim_of(scope.random, t) if t.dim() else -1
    keep = scope.random.choice(("", "", ", keepdim=True"))
    calls = ["sum()", f"sum({dim}{keep})", f"sum({dim}{keep})", "mean()", f"mean({dim}{keep})"]
    calls += [f"prod({dim}{keep})", f"cumsum({dim})", f"any({dim}{keep})", f"all({dim}{keep})"]
    calls += [f"count_nonzero({dim})", "norm()", f"cumprod({dim})"]
    if not t.is_complex():
        calls += [f"amax({dim}{keep})", f"amin({dim}{keep})", f"max({dim}{keep}).values", "max()"]
        calls += [f"max({dim}{keep}).indices", f"argmax({dim}{keep})", f"min({dim}{keep}).values"]
        calls += [f"sort({dim}, stable=True).values", f"argsort({dim}, stable=True)"]
        calls += [f"cummax({dim}).values", f"kthvalue(1, {dim}).values"]
        calls += [f"topk(1, {dim}).values", "unique()", f"logcumsumexp({dim})"]
    if t.dtype in FLOATS:
        calls += [f"var({dim}{keep})", "std()", f"logsumexp({dim}{keep})", f"norm(2, {dim}{keep})"]
        calls += [f"nansum({dim}{keep})", "std(correction=0)"]
    if t.dim() >= 2:
        calls += ["sum((0, 1))", f"mean((0, -1){keep})"]
    return f"{name}.{scope.random.choice(calls)}"


def product(scope):
    """A matrix product, with itself or with what fits."""
    name = scope.pick(lambda t: 1 <= t.dim() <= 3)
    t = scope.tensor(name)
    fitting = [
        other
        for other, u in scope.run.tensors.items()
        if u.dtype == t.dtype and u.dim() in (1, 2) and u.shape[0] == t.shape[-1]
    ]
    choices = [f"{name} @ {other}" for other in fitting] * 2
    choices += [f"F.linear({name}, {other})" for other in fitting if scope.tensor(other).dim() == 1]
    if t.dim() >= 2:
        choices += [f"{name} @ {name}.mT", f"{name}.mT @ {name}", f"F.linear({name}, {name})"]
        choices += [f'torch.einsum("...ij,...kj->...ik", {name}, {name})']
    else:
        choices += [f"torch.outer({name}, {name})", f"{name}.dot({name})"]
    return scope.random.choice(choices)


def arranged(scope):
    """The elements in another order or more often."""
    name = scope.pick(lambda t: t.dim())
    t = scope.tensor(name)
    dim = dim_of(scope.random, t)
    rows = indices(scope, t.shape[dim], scope.random.randint(0, 4) if t.shape[dim] else 0)
    calls = [f".roll({scope.random.randint(-3, 3)}, {dim})", f".flip({dim})", ".tril()", ".triu(1)"]
    if scope.random.random() < 0.05:
        rows = rows[1:] + [t.shape[dim] + 1]  # is refused when the op runs
    calls += [f".index_select({dim}, index({rows}))", f".repeat_interleave(2, {dim})"]
    calls += [f".repeat({[scope.random.randint(1, 2) for _ in t.shape]})", f".diff(dim={dim})"]
    calls += [f".gather({dim}, {name}.long() % {max(1, t.shape[dim])})", ".diag_embed()"]
    calls += [f".take_along_dim({name}.argsort({dim}, stable=True), {dim})", ".nonzero()"]
    calls += [
        ".flip(0).contiguous()",
        f".view_as({name})",
        f".reshape({sizes(scope.random, t.numel())})",
    ]
    choices = [name + call for call in calls]
    choices += [f"{name}[{name} != 0]", f"F.pad({name}, ({scope.random.randint(-1, 2)}, 1))"]
    rows = indices(scope, t.shape[0], scope.random.randint(0, 3) if t.shape[0] else 0)
    choices += [f"{name}[index({rows})]", f"torch.tile({name}, (2,))", f"{name}[{rows}]"]
    return scope.random.choice(choices)


def copied_view(scope):
    name = scope.pick()
    return view_of(scope.random, name, scope.tensor(name)) + ".clone()"


# --- joins ---


def join(scope):
    """Of tensors of one rank, or of a tensor with what is made of it."""
    name = scope.pick(lambda t: t.dim())
    t = scope.tensor(name)
    dim = dim_of(scope.random, t)
    same = [other for other, u in scope.run.tensors.items() if u.shape == t.shape]
    other = scope.random.choice(same)
    function = scope.random.choice(("cat", "cat", "stack", "hstack", "vstack"))
    parts = scope.random.choice(
        (f"[{name}, {other}]", f"[{name}[:1], {other}]", f"[{other}, {name}, {name} * 2]")
    )
    return f"torch.{function}({parts}{f', {dim}' if function in ('cat', 'stack') else ''})"


JOINS = {join: 1}


# --- changes ---


def with_number(scope, target, t):
    calls = ["add_({})", "mul_({})", "sub_({})", "fill_({})", "fill_({})", "zero_()", "neg_()"]
    if t.dtype in FLOATS:
        calls += ["div_(2)", "clamp_(-1, 1)", "sin_()", "relu_()", "tanh_()", "abs_()", "floor_()"]
    return f"{target}.{scope.random.choice(calls).format(number(scope, t))}"


def filled(scope, target, t):
    """Also of what is expanded, or unfolded into windows that overlap."""
    return f"{target}.{scope.random.choice(('fill_({})', 'zero_()')).format(number(scope, t))}"


def with_tensor(scope, target, t):
    other = broadcastable(scope, t, written=target)
    calls = ["add_", "add_", "mul_", "mul_", "sub_", "copy_", "copy_", "copy_"]
    call = f"{scope.random.choice(calls)}({other})"
    return f"{target}.{call}"


def assigned(scope, target, t):
    """`target[...] = value`."""
    need(t.dim() or scope.random.random() < 0.2)
    if scope.random.random() < 0.6:
        return f"{target}[{target} != 0] = {number(scope, t)}"
    other = broadcastable(scope, t, written="a part")
    keys = ["...", ":"]
    if t.dim() and t.shape[0]:
        rows = indices(scope, t.shape[0], scope.random.randint(0, 3) % (t.shape[0] + 1), True)
        keys += [str(scope.random.randrange(t.shape[0])), f"index({rows})", "::2", "1:"]
    return f"{target}[{scope.random.choice(keys)}] = {other}"


def masked(scope, target, t):
    call = scope.random.choice(
        (
            f"masked_fill_({target} == {target}, {number(scope, t)})",
            f"masked_fill_({target}.abs() > 1, {number(scope, t)})",
            f"masked_scatter_({target}.abs() > 1, {target}.clone().flatten())",
        )
    )
    return f"{target}.{call}"


def indexed(scope, target, t):
    """Writes of rows that an index names."""
    need(t.dim() and t.shape[0])
    dim = dim_of(scope.random, t, 1)
    count = scope.random.randint(0, min(3, t.shape[dim]))
    rows = indices(scope, t.shape[dim], count, unique=True)
    rows_of_first = indices(scope, t.shape[0], scope.random.randint(1, 3))
    source = f"torch.ones_like({target}).narrow({dim}, 0, {count})"
    few = scope.random.randint(1, min(3, t.shape[0]))
    unique_of_first = indices(scope, t.shape[0], few, unique=True)
    value = number(scope, t)
    value_of_type = f"torch.tensor({value}, dtype={t.dtype})"
    calls = [
        f"index_fill_({dim}, index({rows}), {value})",
        f"index_add_({dim}, index({rows}), {source})",
        f"index_copy_({dim}, index({rows}), {source})",
        f"index_put_((index({rows_of_first}),), {value_of_type}, accumulate=True)",
        f"index_put_((index({unique_of_first}),), torch.ones_like({target})[:{few}] * 3)",
    ]
    return f"{target}.{scope.random.choice(calls)}"


def scattered(scope, target, t):
    need(t.dim() and t.numel() and not t.is_complex() and t.dtype != torch.bool)
    dim = dim_of(scope.random, t, 1)
    size = t.shape[dim]
    order = f"{target}.detach().argsort({dim}, stable=True)"
    calls = [
        f"scatter_({dim}, {order}, {target}.detach() * 2)",
        f"scatter_({dim}, {order}.narrow({dim}, 0, {scope.random.randint(0, size)}), 1)",
        f"scatter_add_({dim}, {target}.detach().long() % {size}, torch.ones_like({target}))",
        f'scatter_reduce_({dim}, {target}.detach().long() % {size}, {target}.clone(), "amax")',
    ]
    return f"{target}.{scope.random.choice(calls)}"


def renamed(scope, target, t):
    """Changes of the shape of the tensor object itself."""
    need("." not in target and "[" not in target)
    calls = ["unsqueeze_(0)", "squeeze_()"]
    if t.dim() >= 2:
        calls += ["t_()", "transpose_(0, 1)", "transpose_(0, -1)"]
    return f"{target}.{scope.random.choice(calls)}"


def augmented(scope, target, t):
    need("." not in target and "[" not in target)
    return f"{target} {scope.random.choice('+-*')}= {broadcastable(scope, t, written=target)}"


CHANGES = {
    with_number: 6,
    with_tensor: 6,
    assigned: 5,
    masked: 2,
    indexed: 3,
    scattered: 2,
    renamed: 1,
    augmented: 1,
}


def changed_copy(scope):
    """As `indexed` and its like, but the tensor stays as it is."""
    name = scope.pick(lambda t: not overlaps_itself(t))
    change = scope.random.choice((masked, indexed, scattered))
    return change(scope, name, scope.tensor(name)).replace("_(", "(", 1)


VALUES = {
    unary: 6,
    binary: 7,
    reduction: 5,
    product: 3,
    arranged: 4,
    copied_view: 1,
    changed_copy: 2,
}
