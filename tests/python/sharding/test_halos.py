# SPDX-License-Identifier: Apache-2.0
"""Ops on sharded images that read neighbours: right results, and only neighbours' rows are sent.

Convolution and pooling at large are in test_upstream_bugs_images.py and, op by op, in
tests/cpp/rules.
"""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import torch_spmd as spmd
from torch_spmd import _C

ROWS, COLUMNS, PLANES = 32, 20, 6
IMAGE = (2, 3, ROWS, COLUMNS)
SPECS = [(None, None, "x", "y"), (None, None, ("x", "y"), None), (None, None, None, "x")]
MODES = [
    ("bilinear", dict(align_corners=False)),
    ("bilinear", dict(align_corners=True)),
    ("bilinear", dict(align_corners=False, antialias=True)),
    ("bicubic", dict(align_corners=False)),
    ("bicubic", dict(align_corners=True)),
    ("bicubic", dict(align_corners=False, antialias=True)),
    ("nearest", {}),
    ("nearest-exact", {}),
]
SIZES = [
    dict(size=(48, COLUMNS)),
    dict(size=(17, 31)),
    dict(size=(64, 40)),
    dict(scale_factor=1.5),
    dict(scale_factor=(0.6, 1.0)),
    dict(scale_factor=0.3, recompute_scale_factor=True),
]
GATHERS = {"all_gather", "all_reduce", "all_to_all", "reduce_scatter"}


def kinds_and_bytes():
    rows = [row for program in _C.programs() for row in program.collectives()]
    return {row[0] for row in rows}, sum(row[5] for row in rows)


