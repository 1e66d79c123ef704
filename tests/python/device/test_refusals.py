# SPDX-License-Identifier: Apache-2.0
"""Calls that eager refuses because of shapes and element types are refused at the same line, in its
words.

Other pending work is not lost then.
"""

import pytest
import torch
from torch.nn import functional

import torch_spmd as spmd


def refusal(call, device):
    with pytest.raises((RuntimeError, IndexError, NotImplementedError, TypeError)) as caught:
        call(device)
    return type(caught.value), str(caught.value).splitlines()[0]


def check_same_refusal(call):
    pending = torch.arange(6.0).to("spmd") * 2
    assert refusal(call, "spmd") == refusal(call, "cpu")
    assert pending.tolist() == [0, 2, 4, 6, 8, 10]


TYPES = {
    "argmax of bool": lambda d: torch.ones(3, 4, dtype=torch.bool, device=d).argmax(1),
    "bitwise and of floats": lambda d: torch.ones(4, device=d) & torch.ones(4, device=d),
    "cummax of complex": lambda d: torch.ones(4, dtype=torch.cfloat, device=d).cummax(0),
    "erf of complex": lambda d: torch.ones(4, dtype=torch.cfloat, device=d).erf(),
    "floor of complex": lambda d: torch.ones(4, dtype=torch.cfloat, device=d).floor(),
    "gelu of int": lambda d: functional.gelu(torch.ones(4, dtype=torch.int64, device=d)),
    "lerp of int": lambda d: torch.arange(3, device=d).lerp(torch.arange(3, device=d), 0.25),
    "order of complex": lambda d: torch.ones(3, dtype=torch.cfloat, device=d) > 0,
    "pooling of bool": lambda d: functional.avg_pool2d(
        torch.ones(1, 1, 4, 4, dtype=torch.bool, device=d), 2
    ),
    "power of bools": lambda d: torch.pow(True, torch.ones(3, dtype=torch.bool, device=d)),
    "rand of int": lambda d: torch.rand(3, dtype=torch.int64, device=d),
    "randn of int": lambda d: torch.randn(3, dtype=torch.int64, device=d),
    "product of bools": lambda d: torch.ones(300, 300, dtype=torch.bool, device=d).mm(
        torch.ones(300, 300, dtype=torch.bool, device=d)
    ),
    "relu of bool": lambda d: torch.ones(4, dtype=torch.bool, device=d).relu(),
    "softmax of int": lambda d: torch.ones(4, dtype=torch.int64, device=d).softmax(0),
    "sort of complex": lambda d: torch.ones(4, dtype=torch.cfloat, device=d).sort(),
    "subtraction from bool": lambda d: torch.ones(3, dtype=torch.bool, device=d).sub_(True),
    "subtraction of bool": lambda d: True - torch.ones(3, dtype=torch.bool, device=d),
}


@pytest.mark.parametrize("name", TYPES)
def test_element_types_that_only_kernels_refuse(name):
    check_same_refusal(TYPES[name])
    check_same_refusal(TYPES[name])  # known by now


def ones(d, *sizes, dtype=None):
    return torch.ones(*sizes, dtype=dtype, device=d)


