# SPDX-License-Identifier: Apache-2.0
"""Factories with `out`: the numbers of PyTorch, on the device, in the type and layout of `out`."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import _C, P

Fill = Callable[[torch.Tensor], torch.Tensor]
FACTORIES: dict[str, Fill] = {
    "arange": lambda out: torch.arange(12, out=out),
    "arange from": lambda out: torch.arange(3, 15, out=out),
    "arange by": lambda out: torch.arange(-3, 21, 2, out=out),
    "eye": lambda out: torch.eye(3, out=out),
    "eye of two sizes": lambda out: torch.eye(3, 4, out=out),
    "full": lambda out: torch.full((3, 4), 7, out=out),
    "linspace": lambda out: torch.linspace(0, 11, 12, out=out),
    "linspace from": lambda out: torch.linspace(
        torch.tensor(3.0, device=out.device), 11, 3, out=out
    ),
    "logspace": lambda out: torch.logspace(0, 2, 3, base=10, out=out),
    "ones": lambda out: torch.ones(3, 4, out=out),
    "range": lambda out: torch.range(1, 12, out=out),
    "zeros": lambda out: torch.zeros(3, 4, out=out),
}
FLOATING: dict[str, Fill] = {
    "fftfreq": lambda out: torch.fft.fftfreq(7, 0.5, out=out),
    "rfftfreq": lambda out: torch.fft.rfftfreq(7, 0.5, out=out),
}
# These have an `out` only as ops. Whether they warn that `out` is resized depends on the version.
WINDOWS = ("bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FLOATING)
def test_of_floating_types_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    assert_same(FLOATING[name], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
def test_are_pytorchs(name: str, dtype: torch.dtype) -> None:
    assert_same(FACTORIES[name], dtype)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_pytorchs(name: str) -> None:
    fill = getattr(torch.ops.aten, name).out
    ours = fill(7, out=torch.empty(0, device="spmd"))
    torch.testing.assert_close(ours.cpu(), fill(7, out=torch.empty(0)))


def assert_same(fill: Fill, dtype: torch.dtype) -> None:
    """The same values and the same warnings, whatever sizes `out` has before."""
    for size in [(0,), (12,), (3, 4)]:
        filled, said = [], []
        for device in ("cpu", "spmd"):
            out = torch.zeros(size, dtype=dtype, device=device)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert fill(out) is out
            filled.append(out)
            said.append([str(w.message).partition("(Triggered")[0] for w in caught])
        expected, ours = filled
        assert ours.device.type == "spmd" and ours.shape == expected.shape
        torch.testing.assert_close(ours.cpu(), expected)
        assert said[0] == said[1]


RANDOM: dict[str, Callable[..., torch.Tensor]] = {
    "normal": lambda **where: torch.normal(1.0, 2.0, (3, 4), **where),
    "rand": lambda **where: torch.rand(3, 4, **where),
    "randint": lambda **where: torch.randint(2, 9, (3, 4), **where),
    "randn": lambda **where: torch.randn(3, 4, **where),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_those_without_out(name: str) -> None:
    torch.manual_seed(0)
    expected = RANDOM[name](device="spmd", dtype=torch.float64)
    torch.manual_seed(0)
    out = torch.empty(0, dtype=torch.float64, device="spmd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RANDOM[name](out=out)
    assert torch.equal(out.cpu(), expected.cpu())


aten = torch.ops.aten
# What is drawn, without `out` and with it. These have an `out` only as ops, but for two of them.
DRAWN: dict[str, Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]] = {
    "bernoulli": lambda p, out: torch.bernoulli(p, **out),
    "normal": lambda p, out: torch.normal(p, p, **out),
    "normal of a number": lambda p, out: torch.normal(1.0, p, **out),
    "rand_like": lambda p, out: (aten.rand_like.out if out else torch.rand_like)(p, **out),
    "randn_like": lambda p, out: (aten.randn_like.out if out else torch.randn_like)(p, **out),
    "randint_like": lambda p, out: (aten.randint_like.out if out else torch.randint_like)(
        p, 9, **out
    ),
    "randint_like from": lambda p, out: (
        aten.randint_like.low_dtype_out if out else torch.randint_like
    )(p, 2, 9, **out),
    "poisson": lambda p, out: (aten.poisson.out if out else torch.poisson)(p, **out),
    "binomial": lambda p, out: (aten.binomial.out if out else torch.binomial)(p * 9, p, **out),
}


@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_into_out_is_drawn_on_the_device(name: str) -> None:
    p = torch.full((3, 4), 0.5).to("spmd")
    out = torch.empty(0, device="spmd")
    on_the_host = _C.statistics()["host_fallbacks"]
    torch.manual_seed(0)
    expected = DRAWN[name](p, {})
    torch.manual_seed(0)
    assert DRAWN[name](p, {"out": out}) is out
    assert _C.statistics()["host_fallbacks"] == on_the_host
    assert torch.equal(out.cpu(), expected.cpu())


@pytest.mark.parametrize("op", [torch.linspace, torch.logspace])
@pytest.mark.parametrize("begin", [1.0, torch.tensor(1.0), torch.tensor(1)])
@pytest.mark.parametrize("end", [2.0, torch.tensor(2.0)])
def test_ranges_between_numbers_of_the_host_are_made_on_the_device(
    op: Callable[..., torch.Tensor], begin: float | torch.Tensor, end: float | torch.Tensor
) -> None:
    on_the_host = _C.statistics()["host_fallbacks"]
    made = op(begin, end, 5, device="spmd")
    into = op(begin, end, 5, out=torch.empty(5, device="spmd"))
    assert _C.statistics()["host_fallbacks"] == on_the_host
    for ours in (made, into):
        torch.testing.assert_close(ours.cpu(), op(begin, end, 5))


def test_write_where_out_is_sharded() -> None:
    mesh = spmd.make_mesh((4,), ("data",))
    out = spmd.mark_sharding(torch.zeros(8, device="spmd"), mesh, P("data"))
    torch.arange(8, out=out)
    assert spmd.sharding_of(out).spec == P("data")
    assert out.tolist() == list(range(8))