def both_ways(function, image, spec):
    """Compares result and gradient with eager's. Kinds and bytes on the wire of each program."""
    mesh = spmd.make_mesh((4, 2), ("x", "y"))
    host = image.clone().requires_grad_()
    expected = function(host)
    grad = torch.rand(expected.shape).to(expected.dtype)
    expected.backward(grad)

    marked = spmd.mark_sharding(image.to("spmd"), mesh, spec).requires_grad_()
    grad = grad.to("spmd")
    if grad.dim() == len(spec):
        spmd.mark_sharding(grad, mesh, spec)
    _C.forget_programs()
    found = function(marked)
    result = found.cpu()
    forward = kinds_and_bytes()
    _C.forget_programs()
    found.backward(grad)
    derivative = marked.grad.cpu()
    close = {} if image.dtype.itemsize < 4 else dict(rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(result, expected.detach(), **close)
    torch.testing.assert_close(derivative, host.grad, **close)
    return forward, kinds_and_bytes()


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode, how", MODES, ids=str)
def test_interpolation_needs_neighbouring_rows_only(mode, how, size, spec):
    runs = both_ways(lambda x: F.interpolate(x, mode=mode, **how, **size), torch.randn(IMAGE), spec)
    for kinds, _ in runs:
        assert not kinds & GATHERS
    if changes(size, spec):
        assert all("exchange" in kinds for kinds, _ in runs)


def changes(size, spec):
    """Whether a sharded dimension gets another size, other than by copying whole rows."""
    new = size.get("size", ())
    return any(
        entry is not None and d < len(new) and new[d] % IMAGE[2 + d] != 0
        for d, entry in enumerate(spec[2:])
    )


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("pad", [(1, 1, 1, 1), (0, 0, 3, 2), (2, 0, 0, 9), (0, 19, 31, 0)], ids=str)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_borders_need_neighbouring_rows_only(mode, pad, spec):
    runs = both_ways(lambda x: F.pad(x, pad, mode=mode), torch.randn(IMAGE), spec)
    for kinds, _ in runs:
        assert not kinds & GATHERS


POOLS = {
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "unfold, dilated": lambda x: F.unfold(
        x, (2, 3), dilation=(3, 1), padding=(0, 2), stride=(1, 2)
    ),
    "unfold, without gaps": lambda x: F.unfold(x, (4, 2), stride=(4, 2)),
    "fold": lambda x: F.fold(F.unfold(x, 3, padding=1) ** 2, IMAGE[2:], 3, padding=1),
    "fold, with gaps": lambda x: F.fold(F.unfold(x, 2, stride=3).cos(), IMAGE[2:], 2, stride=3),
    "fold, with gaps wider than tiles": lambda x: F.fold(
        F.unfold(x, 1, stride=7, padding=2) * 2, IMAGE[2:], 1, stride=7, padding=2
    ),
    "adaptive mean": lambda x: F.adaptive_avg_pool2d(x, (7, 6)),
    "adaptive mean of more": lambda x: F.adaptive_avg_pool2d(x, (45, 31)),
    "mean without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "mean that reaches outside": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
    "sums": lambda x: F.avg_pool2d(x, 3, 2, divisor_override=1),
}


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_windows_need_neighbouring_rows_only(name, spec):
    runs = both_ways(POOLS[name], torch.randn(IMAGE), spec)
    if "fold" not in name:  # F.unfold's result has rows and columns in one dimension, [h*w]
        for kinds, _ in runs:
            assert kinds == {"exchange"}


def test_patches_of_a_signal_cut_by_rows_stay_cut_by_rows():
    """[h*w] is sharded as h is; a patch needs one row beyond each end of a tile."""
    image, row = torch.randn(2, 3, 32, 20), 2 * 3 * 20 * 4
    mesh = spmd.make_mesh((8,), ("x",))
    marked = spmd.mark_sharding(image.to("spmd"), mesh, (None, None, "x", None))
    _C.forget_programs()
    patches = F.unfold(marked, 3, padding=1)
    torch.testing.assert_close(patches.cpu(), F.unfold(image, 3, padding=1), rtol=0, atol=0)
    assert kinds_and_bytes() == ({"exchange"}, 2 * row)


def test_patches_copy_what_is_no_number():
    image = torch.full((1, 1, 8, 4), float("nan"))
    image[:, :, ::2] = float("inf")
    mesh = spmd.make_mesh((4,), ("x",))
    marked = spmd.mark_sharding(image.to("spmd"), mesh, (None, None, "x", None))
    expected = F.unfold(image, 3, padding=1)
    torch.testing.assert_close(F.unfold(marked, 3, padding=1).cpu(), expected, equal_nan=True)


def test_bytes_of_halos():
    """Four rows a tile become six: (4o - 1) / 6 is where output o lies, one row beyond each end."""
    spec = (None, None, ("x", "y"), None)
    row = PLANES * COLUMNS * 4
    forward, backward = both_ways(
        lambda x: F.interpolate(x, size=(48, COLUMNS), mode="bilinear"), torch.randn(IMAGE), spec
    )
    assert forward == ({"exchange"}, 2 * row)
    assert backward == ({"exchange"}, 2 * row)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_types(dtype):
    image = torch.randn(IMAGE).to(dtype)
    for mode in ("bilinear", "nearest"):
        both_ways(partial(F.interpolate, size=(48, 31), mode=mode), image, SPECS[0])
    both_ways(lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"), image, SPECS[0])


def test_integers():
    """Integers are rounded when interpolated, so not decomposed; borders only move them."""
    mesh = spmd.make_mesh((4, 2), ("x", "y"))
    image = torch.randint(0, 255, IMAGE, dtype=torch.uint8)
    marked = spmd.mark_sharding(image.to("spmd"), mesh, SPECS[0])
    for mode in ("bilinear", "nearest"):
        expected = F.interpolate(image, size=(48, 31), mode=mode)
        assert torch.equal(F.interpolate(marked, size=(48, 31), mode=mode).cpu(), expected)
    for dtype, mode in itertools.product((torch.int64, torch.complex64), ("reflect", "replicate")):
        expected = F.pad(image.to(dtype), (1, 2, 3, 4), mode=mode)
        assert torch.equal(F.pad(marked.to(dtype), (1, 2, 3, 4), mode=mode).cpu(), expected)


def test_ratios_that_are_no_small_fraction_gather():
    image, scale = torch.randn(IMAGE), 2**0.5
    runs = both_ways(partial(F.interpolate, scale_factor=scale, mode="bilinear"), image, SPECS[1])
    assert all(kinds & GATHERS for kinds, _ in runs)


# Sizes for which aten's rounded product is on the other side of a whole number, and some for which
# it is not.
ROUNDED = [(2, 82), (3, 123), (4, 82), (6, 74), (8, 82), (4, 41), (4, 61), (41, 33), (41, 60)]


@pytest.mark.parametrize("sizes", ROUNDED, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_is_what_rounding_makes_it(mode, sizes):
    signal = torch.randn(1, 1, sizes[0])
    both_ways(partial(F.interpolate, size=sizes[1], mode=mode), signal, (None, None, "x"))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("scale", [1.05, (1.05, 1.7), 2.1], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
def test_scales_that_the_kernels_pass_over(mode, scale, spec):
    """If sizes are equal, or twice as large, some of aten's kernels ignore the scale."""
    for size in (5, 10):
        image = torch.randn(2, 3, size, size)
        both_ways(partial(F.interpolate, scale_factor=scale, mode=mode), image, spec)
        if mode.startswith("bi"):
            how = dict(mode=mode, antialias=True)
            both_ways(partial(F.interpolate, scale_factor=scale, **how), image, spec)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing_of_narrow_tiles(mode):
    image, how = torch.randn(1, 1, 5, 5), dict(mode=mode, antialias=True)
    both_ways(partial(F.interpolate, size=(19, 5), **how), image, (None, None, None, "x"))
    image = torch.randn(2, 3, 12, 3)
    both_ways(partial(F.interpolate, size=(27, 24), **how), image, (None, None, None, ("x", "y")))


INFINITE = {
    "corners": partial(F.interpolate, size=(31, 4), mode="bilinear", align_corners=True),
    "nearest": partial(F.interpolate, size=(24, 4), mode="nearest"),
    "reflect": partial(F.pad, pad=(0, 0, 2, 2), mode="reflect"),
}


@pytest.mark.parametrize("name", INFINITE)
def test_what_is_infinite_stays_where_it_is(name):
    mesh, spec = spmd.make_mesh((4,), ("x",)), (None, None, "x", None)
    image = torch.rand(1, 1, 16, 4)
    host = image.clone().requires_grad_()
    expected = INFINITE[name](host)
    grad = torch.rand_like(expected)
    grad[:, :, 0] = torch.inf
    expected.backward(grad)
    marked = spmd.mark_sharding(image.to("spmd"), mesh, spec).requires_grad_()
    INFINITE[name](marked).backward(spmd.mark_sharding(grad.to("spmd"), mesh, spec))
    assert torch.isfinite(marked.grad.cpu())[torch.isfinite(host.grad)].all()


@pytest.mark.parametrize("rank", [1, 3])
def test_signals_and_volumes(rank):
    image = torch.randn(IMAGE[: 2 + rank] if rank == 1 else (1, 2, 8, 6, 10))
    spec = (None, None, "x") + ("y", None)[: rank - 1]
    for mode in ("linear" if rank == 1 else "trilinear", "nearest"):
        both_ways(partial(F.interpolate, scale_factor=1.25, mode=mode), image, spec)
    both_ways(lambda x: F.pad(x, (1, 2) * rank, mode="replicate"), image, spec)