MIXED = {
    "boundaries of complex": lambda d: torch.bucketize(ones(d, 2, dtype=torch.cfloat), ones(d, 5)),
    "complex of two widths": lambda d: torch.complex(ones(d, 3), ones(d, 3).double()),
    "convolution": lambda d: functional.conv1d(ones(d, 1, 3, 4), ones(d, 3, 3, 3).int()),
    "cross entropy": lambda d: functional.binary_cross_entropy(ones(d, 3).bool(), ones(d, 3)),
    "distances": lambda d: torch.cdist(ones(d, 2, 3).double(), ones(d, 2, 3)),
    "heaviside": lambda d: torch.heaviside(ones(d, 3), ones(d, 3).double()),
    "indexed copy": lambda d: ones(d, 3).index_copy(0, ones(d, 1).long(), ones(d, 1).double()),
    "indexed sum": lambda d: ones(d, 3).index_add(0, ones(d, 1).long(), ones(d, 1).double()),
    "linear": lambda d: functional.linear(ones(d, 2, 3), ones(d, 4, 3).int()),
    "norm of layers": lambda d: functional.layer_norm(
        ones(d, 2, 3).double(), (3,), ones(d, 3), ones(d, 3)
    ),
    "polar": lambda d: torch.polar(ones(d, 3), ones(d, 3).double()),
    "product": lambda d: ones(d, 2, 3) @ ones(d, 3, 2).int(),
    "product added to bools": lambda d: torch.addmm(
        ones(d, 2, 2).bool(), ones(d, 2, 3), ones(d, 3, 2)
    ),
    "put": lambda d: ones(d, 3).put(ones(d, 1).long(), ones(d, 1).double()),
    "reduced by index": lambda d: ones(d, 3).index_reduce(
        0, ones(d, 1).long(), ones(d, 1).double(), "mean"
    ),
    "sign of complex": lambda d: ones(d, 3, dtype=torch.cfloat).sign(),
}


@pytest.mark.parametrize("name", MIXED)
def test_element_types_that_only_kernels_refuse_together(name):
    check_same_refusal(MIXED[name])
    check_same_refusal(MIXED[name])


