# SPDX-License-Identifier: Apache-2.0
"""Views for random programs: each function takes random choices and a tensor and returns what to
write after its name."""

import math

import torch


class NotPossible(Exception):
    """No available tensor fits."""


def need(condition):
    if not condition:
        raise NotPossible


def dim_of(random, t, least=0):
    """A dimension of at least `least` elements, now and then counted from the end."""
    dims = [d for d, n in enumerate(t.shape) if n >= least]
    need(dims)
    d = random.choice(dims)
    return d if random.random() < 0.7 else d - t.dim()


def select(random, t):
    d = dim_of(random, t, 1)
    n = t.shape[d]
    return f".select({d}, {random.randrange(-n, n)})"


def item(random, t):
    need(t.dim())
    return f"[{', '.join(_part(random, n) for n in t.shape[: random.randint(1, t.dim())])}]"


def _part(random, n):
    kind = random.randrange(6)
    begin = random.randint(0, n)
    if kind == 0 and n:
        return str(random.randrange(-n, n))
    if kind == 1:
        return ":"
    if kind == 2:
        return f"::{random.randint(1, 3)}"
    if kind == 3:
        return f"{begin}:"
    if kind == 4:
        return f":{begin - n if begin < n else ''}"
    return f"{begin}:{random.randint(begin, n)}:{random.randint(1, 2)}"


def narrow(random, t):
    d = dim_of(random, t)
    begin = random.randint(0, t.shape[d])
    return f".narrow({d}, {begin}, {random.randint(0, t.shape[d] - begin)})"


def permute(random, t):
    return f".permute({random.sample(range(t.dim()), t.dim())})"


def transpose(random, t):
    return f".transpose({dim_of(random, t)}, {dim_of(random, t)})"


def matrix_transpose(random, t):
    need(t.dim() >= 2)
    return ".mT"


def movedim(random, t):
    return f".movedim({dim_of(random, t)}, {dim_of(random, t)})"


def expand(random, t):
    sizes = [random.choice((n, -1, 3)) if n == 1 else random.choice((n, -1)) for n in t.shape]
    return f".expand({[random.randint(1, 3)] * random.randint(0, 1) + sizes})"


def unsqueeze(random, t):
    return f".unsqueeze({random.randint(-t.dim() - 1, t.dim())})"


def squeeze(random, t):
    return random.choice((".squeeze()", f".squeeze({dim_of(random, t)})"))


def sizes(random, count):
    """Sizes whose product is `count`, one perhaps -1."""
    result = []
    rest = count
    while rest > 1 and len(result) < 3:
        divisor = random.choice([d for d in range(1, rest + 1) if rest % d == 0])
        result.append(divisor)
        rest //= divisor
    result.append(rest)
    random.shuffle(result)
    if count and random.random() < 0.3:
        result[random.randrange(len(result))] = -1
    return result


def view(random, t):
    return f".view({sizes(random, t.numel())})"


def reshape(random, t):
    return f".reshape({sizes(random, t.numel())})"


def flatten(random, t):
    need(t.dim() >= 2)
    first = random.randrange(t.dim() - 1)
    return random.choice((".flatten()", f".flatten({first}, {random.randrange(first, t.dim())})"))


def unflatten(random, t):
    d = dim_of(random, t, 1)
    return f".unflatten({d}, {sizes(random, t.shape[d])})"


def diagonal(random, t):
    need(t.dim() >= 2)
    a, b = random.sample(range(t.dim()), 2)
    return f".diagonal({random.randint(-1, 1)}, {a}, {b})"


def unfold(random, t):
    d = dim_of(random, t, 1)
    return f".unfold({d}, {random.randint(1, t.shape[d])}, {random.randint(1, 3)})"


def as_strided(random, t):
    need(not t.is_conj() and not t.is_neg())
    room = t.untyped_storage().nbytes() // t.element_size()
    shape, strides, extent = [], [], 1
    for _ in range(random.randint(0, 3)):
        # Beyond what is there: the order in which overlapping elements are written is nobody's.
        shape.append(random.randint(1, 3))
        strides.append(extent + random.randint(0, 2))
        extent += (shape[-1] - 1) * strides[-1]
    need(extent <= room)
    order = random.sample(range(len(shape)), len(shape))
    shape, strides = [shape[i] for i in order], [strides[i] for i in order]
    return f".as_strided({shape}, {strides}, {random.randint(0, room - extent)})"


def part(random, t):
    """One of the results of a split."""
    d = dim_of(random, t, 1)
    call, count = random.choice(
        [
            (
                f"split({(step := random.randint(1, t.shape[d]))}, {d})",
                math.ceil(t.shape[d] / step),
            ),
            (f"unbind({d})", t.shape[d]),
            (f"chunk(2, {d})", min(2, t.shape[d])),
            (f"tensor_split(3, {d})", 3),
        ]
    )
    return f".{call}[{random.randrange(count)}]"


def complex_parts(random, t):
    need(t.is_complex())
    return random.choice((".real", ".imag", ".conj()", ".conj()", ".resolve_conj()", ".mH"))


def bytes_as(random, t):
    other = {  # Only bits that do not depend on rounding.
        torch.float32: ("torch.complex64",),
        torch.complex64: ("torch.float32",),
        torch.int64: ("torch.float64", "torch.int32"),
        torch.int32: ("torch.int64", "torch.int16"),
    }
    need(t.dtype in other and not t.is_conj())
    return f".view({random.choice(other[t.dtype])})"


def alias(random, t):
    return random.choice((".detach()", ".data", ".view_as(+)", ".expand_as(+)", "[...]", "[None]"))


# Each with its weight.
VIEWS = {
    select: 3,
    item: 6,
    narrow: 3,
    permute: 3,
    transpose: 3,
    matrix_transpose: 1,
    movedim: 1,
    expand: 3,
    unsqueeze: 2,
    squeeze: 2,
    view: 4,
    reshape: 4,
    flatten: 2,
    unflatten: 2,
    diagonal: 2,
    unfold: 2,
    as_strided: 1,
    part: 3,
    complex_parts: 2,
    bytes_as: 1,
    alias: 1,
}


def view_of(random, name, t):
    """An expression for a view, sometimes a chain."""
    kind = random.choices(list(VIEWS), list(VIEWS.values()))[0]
    return (name + kind(random, t)).replace("+", name)
