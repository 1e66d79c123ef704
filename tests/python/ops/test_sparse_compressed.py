# SPDX-License-Identifier: Apache-2.0
"""Compressed sparse tensors (CSR, CSC, BSR, BSC): what is made of them, and gradients, as on the
CPU; what products send; what waits; what is refused."""

import copy
import io
import re
from pathlib import Path

import pytest
import torch
import torchgen
from reported import reported
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support"),
]

LAYOUTS = {
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
OF_BLOCKS = ("bsr", "bsc")
DTYPES = [
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


def random(*sizes, seed=3, dtype=torch.float64):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def dense(rows=6, columns=8, share=0.4, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    there = torch.rand(rows, columns, generator=draw) < share
    if dtype.is_floating_point or dtype.is_complex:
        return random(rows, columns, seed=seed).to(dtype) * there
    return torch.randint(1, 5, (rows, columns), generator=draw).to(dtype) * there


def compressed(x, layout):
    sizes = ((2, 2),) if layout in OF_BLOCKS else ()
    return getattr(x, f"to_sparse_{layout}")(*sizes)


def indices(s):
    if s.layout in (torch.sparse_csr, torch.sparse_bsr):
        return s.crow_indices(), s.col_indices()
    return s.ccol_indices(), s.row_indices()


def made_of(s, values):
    return torch.sparse_compressed_tensor(*indices(s), values, s.shape, layout=s.layout)


def assert_same(got, want):
    """`got` is on the device and has the layout, dtype, indices and values of `want`."""
    assert got.device.type == "spmd"
    assert (got.layout, got.dtype, got.shape) == (want.layout, want.dtype, want.shape)
    if want.layout in LAYOUTS.values():
        for mine, its in zip(indices(got), indices(want)):
            assert mine.dtype == its.dtype and torch.equal(mine.cpu(), its)
        assert got._nnz() == want._nnz()
        got, want = got.values(), want.values()
    elif want.layout == torch.sparse_coo:
        got, want = got.coalesce(), want.coalesce()
        assert torch.equal(got.indices().cpu(), want.indices())
        got, want = got.values(), want.values()
    assert got.shape == want.shape
    torch.testing.assert_close(got.detach().cpu(), want.detach())


# --- making, moving, reading ---

MAKERS = {
    "a dense one": lambda x, layout: compressed(x.to("spmd"), layout),
    "coordinates": lambda x, layout: compressed(x.to("spmd").to_sparse(), layout),
    "to": lambda x, layout: compressed(x, layout).to("spmd"),
    "parts of the device": lambda x, layout: torch.sparse_compressed_tensor(
        *(part.to("spmd") for part in indices(compressed(x, layout))),
        compressed(x, layout).values().to("spmd"),
        x.shape,
        layout=LAYOUTS[layout],
    ),
    "parts of the host": lambda x, layout: torch.sparse_compressed_tensor(
        *indices(compressed(x, layout)),
        compressed(x, layout).values(),
        x.shape,
        layout=LAYOUTS[layout],
        device="spmd",
    ),
    "copy_": lambda x, layout: torch.empty_like(compressed(x, layout), device="spmd").copy_(
        compressed(x, layout)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", MAKERS)
def test_it_is_made_and_read(make, layout, dtype):
    x = dense(dtype=dtype)
    want, got = compressed(x, layout), MAKERS[make](x, layout)
    assert_same(got, want)
    assert not got.is_pinned() and got.dense_dim() == 0 and got.sparse_dim() == 2
    host = got.cpu()
    assert host.device.type == "cpu" and host.layout == want.layout
    assert all(torch.equal(a, b) for a, b in zip(indices(host), indices(want)))
    assert torch.equal(host.values(), want.values())
    assert torch.equal(got.to_dense().cpu(), x)


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (4, 4), (0, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_values(layout, sizes):
    want = compressed(torch.zeros(*sizes), layout)
    for make in ("a dense one", "coordinates", "to", "parts of the device"):
        assert_same(MAKERS[make](torch.zeros(*sizes), layout), want)
    ours = want.to("spmd")
    assert_same(ours.to_dense(), want.to_dense())
    assert_same(ours.to_sparse(), want.to_sparse())
    flipped = {"csr": "csc", "csc": "csr", "bsr": "bsc", "bsc": "bsr"}[layout]
    assert_same(compressed(ours, flipped), compressed(want, flipped))
    if layout != "bsc":  # refused by the CPU
        y = random(sizes[1], 3).float()
        assert_same(ours @ y.to("spmd"), want @ y)


CONVERSIONS = {
    "csr": ("csr", "csc", "bsr", "bsc"),
    "csc": ("csr", "csc", "bsr", "bsc"),
    "bsr": ("bsr", "bsc"),
    "bsc": ("bsr", "bsc"),
}


@pytest.mark.parametrize(("old", "new"), [(a, b) for a, all in CONVERSIONS.items() for b in all])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.int64, torch.bool])
def test_conversions(old, new, dtype):
    x = compressed(dense(dtype=dtype), old)
    assert_same(compressed(x.to("spmd"), new), compressed(x, new))
    assert_same(x.to("spmd").to_sparse(), x.to_sparse())
    if old != new:
        options = {"layout": LAYOUTS[new], "blocksize": (2, 2) if new in OF_BLOCKS else None}
        assert_same(x.to("spmd").to_sparse(**options), compressed(x, new))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 4), (3, 2), (6, 8)])
@pytest.mark.parametrize("layout", OF_BLOCKS)
def test_sizes_of_blocks(layout, sizes):
    x = dense(share=0.2)
    want = getattr(x, f"to_sparse_{layout}")(sizes)
    for ours in (x.to("spmd"), x.to("spmd").to_sparse(), x.to_sparse_csr().to("spmd"),
                 x.to_sparse_csc().to("spmd")):  # fmt: skip
        assert_same(getattr(ours, f"to_sparse_{layout}")(sizes), want)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_indices_keep_their_type(index):
    s = dense().to_sparse_csr()
    s = torch.sparse_csr_tensor(
        s.crow_indices().to(index), s.col_indices().to(index), s.values(), s.shape
    )
    ours, y = s.to("spmd"), random(8, 3)
    assert_same(ours, s)
    assert_same(ours @ y.to("spmd"), s @ y)
    assert_same(ours + ours, s + s)
    assert_same(ours.to_dense(), s.to_dense())
    assert_same(ours * 2, s * 2)


def batch():
    one = dense(share=1.0) * torch.tensor([1, 0, 1, 1, 0, 0, 1, 0])
    return torch.stack([one, one.roll(2, 1), one * 2])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches(layout):
    x = batch()
    want = compressed(x, layout)
    ours = want.to("spmd")
    assert_same(ours, want)
    assert_same(compressed(x.to("spmd"), layout), want)
    assert_same(ours.to_dense(), x)
    assert_same(ours.to_sparse(), want.to_sparse())
    assert_same(torch.sin(ours), torch.sin(want))
    assert_same(ours.float(), want.float())
    flipped = {"csr": "csc", "csc": "csr", "bsr": "bsc", "bsc": "bsr"}[layout]
    assert_same(compressed(ours, flipped), compressed(want, flipped))
    with pytest.raises(RuntimeError):
        torch.mm(want, x[0].t())
    with pytest.raises(RuntimeError, match="expected matrices without dense dimensions"):
        torch.mm(ours, x[0].t().to("spmd"))


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_dense_dimensions(layout):
    x = dense().unsqueeze(2) * random(3)
    want = getattr(x, f"to_sparse_{layout}")(dense_dim=1)
    ours = want.to("spmd")
    assert_same(getattr(x.to("spmd"), f"to_sparse_{layout}")(dense_dim=1), want)
    assert_same(ours.to_dense(), x)
    assert_same(ours * 2, want * 2)


def test_the_size_follows_from_the_indices():
    made = torch.sparse_csr_tensor([0, 1, 2], [4, 2], [1.0, 2.0], device="spmd")
    assert made.shape == (2, 5)
    for check in ({"check_invariants": True}, {"check_invariants": False}):
        good = torch.sparse_csr_tensor([0, 1, 2], [4, 2], [1.0, 2.0], device="spmd", **check)
        assert good.shape == (2, 5)
    with pytest.raises(RuntimeError, match="crow_indices"):
        torch.sparse_csr_tensor(
            [0, 3, 2], [4, 2], [1.0, 2.0], (2, 5), device="spmd", check_invariants=True
        )


def test_printing():
    s = torch.sparse_csr_tensor([0, 1, 2], [1, 0], [3.0, 4.0], (2, 3), device="spmd")
    assert repr(s) == (
        "tensor(crow_indices=tensor([0, 1, 2]),\n"
        "       col_indices=tensor([1, 0]),\n"
        "       values=tensor([3., 4.]), device='spmd:0', size=(2, 3), nnz=2,\n"
        "       layout=torch.sparse_csr)"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_and_files(layout):
    want = compressed(dense(), layout)
    ours = want.to("spmd")
    file = io.BytesIO()
    torch.save({"s": ours}, file)
    file.seek(0)
    assert_same(torch.load(file)["s"], want)
    for other in (ours.clone(), copy.deepcopy(ours), ours * 1, ours.to("spmd", copy=True)):
        assert_same(other, want)
        other.values().zero_()
    assert_same(ours, want)
    ours.detach().values().zero_()  # as in PyTorch, the values are shared
    assert not ours.values().any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_of_a_module(layout):
    def module():
        made = nn.Linear(5, 2)
        made.register_buffer("adjacency", compressed(dense(), layout))
        return made

    want = module()
    ours = module().to("spmd").float()
    assert_same(ours.adjacency, want.adjacency.float())
    again = copy.deepcopy(ours)
    again.load_state_dict(want.state_dict())
    assert_same(again.adjacency, want.adjacency.float())
    assert again.cpu().adjacency.device.type == "cpu"


# --- ops ---

UNARY = {
    "negative": torch.neg,
    "abs": torch.abs,
    "relu": torch.relu,
    "long": lambda s: s.long(),
    "float": lambda s: s.float(),
    "times": lambda s: s * 2.5,
    "from the left": lambda s: 2.5 * s,
    "times one of the device": lambda s: s * torch.tensor(2.0, device=s.device),
    "itself twice": lambda s: s + s,
    "sum": lambda s: s.sum(),
    "zeros": torch.zeros_like,
    "zero": lambda s: s.clone().zero_(),
    "in place": lambda s: s.clone().mul_(2).neg_().sin_(),
    "into": lambda s: torch.neg(s, out=s.clone()),
    "filled": lambda s: s.clone().fill_(3),
    "transposed": lambda s: s.t(),
    "transposed back": lambda s: s.transpose(0, 1).transpose(0, 1),
    "detached": lambda s: s.detach(),
    "dense plus it": lambda s: torch.ones(s.shape, dtype=s.dtype, device=s.device) + s,
    "it plus dense": lambda s: s + torch.ones(s.shape, device=s.device),
    "a row": lambda s: s[2],
    "sum of columns": lambda s: s.sum(1, keepdim=True),
    "sum of rows": lambda s: s.sum(0, keepdim=True),
    "sum of both": lambda s: s.sum((0, 1), keepdim=True),
    "product": lambda s: s * (s + s),
    "times dense": lambda s: s * torch.ones(s.shape, dtype=s.dtype, device=s.device),
    "masked by it": lambda s: torch.arange(1.0, 49, device=s.device).view(6, 8).sparse_mask(s),
}


def of_values(name):
    return lambda s: getattr(torch, name)(s * 0.2)


for _name in (
    *("asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor"),
    *("frac", "isinf", "isnan", "isneginf", "isposinf", "log1p", "rad2deg", "sgn"),
    *("sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
):
    UNARY[_name] = of_values(_name)
OF_CSR_ALONE = {
    *("sum of columns", "sum of rows", "sum of both", "product", "times dense", "into", "a row"),
}
NOT_OF_BLOCKS = {"dense plus it", "it plus dense"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", UNARY)
def test_ops_with_one_operand(name, layout):
    if layout != "csr" and name in OF_CSR_ALONE:
        pytest.skip("the CPU has it for CSR only")
    if layout in OF_BLOCKS and name in NOT_OF_BLOCKS:
        pytest.skip("the CPU has it for CSR and CSC only")
    for x in (dense(), torch.zeros(6, 8, dtype=torch.float64)):
        if name == "sum of both" and not x.any():
            continue  # the CPU's has no values, and one row index
        s = compressed(x.abs() if name == "sqrt" else x, layout)
        assert_same(UNARY[name](s.to("spmd")), UNARY[name](s))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("alpha", [1, -0.5])
def test_sums(layout, alpha):
    for first, second in ((0.4, 0.4), (0.0, 0.4), (0.4, 0.0), (0.0, 0.0)):
        x, y = dense(share=first), dense(share=second, seed=7)
        a, b = compressed(x, layout), compressed(y, layout)
        got = torch.add(a.to("spmd"), b.to("spmd"), alpha=alpha)
        assert got.layout == LAYOUTS[layout]
        torch.testing.assert_close(got.to_dense().cpu(), torch.add(x, y, alpha=alpha))
        if layout == "csr" and first and second:  # the CPU refuses the others
            assert_same(got, torch.add(a, b, alpha=alpha))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize("dims", [0, 1, (0, 1), -1])
def test_sums_over_dimensions(dims, dtype):
    s = dense(dtype=dtype).to_sparse_csr()
    assert_same(s.to("spmd").sum(dims, keepdim=True), s.sum(dims, keepdim=True))
    got = s.to("spmd").sum(dims, keepdim=True, dtype=torch.float64)
    assert_same(got, s.sum(dims, keepdim=True, dtype=torch.float64))


# --- products ---

PRODUCTS = {
    "@": lambda s, d, w: s @ d,
    "mm": lambda s, d, w: torch.mm(s, d),
    "addmm": lambda s, d, w: torch.addmm(w, s, d, beta=0.5, alpha=2),
    "addmm of one row": lambda s, d, w: torch.addmm(w[:1], s, d),
    "addmm of nothing": lambda s, d, w: torch.addmm(w * torch.nan, s, d, beta=0),
    "sparse.mm": lambda s, d, w: torch.sparse.mm(s, d),
    "sparse.addmm": lambda s, d, w: torch.sparse.addmm(w, s, d, beta=0.5, alpha=2.0),
    "@ vector": lambda s, d, w: s @ d[:, 0],
    "dense @": lambda s, d, w: w.t() @ s,
    "transposed": lambda s, d, w: s.t() @ w,
    "linear": lambda s, d, w: nn.functional.linear(d.t(), s),
}
# What the CPU refuses.
NO_PRODUCT = {
    "bsr": {"dense @", "transposed"},
    "bsc": set(PRODUCTS) - {"dense @", "transposed"},
}
NO_GRADIENT = {  # of the values
    "csc": {"sparse.mm", "sparse.addmm"},
    "bsr": {"sparse.mm", "sparse.addmm"},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, layout, dtype):
    if name in NO_PRODUCT.get(layout, ()):
        pytest.skip("the CPU refuses it")
    for share in (0.4, 0.0):
        s = compressed(dense(share=share, dtype=dtype), layout)
        d, w = random(8, 3, dtype=dtype), random(6, 3, seed=4, dtype=dtype)
        got = PRODUCTS[name](s.to("spmd"), d.to("spmd"), w.to("spmd"))
        assert_same(got, PRODUCTS[name](s, d, w))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", sorted(set(PRODUCTS) - {"addmm of nothing"}))
def test_gradients(name, layout):
    """As those of the product of dense matrices. (The CPU has none of BSR's and BSC's.)"""
    if name in NO_PRODUCT.get(layout, ()):
        pytest.skip("the CPU refuses it")

    def gradients(device):
        s = compressed(dense(), layout)
        values = s.values().to(device).requires_grad_()
        s = torch.sparse_compressed_tensor(
            *(i.to(device) for i in indices(s)), values, s.shape, layout=s.layout
        )
        d, w = random(8, 3).to(device).requires_grad_(), random(6, 3, seed=4).to(device)
        w.requires_grad_()
        dense_one = device == "cpu"
        op = name.removeprefix("sparse.") if dense_one else name
        y = PRODUCTS[op](s.to_dense() if dense_one else s, d, w)
        (y * torch.arange(1.0, y.numel() + 1, device=device).view(y.shape)).sum().backward()
        return y, values.grad, d.grad, w.grad

    if name in NO_GRADIENT.get(layout, ()):
        with pytest.raises(RuntimeError, match="unsupported combination of layouts"):
            gradients("spmd")
        return
    for got, want in zip(gradients("spmd"), gradients("cpu")):
        assert (got is None) == (want is None)
        if want is not None:
            assert_same(got, want)


def values_and_operand(layout):
    s = compressed(dense(), layout).to("spmd")
    return s, s.values().detach().clone().requires_grad_(), random(8, 3).to("spmd").requires_grad_()


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_gradients_by_differences(layout):
    s, values, d = values_and_operand(layout)
    for f in (
        lambda v, d: made_of(s, v) @ d,
        lambda v, d: made_of(s, v).to_dense() @ d,
        lambda v, d: torch.addmm(d[:6], made_of(s, v), d, alpha=2),
        lambda v, d: (made_of(s, v) @ d[:, 0]).exp(),
    ):
        assert torch.autograd.gradcheck(f, (values, d))


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_gradients_of_reductions_by_differences(reduce):
    s, values, d = values_and_operand("csr")
    assert torch.autograd.gradcheck(
        lambda v, d: torch.sparse.mm(made_of(s, v), d, reduce), (values, d)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize("share", [0.3, 0.0, 1.0])
def test_reductions(reduce, share, dtype):
    x = dense(share=share, dtype=dtype)
    x[1] = 0  # a row without values
    if share:
        x[3] = 1  # equal products: the first one gets the gradient

    def run(device):
        s = x.to_sparse_csr()
        values = s.values().to(device).requires_grad_()
        s = torch.sparse_csr_tensor(*(i.to(device) for i in indices(s)), values, s.shape)
        d = random(8, 5).to(dtype)
        d[2] = d[4]
        d = d.to(device).requires_grad_()
        y = torch.sparse.mm(s, d, reduce)
        (
            y * torch.arange(1.0, y.numel() + 1, device=device).view(y.shape).to(dtype)
        ).sum().backward()
        return y, values.grad, d.grad

    for got, want in zip(run("spmd"), run("cpu"), strict=True):
        if dtype == torch.bfloat16:  # the CPU rounds each sum
            torch.testing.assert_close(got.cpu(), want, rtol=3e-2, atol=3e-1)
        else:
            assert_same(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_sampled_products(dtype):
    s, a, b = (
        dense(dtype=dtype).to_sparse_csr(),
        random(6, 4, dtype=dtype),
        random(4, 8, dtype=dtype),
    )
    for options in ({}, {"beta": 0}, {"beta": 0.5, "alpha": 3}):
        got = torch.sparse.sampled_addmm(s.to("spmd"), a.to("spmd"), b.to("spmd"), **options)
        assert_same(got, torch.sparse.sampled_addmm(s, a, b, **options))


def test_sums_of_half_types_are_rounded_once():
    one = torch.ones(300, dtype=torch.bfloat16, device="spmd")
    s = torch.sparse_csr_tensor([0, 300], list(range(300)), one, (1, 300), device="spmd")
    assert (s @ torch.ones(300, 1, dtype=torch.bfloat16, device="spmd")).item() == 300


def test_batches_of_dense_operands():
    s, d = dense().to_sparse_csr(), random(2, 8, 3)
    got = s.to("spmd") @ d.to("spmd")
    torch.testing.assert_close(got.cpu(), s.to_dense() @ d)


def test_a_graph_convolution():
    """As graph libraries write one: normalised, learned over several steps."""
    torch.manual_seed(0)
    x, layers = torch.randn(6, 4), nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 2)])
    graph = (dense(6, 6, 0.5).float() != 0).float().to_sparse_csr()

    def losses(device):
        model, s, h0 = copy.deepcopy(layers).to(device), graph.to(device), x.to(device)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        found = []
        for _ in range(4):
            h = torch.relu(model[0](torch.sparse.mm(s, h0, "mean")))
            loss = (s @ model[1](h)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses("spmd") == pytest.approx(losses("cpu"), rel=1e-5)


# --- what is sent, what waits ---


def sent():
    return [(c.kind, c.bytes) for c in spmd.debug.collectives().rows]


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def product(mesh, *, values=None, columns=None, operand=None, learn=False):
    """What s @ d and its gradients send, and the sharding of the product."""
    draw = torch.Generator().manual_seed(0)
    where = torch.rand(64, 64, generator=draw)
    s = (where < where.flatten().sort().values[400]).double().to_sparse_csr()
    crow, col, v = s.crow_indices(), s.col_indices(), random(400)
    d, w = random(64, 16), random(64, 16, seed=4)

    def run(col, v, d, w):
        d.requires_grad_()
        v.requires_grad_(learn)
        y = torch.sparse_csr_tensor(crow.to(d.device), col, v, (64, 64)) @ d
        (y * w).sum().backward()
        return [y, d.grad, *([v.grad] if learn else [])]

    want = run(col.clone(), v.clone(), d.clone(), w)
    ours = [part.to("spmd") for part in (col, v, d, w)]
    for part, spec in zip(ours, (columns, values, operand, operand)):
        if spec is not None:
            spmd.mark_sharding(part, mesh, spec)
    got = run(*ours)
    for a, b in zip(got, want):
        torch.testing.assert_close(a.detach().cpu(), b.detach())
    return sent(), spmd.sharding_of(got[0]).spec


def test_a_dense_operand_cut_by_columns_is_not_sent(mesh):
    assert product(mesh, operand=(None, "x")) == ([], P(None, "x"))
    # A value's gradient is a sum over columns.
    assert product(mesh, operand=(None, "x"), learn=True) == (
        [("all_reduce", 400 * 8)],
        P(None, "x"),
    )


def test_cut_values_make_partial_sums(mesh):
    for columns in (None, ("x",)):
        collectives, spec = product(mesh, values=("x",), columns=columns)
        assert spec == P(None, None)
        assert {kind for kind, _ in collectives} == {"all_reduce"}
        # The product and the dense operand's gradient; neither the values nor the operand.
        assert sum(size for _, size in collectives) == 2 * 64 * 16 * 8


def test_a_dense_operand_cut_by_rows_is_not_sent(mesh):
    matrix_bytes = 64 * 16 * 8
    assert product(mesh, operand=("x", None)) == (
        [("all_reduce", matrix_bytes), ("reduce_scatter", matrix_bytes // 4)],
        P(None, None),
    )


@pytest.mark.parametrize("reduce", ["mean", "amax"])
def test_reductions_of_cut_columns_send_nothing(mesh, reduce):
    s, d = dense(16, 16, 0.3).to_sparse_csr(), random(16, 8)
    ours = spmd.mark_sharding(d.to("spmd"), mesh, (None, "x"))
    y = torch.sparse.mm(s.to("spmd"), ours, reduce)
    torch.testing.assert_close(y.cpu(), torch.sparse.mm(s, d, reduce))
    assert sent() == [] and spmd.sharding_of(y).spec == P(None, "x")


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_products_wait_for_nothing(layout):
    s, d = compressed(dense(), layout).to("spmd"), random(8, 3).to("spmd")
    spmd.sync()
    before = reported()["runs"]
    y = (s * 2) @ d + s.to_dense() @ d + d.mean()
    values = torch.ones(6, 8, device="spmd").sparse_mask(s).values()
    assert reported()["runs"] == before
    assert y.shape == (6, 3) and values.shape == s.values().shape


def test_steps_take_the_same_program():
    s = dense(8, 8).float().to_sparse_csr().to("spmd")
    layer = nn.Linear(8, 8, device="spmd")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    compiles = []
    for _ in range(6):
        before = reported()["compiles"]
        (s @ layer.weight).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        layer.weight.sum().item()
        compiles.append(reported()["compiles"] - before)
    assert compiles[3:] == [0, 0, 0]


def test_products_with_shards(mesh):
    """A sparse matrix from outside is whole in a manual region."""

    def run(device):
        s = dense().to_sparse_csr().to(device)
        t = random(8, 8).to(device).requires_grad_()
        f = spmd.shard_map(lambda t: s @ t, mesh, P(None, "x"), P(None, "x"))
        y = f(t) if device == "spmd" else s @ t
        (y * torch.arange(48.0, device=device).view(y.shape)).sum().backward()
        return y.detach(), t.grad

    for got, want in zip(run("spmd"), run("cpu"), strict=True):
        assert_same(got, want)


# --- what is refused ---

REFUSED = {
    "triangular_solve": lambda s: torch.triangular_solve(s.to_dense(), s),
    "_sparse_csr_prod": lambda s: torch._sparse_csr_prod(s, 0, True),
    "norm": torch.norm,
    "index_select": lambda s: s.index_select(0, torch.tensor([0], device="spmd")),
}


@pytest.mark.parametrize("op", REFUSED)
def test_an_op_without_a_kernel_says_what_to_write(op):
    with pytest.raises(NotImplementedError) as raised:
        REFUSED[op](dense(6, 6).to_sparse_csr().to("spmd"))
    assert re.fullmatch(
        rf"torch_spmd: aten::(linalg_vector_)?{op} takes no sparse tensors on 'spmd:0'; call "
        r"\.to_dense\(\) or \.cpu\(\) first",
        str(raised.value),
    )


WRONG = {
    "mm: a tensor of shape [8, 3] is on 'cpu', another on 'spmd:0'; move it first: "
    "t = t.to('spmd')": lambda s: s @ random(8, 3),
    "mm takes a sparse and a dense matrix, in this order; got two sparse ones; call .to_dense() "
    "on the other one, or transpose the product": lambda s: s @ s.t(),
    "mm: shapes [6, 8] and [6, 8] cannot be multiplied": lambda s: s @ s.to_dense(),
    "mm: expected matrices of one dtype; got Double and Float": lambda s: (
        s @ s.to_dense().t().float()
    ),
    "sampled_addmm: shapes [6, 8] and [6, 8] cannot be multiplied to [6, 8]": lambda s: (
        torch.sparse.sampled_addmm(s, s.to_dense(), s.to_dense())
    ),
    "sparse_mm_reduce: reduce must be 'sum', 'mean', 'amax' or 'amin'; got 'prod'": lambda s: (
        torch.sparse.mm(s, s.to_dense().t(), "prod")
    ),
    "sparse_mm_reduce: expected a matrix in CSR form without dense dimensions; got layout "
    "SparseCsc and shape [6, 8]": lambda s: torch.sparse.mm(
        s.to_sparse_csc(), s.to_dense().t(), "sum"
    ),
    "add: expected sparse tensors of one layout; got SparseCsr and SparseCsc": lambda s: (
        s + s.to_sparse_csc()
    ),
    "sparse_compressed_to_sparse_csc: conversion from SparseCsr to SparseCsc with dense_dim "
    "argument given is not supported": lambda s: s.to_sparse_csc(dense_dim=0),
    "sparse_compressed_to_sparse_bsc: conversion from SparseBsr to SparseBsc with blocksize "
    "changed from [2, 2] to [3, 2] is not supported": lambda s: s.to_sparse_bsr(
        (2, 2)
    ).to_sparse_bsc((3, 2)),
    "to_sparse: tensor sparse size (6,8) must be divisible by given blocksize (4,2)": lambda s: (
        s.to_sparse_bsr((4, 2))
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_errors(text):
    with pytest.raises(RuntimeError) as raised:
        WRONG[text](dense().to_sparse_csr().to("spmd"))
    assert str(raised.value).removeprefix("torch_spmd: ") == text


def test_a_mark_is_of_the_values(mesh):
    s = dense(share=1.0).to_sparse_csr().to("spmd")
    with pytest.raises(ValueError) as raised:
        spmd.mark_sharding(s, mesh, ("x", None))
    assert str(raised.value) == (
        "mark_sharding takes no sparse tensor; got one with layout sparsecsr; give it the values, "
        "t.values(), whose nnz can be sharded"
    )
    spmd.mark_sharding(s.values(), mesh, ("x",))
    assert spmd.sharding_of(s.values()).spec == P("x")


def test_what_is_not_composed(root):
    """Ops for which PyTorch has another function on the CPU than on other devices have one here, or
    are refused."""
    yaml = pytest.importorskip("yaml")
    listed = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    for_cpu_alone = set()
    for function in yaml.safe_load(listed.read_text()):
        for keys in function.get("dispatch", {}):
            keys = {key.strip() for key in keys.split(",")}
            if "SparseCsrCPU" in keys and "SparseCsrCUDA" not in keys:
                for_cpu_alone.add(function["func"].partition("(")[0])
    ours = set()
    for name in ("sparse_compressed", "sparse_products"):
        source = (root / f"csrc/trace/ops/{name}.cc").read_text()
        ours |= set(re.findall(r'library\.impl\("([^"]+)"', source))
    refused = (root / "csrc/trace/ops/sparse.cc").read_text()
    table = refused.partition("kNotComposedForCompressed[] = {")[2].partition("};")[0]
    ours |= set(re.findall(r'"aten::([^"]+)"', table))
    assert len(for_cpu_alone) > 10
    assert for_cpu_alone - ours == {"is_pinned"}  # in sparse.cc