SHAPES = {
    "boundaries in rows": lambda d: torch.bucketize(ones(d, 3), ones(d, 2, 5)),
    "convolution without dilation": lambda d: functional.conv2d(
        ones(d, 1, 2, 4, 4), ones(d, 3, 2, 3, 3), dilation=0
    ),
    "diagonal of another size": lambda d: ones(d, 2, 5, 5).diagonal_scatter(ones(d, 5)),
    "diagonal of one number": lambda d: ones(d, 5, 5).diagonal_scatter(ones(d, 1)),
    "histogram without an end": lambda d: ones(d, 5).histc(4, 0, float("inf")),
    "index in rows": lambda d: ones(d, 3, 4).index_select(0, ones(d, 2, 2).long()),
    "indexed sum of another rank": lambda d: ones(d, 3, 2).index_add(
        0, torch.tensor([0, 1], device=d), ones(d, 2)
    ),
    "indexed sum of other columns": lambda d: ones(d, 3, 2).index_add(
        0, torch.tensor([0, 1], device=d), ones(d, 2, 3)
    ),
    "joined along no dimension": lambda d: torch.cat([ones(d, 2, 3), ones(d, 2, 3)], 7),
    "matrix added of another rank": lambda d: torch.addmm(
        ones(d, 2, 2, 3), ones(d, 2, 2), ones(d, 2, 3)
    ),
    "places and numbers": lambda d: ones(d, 3).put(torch.zeros(2, device=d).long(), ones(d, 3)),
    "roll of no dimension": lambda d: ones(d, 1)[0].roll(1, 0),
    "selected of another size": lambda d: ones(d, 2, 5, 5).select_scatter(ones(d, 5), 0, 1),
    "slice of another size": lambda d: ones(d, 4, 5, 5).slice_scatter(ones(d, 5, 5)),
    "slice of one row": lambda d: ones(d, 4, 5).slice_scatter(ones(d, 1, 5), 0, 1, 3),
    "softmax over no dimension": lambda d: functional.softmax(ones(d, 3, 4), 5),
    "sort along no dimension": lambda d: ones(d, 5, 5).sort(7),
    "strides beyond the storage": lambda d: ones(d, 5).as_strided((3, 3), (2, 1)),
    "weights of other classes": lambda d: functional.nll_loss(
        ones(d, 2, 3, 4, 4), ones(d, 2, 4, 4).long(), weight=ones(d, 4)
    ),
    "targets of another image": lambda d: torch.ops.aten.nll_loss2d(
        ones(d, 2, 3, 4, 4), ones(d, 2, 4, 5).long()
    ),
    "transposed convolution, padded more than a stride": lambda d: functional.conv_transpose2d(
        ones(d, 1, 2, 4, 4), ones(d, 2, 3, 3, 3), stride=2, output_padding=2
    ),
    "transposed convolution in one dimension": lambda d: functional.conv_transpose1d(
        ones(d, 1, 2, 4), ones(d, 2, 3, 3), output_padding=1
    ),
    "vector added of another rank": lambda d: torch.addmv(ones(d, 2, 5), ones(d, 5, 9), ones(d, 9)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_only_kernels_refuse(name):
    check_same_refusal(SHAPES[name])
    check_same_refusal(SHAPES[name])


def wide(d, *sizes, dtype=torch.double):
    """For out= of ones in float32."""
    return torch.empty(sizes, dtype=dtype, device=d)


OUTS = {
    "all": lambda d: torch.all(ones(d, 3), out=wide(d, dtype=torch.int8)),
    "amax": lambda d: torch.amax(ones(d, 3, 3), 0, out=wide(d, 3)),
    "argmax": lambda d: torch.argmax(ones(d, 3), out=wide(d, dtype=torch.int32)),
    "bmm": lambda d: torch.bmm(ones(d, 1, 3, 3), ones(d, 1, 3, 3), out=wide(d, 1, 3, 3)),
    "bucketize": lambda d: torch.bucketize(ones(d, 3), ones(d, 3), out=wide(d, 3)),
    "clamp": lambda d: torch.clamp(ones(d, 3), 0, 1, out=wide(d, 3)),
    "complex": lambda d: torch.complex(ones(d, 3), ones(d, 3), out=wide(d, 3, dtype=torch.cdouble)),
    "dot": lambda d: torch.dot(ones(d, 3), ones(d, 3), out=wide(d)),
    "gather": lambda d: torch.gather(ones(d, 3), 0, ones(d, 1).long(), out=wide(d, 1)),
    "index_select": lambda d: torch.index_select(ones(d, 3), 0, ones(d, 1).long(), out=wide(d, 1)),
    "inv": lambda d: torch.linalg.inv(torch.eye(3, device=d), out=wide(d, 3, 3)),
    "masked_select": lambda d: torch.masked_select(ones(d, 3), ones(d, 3).bool(), out=wide(d, 3)),
    "max": lambda d: torch.max(ones(d, 3, 3), 1, out=(ones(d, 3), wide(d, 3, dtype=torch.int32))),
    "mm": lambda d: torch.mm(ones(d, 3, 3), ones(d, 3, 3), out=wide(d, 3, 3)),
    "nonzero": lambda d: torch.nonzero(ones(d, 3), out=wide(d, 3, 1, dtype=torch.int32)),
    "norm": lambda d: torch.linalg.vector_norm(ones(d, 3), out=wide(d)),
    "scatter": lambda d: torch.scatter(
        ones(d, 3), 0, torch.zeros(1, device=d).long(), ones(d, 1), out=wide(d, 3)
    ),
    "softmax": lambda d: torch._softmax(ones(d, 3), 0, False, out=wide(d, 3)),
    "sort": lambda d: torch.sort(ones(d, 3), out=(wide(d, 3), wide(d, 3, dtype=torch.long))),
    "topk": lambda d: torch.topk(ones(d, 3), 2, out=(wide(d, 2), wide(d, 2, dtype=torch.long))),
    "tril": lambda d: torch.tril(ones(d, 3, 3), out=wide(d, 3, 3)),
    "where": lambda d: torch.where(ones(d, 3).bool(), ones(d, 3), ones(d, 3), out=wide(d, 3)),
}


@pytest.mark.parametrize("name", OUTS)
def test_out_of_another_type_that_kernels_refuse(name):
    check_same_refusal(OUTS[name])
    check_same_refusal(OUTS[name])


TAKEN = {
    "add": lambda d: torch.add(ones(d, 3), ones(d, 3), out=wide(d, 3)),
    "add narrower": lambda d: torch.add(ones(d, 3).double(), 1, out=torch.empty(3, device=d)),
    "cat": lambda d: torch.cat([ones(d, 3), ones(d, 2)], out=wide(d, 5)),
    "comparison": lambda d: torch.eq(ones(d, 3), 1, out=torch.empty(3, device=d)),
    "cumsum": lambda d: torch.cumsum(ones(d, 3), 0, out=wide(d, 3)),
    "mean": lambda d: torch.mean(ones(d, 3, 3), 0, out=wide(d, 3)),
    "sum": lambda d: torch.sum(ones(d, 3, 3), 0, out=wide(d, 3)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_out_of_another_type_that_kernels_take(name):
    want, got = TAKEN[name]("cpu"), TAKEN[name]("spmd")
    assert got.dtype == want.dtype and torch.equal(got.cpu(), want)


LOSSES = {
    "huber": functional.huber_loss,
    "mse": functional.mse_loss,
    "smooth l1": functional.smooth_l1_loss,
}


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_bools_are_those_of_numbers(name, reduction):
    found = []
    for device in ("cpu", "spmd"):
        x = torch.linspace(-2, 2, 6).to(device).requires_grad_(name != "huber")
        hit = (torch.arange(6) % 2 == 0).to(device)
        found.append([LOSSES[name](x, hit, reduction=reduction)])
        if name != "huber":  # whose gradient and bools as predictions the CPU refuses
            found[-1] += torch.autograd.grad(found[-1][0].sum(), x)
            found[-1].append(LOSSES[name](hit, x, reduction=reduction))
    for mine, expected in zip(found[1], found[0]):
        torch.testing.assert_close(mine.cpu(), expected)


NOTHING = {
    "min of no rows": lambda d: torch.zeros(0, 0, device=d).min(1),
    "order of complex": lambda d: torch.ones(0, dtype=torch.cfloat, device=d) > 0,
    "top of bools": lambda d: torch.zeros(0, 4, dtype=torch.bool, device=d).topk(1, 1),
}


@pytest.mark.parametrize("name", NOTHING)
def test_ops_on_no_elements_are_refused_alike(name):
    check_same_refusal(NOTHING[name])


def write(device, rows, values):
    x = torch.zeros(4, 2, device=device)
    x[torch.tensor(rows, dtype=torch.int64, device=device)] = values.to(device)
    return x


WRITES = {
    "more rows than indices": lambda d: write(d, [3], torch.ones(4, 2)),
    "no indices": lambda d: write(d, [], torch.ones(4, 2)),
    "other element types": lambda d: write(d, [3], torch.ones(1, 2, dtype=torch.int64)),
    "too many columns": lambda d: write(d, [3, 1], torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", WRITES)
def test_values_that_do_not_fit_an_indexed_write(name):
    check_same_refusal(WRITES[name])


def test_fitting_shapes_need_no_early_check():
    rows = torch.tensor([True, False, True, False])
    for values in (torch.ones(2, 2), torch.ones(2), torch.ones(())):
        on_cpu, ours = torch.zeros(4, 2), torch.zeros(4, 2).to("spmd")
        on_cpu[rows] = values
        ours[rows.to("spmd")] = values.to("spmd")
        assert torch.equal(ours.cpu(), on_cpu)


def test_results_are_the_cpus_where_meta_kernels_differ():
    bools = torch.tensor([True, False, True])
    mesh = spmd.make_mesh((2,), ("x",))
    for exponent in (True, 2, 2.0):
        want = bools.pow(exponent)
        ours = spmd.mark_sharding(bools.to("spmd"), mesh, ("x",))
        got = ours.pow(exponent).cpu()
        assert got.dtype == want.dtype and torch.equal(got, want)
    assert torch.equal(bools.to("spmd").pow_(True).cpu(), bools.clone().pow_(True))

    images = torch.zeros(0, 1, 6, 6)
    want = functional.pixel_unshuffle(images, 3)
    assert functional.pixel_unshuffle(images.to("spmd"), 3).shape == want.shape


DRAWS = {
    "bernoulli of int": lambda d: torch.bernoulli(torch.ones(3, dtype=torch.int64, device=d)),
    "bernoulli of 2": lambda d: torch.zeros(3, device=d).bernoulli_(2.0),
    "cauchy of complex": lambda d: torch.zeros(3, dtype=torch.cfloat, device=d).cauchy_(),
    "exponential of int": lambda d: torch.zeros(3, dtype=torch.int64, device=d).exponential_(),
    "geometric of 2": lambda d: torch.zeros(3, device=d).geometric_(2),
    "normal of int": lambda d: torch.zeros(3, dtype=torch.int64, device=d).normal_(),
    "normal of negative width": lambda d: torch.zeros(3, device=d).normal_(0, -1),
    "randint of none": lambda d: torch.randint(5, 3, (2,), device=d),
    "random of none": lambda d: torch.zeros(3, device=d).random_(5, 3),
    "uniform of bool": lambda d: torch.zeros(3, dtype=torch.bool, device=d).uniform_(),
    "uniform of none": lambda d: torch.zeros(3, device=d).uniform_(2, 1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_that_no_distribution_has(name):
    check_same_refusal(DRAWS[name])


def test_the_cpus_generator_is_not_used():
    before = torch.get_rng_state()
    for draw in (torch.rand, torch.randn):
        draw(5, 7, device="spmd").cpu()
    torch.zeros(11, device="spmd").normal_(1.0, 2.0).bernoulli_(0.25).cpu()
    assert torch.equal(torch.get_rng_state(), before)


TABLES = {
    "arange of bool": lambda d: torch.arange(3, dtype=torch.bool, device=d),
    "arange of complex": lambda d: torch.arange(3, dtype=torch.cfloat, device=d),
    "full of complex": lambda d: torch.full((2,), 1j, dtype=torch.float32, device=d),
    "linspace of bool": lambda d: torch.linspace(0, 1, 3, dtype=torch.bool, device=d),
}


@pytest.mark.parametrize("name", TABLES)
def test_new_tensors_that_no_kernel_makes(name):
    check_same_refusal(TABLES[name])


VALUES = {
    "bernoulli of no probability": lambda p, d: torch.bernoulli(p),
    "bernoulli in place": lambda p, d: torch.zeros(5, device=d).bernoulli_(p),
    "binary cross entropy": lambda p, d: functional.binary_cross_entropy(
        p, torch.ones(5, device=d), reduction="none"
    ),
    "normal below no deviation": lambda p, d: torch.normal(0.0, 1.25 - p),
    "normal with means": lambda p, d: torch.normal(torch.ones(5, device=d), 1.25 - p),
    "poisson below no rate": lambda p, d: torch.poisson(1.25 - p),
}


@pytest.mark.parametrize("bad", [1.5, float("nan")])
@pytest.mark.parametrize("name", VALUES)
def test_values_out_of_range_are_refused_when_they_are_known(name, bad):
    good = torch.tensor([0.0, 0.25, 1.0, 0.5, 0.75])
    p = good.clone()
    p[3] = bad
    x = spmd.mark_sharding(good.to("spmd"), spmd.make_mesh((2,), ("x",)), ("x",))
    assert VALUES[name](x, "spmd").isfinite().all()
    y = spmd.mark_sharding(p.to("spmd"), spmd.make_mesh((2,), ("x",)), ("x",))
    with pytest.raises(RuntimeError) as eager:
        VALUES[name](p, "cpu")
    with pytest.raises(RuntimeError) as ours:
        VALUES[name](y, "spmd").cpu()
    words = str(eager.value).splitlines()[0].partition("  (Could")[0]
    assert words in str(ours.value)
    assert torch.equal(x.cpu(), good)
