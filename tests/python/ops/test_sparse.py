# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors in coordinate form: what is made of them, and gradients, as on the CPU; what
products send; what is refused."""

import copy
import io
import itertools
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
    pytest.mark.modes("coalesced"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
]

SIZES = [(7, 5, 3, 11), (7, 5, 3, 0), (0, 5, 3, 0), (7, 0, 3, 0), (7, 5, 0, 11), (1, 1, 1, 1)]
DTYPES = [torch.float32, torch.float64]


def matrix(rows=7, columns=5, nnz=11, dtype=torch.float32, seed=0):
    """Not coalesced: with 11 of 35 places, some are named twice."""
    draw = torch.Generator().manual_seed(seed)
    indices = torch.stack(
        [torch.randint(max(n, 1), (nnz,), generator=draw) for n in (rows, columns)]
    )
    values = torch.randn(nnz, generator=draw, dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (rows, columns))


def hybrid():
    """Three sparse dimensions and two dense ones."""
    indices = torch.tensor([[0, 2, 2, 0], [1, 0, 1, 1], [0, 0, 1, 0]])
    values = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(1))
    return torch.sparse_coo_tensor(indices, values, (3, 2, 2, 3, 2))


def random(*sizes, seed=3, dtype=torch.float32):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def is_on(tensor, device):
    return tensor.device.type == device


def assert_same(got, want, exactly=True):
    """`got` is on the device and has the layout, the dtype and the values of `want`; if `exactly`,
    the same indices, too."""
    assert is_on(got, "spmd")
    assert (got.layout, got.dtype, got.shape) == (want.layout, want.dtype, want.shape)
    if want.is_sparse:
        assert (got.sparse_dim(), got.dense_dim()) == (want.sparse_dim(), want.dense_dim())
        if exactly:
            assert got.is_coalesced() == want.is_coalesced()
            assert torch.equal(got._indices().cpu(), want._indices())
            torch.testing.assert_close(got._values().cpu(), want._values())
        got, want = got.to_dense(), want.to_dense()
    torch.testing.assert_close(got.detach().cpu(), want.detach())


# --- making, moving, reading ---

MAKERS = {
    "the constructor": lambda s: torch.sparse_coo_tensor(
        s._indices(), s._values(), s.shape, device="spmd"
    ),
    "parts of the device": lambda s: torch.sparse_coo_tensor(
        s._indices().to("spmd"), s._values().to("spmd"), s.shape
    ),
    "to": lambda s: s.to("spmd"),
    "copy_": lambda s: torch.zeros(
        s.shape, dtype=s.dtype, layout=torch.sparse_coo, device="spmd"
    ).copy_(s),
}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("which", [matrix, hybrid])
def test_it_is_made_and_read(make, which):
    want = which()
    got = MAKERS[make](want)
    assert_same(got, want)
    assert not got.is_pinned()
    assert (got._nnz(), got.shape, len(got)) == (want._nnz(), want.shape, len(want))
    for host in (got.cpu(), got.to("cpu"), torch.zeros_like(want).copy_(got)):
        assert is_on(host, "cpu") and torch.equal(host._indices(), want._indices())
        assert torch.equal(host._values(), want._values())


def test_the_size_follows_from_the_indices():
    made = torch.sparse_coo_tensor([[0, 4], [2, 1]], [1.0, 2.0], device="spmd")
    assert made.shape == (5, 3)
    with pytest.raises(RuntimeError, match="found index 4"):
        torch.sparse_coo_tensor(
            [[0, 4], [2, 1]], [1.0, 2.0], (3, 3), device="spmd", check_invariants=True
        )


def test_printing():
    s = torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (3, 2), device="spmd")
    assert repr(s) == (
        "tensor(indices=tensor([[0, 2],\n"
        "                       [1, 0]]),\n"
        "       values=tensor([3., 4.]),\n"
        "       device='spmd:0', size=(3, 2), nnz=2, layout=torch.sparse_coo)"
    )


def test_saving():
    file = io.BytesIO()
    torch.save({"s": matrix().to("spmd")}, file)
    file.seek(0)
    assert_same(torch.load(file)["s"], matrix())


@pytest.mark.parametrize("which", [matrix, hybrid])
def test_coalesced(which):
    s, want = which().to("spmd"), which().coalesce()
    assert not s.is_coalesced()
    got = s.coalesce()
    assert_same(got, want)
    assert torch.equal(got.indices().cpu(), want.indices())
    torch.testing.assert_close(got.values().cpu(), want.values())
    assert got.coalesce() is got  # and nothing is read
    with pytest.raises(RuntimeError, match=r"call \.coalesce"):
        s.indices()


def test_sums_of_half_types_are_rounded_once():
    one = torch.ones(300, dtype=torch.bfloat16)
    s = torch.sparse_coo_tensor(torch.zeros(2, 300, dtype=torch.long), one, (1, 1)).to("spmd")
    assert s.coalesce().values().item() == 300
    assert (s @ torch.ones(1, 1, dtype=torch.bfloat16, device="spmd")).item() == 300


@pytest.mark.parametrize("sparse_dims", [1, 2])
def test_the_sparse_form_of_a_dense_tensor(sparse_dims):
    x = random(6, 5).relu()
    x[2] = 0
    assert_same(x.to("spmd").to_sparse(sparse_dims), x.to_sparse(sparse_dims))
    assert_same(torch.zeros(3, 0, device="spmd").to_sparse(), torch.zeros(3, 0).to_sparse())
    assert matrix().to("spmd").to_sparse().is_sparse


def test_a_part_of_a_module():
    module = nn.Linear(5, 2)
    module.register_buffer("adjacency", matrix().coalesce())
    ours = copy.deepcopy(module).to("spmd").double()
    assert_same(ours.adjacency, module.adjacency.double())
    again = copy.deepcopy(ours)
    again.load_state_dict(module.state_dict())
    assert_same(again.adjacency, module.adjacency.double())
    assert is_on(again.cpu().adjacency, "cpu")


def test_the_values_of_a_copy_are_its_own():
    s = matrix().to("spmd")
    for other in (s.clone(), copy.deepcopy(s), s.t(), s * 1, s.to("spmd", copy=True)):
        other._values().zero_()
        other._indices().zero_()
    assert_same(s, matrix())
    s.detach()._values().zero_()  # as in PyTorch, the values are shared
    assert not s._values().any()


# --- ops ---

UNARY = {
    "abs": torch.abs,
    "neg": torch.neg,
    "sqrt": lambda s: s.abs().sqrt(),
    "square": torch.square,
    "relu": torch.relu,
    "sin": torch.sin,
    "isnan": torch.isnan,
    "double": lambda s: s.double(),
    "long": lambda s: (s * 3).long(),
    "times": lambda s: s * 2.5,
    "from the left": lambda s: 2.5 * s,
    "divided": lambda s: s / 3,
    "by a number of the device": lambda s: s * torch.tensor(2.0, device=s.device),
    "divided rounding": lambda s: torch.div(s, 0.3, rounding_mode="floor"),
    "transposed": lambda s: s.transpose(0, 1),
    "transposed back": lambda s: s.transpose(0, 1).transpose(-s.dim() + 1, -s.dim()),
    "permuted": lambda s: s.permute(1, 0, *range(2, s.dim())),
    "a row": lambda s: s[2],
    "one dimension more": lambda s: s.unsqueeze(0),
    "joined": lambda s: torch.cat([s, s * 2], 1),
    "zeros": torch.zeros_like,
    "empty": lambda s: torch.empty_like(s),
    "dense": lambda s: s.to_dense(),
    "sum": lambda s: s.sum(),
    "sum of columns": lambda s: s.sum(1),
    "norm": lambda s: s.norm(),
    "in place": lambda s: s.clone().mul_(2).div_(3).neg_(),
    "zero": lambda s: s.clone().zero_(),
    "into": lambda s: torch.neg(s, out=torch.empty_like(s)),
    "to a power": lambda s: s.pow(2),
    "rounded down": lambda s: torch.floor_divide(s, 0.3),
    "narrowed": lambda s: s.narrow_copy(0, 1, 2),
    "resized": lambda s: torch.empty_like(s).resize_as_sparse_(s),
}


def of_values(name):
    return lambda s: getattr(torch, name)(s / 4)


for _name in (
    *("asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor"),
    *("frac", "isinf", "isneginf", "isposinf", "log1p", "nan_to_num", "rad2deg", "round", "sgn"),
    *("sign", "signbit", "sinh", "tan", "tanh", "trunc"),
):
    UNARY[_name] = of_values(_name)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("which", ["matrix", "hybrid", "empty"])
def test_ops_with_one_operand(name, which):
    s = {"matrix": matrix, "hybrid": hybrid, "empty": lambda: matrix(nnz=0)}[which]()
    assert_same(UNARY[name](s.to("spmd")), UNARY[name](s))


BINARY = {
    "add": (lambda a, b, d: a + b, False),
    "subtract": (lambda a, b, d: a - b, False),
    "add in place": (lambda a, b, d: a.clone().add_(b, alpha=2), False),
    "multiply": (lambda a, b, d: a * b, False),
    "multiply coalesced": (lambda a, b, d: a.coalesce() * b, True),
    "multiply by dense": (lambda a, b, d: a * d, True),
    "multiply a dense one": (lambda a, b, d: d * a, True),
    "by one row": (lambda a, b, d: a.double() * d[:1].double(), True),
    "add to dense": (lambda a, b, d: d + a, True),
    "subtract from dense": (lambda a, b, d: torch.sub(d, a, alpha=2), True),
    "add to dense in place": (lambda a, b, d: d.clone().add_(a, alpha=-3), True),
    "mask": (lambda a, b, d: d.sparse_mask(b), True),
    "mask a sparse one": (lambda a, b, d: a.sparse_mask(b), True),
    "another dtype": (lambda a, b, d: a.double() + b, False),
}


@pytest.mark.parametrize("nnz", [(11, 9), (0, 9), (11, 0), (0, 0)])
@pytest.mark.parametrize("name", BINARY)
def test_ops_with_two_operands(name, nnz):
    op, exactly = BINARY[name]
    a, b, d = matrix(nnz=nnz[0]), matrix(nnz=nnz[1], seed=5).coalesce(), random(7, 5)
    assert_same(op(a.to("spmd"), b.to("spmd"), d.to("spmd")), op(a, b, d), exactly)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("nnz", [11, 0])
def test_a_projection_by_a_mask(accumulate, nnz):
    a, b = matrix(), matrix(nnz=nnz, seed=5)
    got = a.to("spmd")._sparse_mask_projection(b.to("spmd"), accumulate)
    assert_same(got, a._sparse_mask_projection(b, accumulate))
    with pytest.raises(RuntimeError) as raised:
        a.to("spmd")._sparse_mask_projection(a.to("spmd").t())
    assert str(raised.value) == (
        "_sparse_mask_projection(): operands have incompatible sizes; self has size [7, 5] but "
        "mask has size [5, 7]"
    )


def test_sums_of_sparse_tensors_are_joined():
    s = matrix().to("spmd")
    assert ((s + s)._nnz(), (s + s).is_coalesced()) == (2 * s._nnz(), False)


SUMS = {
    "add": lambda a, b: a + b,
    "add twice": lambda a, b: a + b + a,
    "subtract": lambda a, b: torch.sub(a, b, alpha=3),
    "in place": lambda a, b: a.clone().add_(b, alpha=0.5),
    "subtract in place": lambda a, b: a.clone().sub_(b),
    "into": lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
    "of itself": lambda a, b: a + a,
    "another dtype": lambda a, b: a.double() + b,
    "masked": lambda a, b: a.sparse_mask(b).add_(b * b, alpha=0.1),
}


@pytest.mark.parametrize("nnz", [(11, 9), (0, 9), (11, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_coalesced_tensors_are_coalesced(name, nnz):
    a, b = matrix(nnz=nnz[0]).coalesce(), matrix(nnz=nnz[1], seed=5).coalesce()
    assert_same(SUMS[name](a.to("spmd"), b.to("spmd")), SUMS[name](a, b))


def test_sums_of_hybrid_tensors_are_coalesced():
    s = hybrid().coalesce()
    assert_same(s.to("spmd") - 2 * s.to("spmd"), s - 2 * s)


PRODUCTS = {
    "mm": lambda s, d, w: torch.mm(s, d),
    "@": lambda s, d, w: s @ d,
    "spmm": lambda s, d, w: torch.spmm(s, d),
    "sparse.mm": lambda s, d, w: torch.sparse.mm(s, d),
    "addmm": lambda s, d, w: torch.addmm(w, s, d),
    "sparse.addmm": lambda s, d, w: torch.sparse.addmm(w, s, d, beta=0.5, alpha=2.0),
    "addmm of one row": lambda s, d, w: torch.addmm(w[:1], s, d, beta=2) if len(w) else s @ d,
    "mv": lambda s, d, w: torch.mv(s, d.sum(1)),
    "@ vector": lambda s, d, w: s @ d.sum(1),
    "dense @ sparse": lambda s, d, w: d.t() @ s.t(),
    "transposed": lambda s, d, w: s.t() @ w,
    "out": lambda s, d, w: torch.mm(s.detach(), d.detach(), out=torch.empty_like(w)),
    "linear": lambda s, d, w: nn.functional.linear(s, d.t()),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, sizes, dtype):
    rows, columns, width, nnz = sizes
    op = PRODUCTS[name]
    s = matrix(rows, columns, nnz, dtype)
    d, w = random(columns, width, dtype=dtype), random(rows, width, seed=4, dtype=dtype)
    assert_same(op(s.to("spmd"), d.to("spmd"), w.to("spmd")), op(s, d, w))


def test_batches():
    s = torch.stack([matrix(), matrix(seed=2)])
    d = random(2, 5, 3)
    assert_same(torch.bmm(s.to("spmd"), d.to("spmd")), torch.bmm(s, d))


def test_composed_ops_have_one_function_for_all_devices(root):
    yaml = pytest.importorskip("yaml")
    listed = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    composed = set()
    for function in yaml.safe_load(listed.read_text()):
        for keys in function.get("dispatch", {}):
            if {"SparseCPU", "SparseCUDA"} <= {key.strip() for key in keys.split(",")}:
                composed.add("aten::" + function["func"].partition("(")[0])
    source = (root / "csrc/trace/ops/sparse.cc").read_text()
    table = source.partition("kComposedForCoo[] = {")[2].partition("};")[0]
    ours = set(re.findall(r'"(aten::[^"]+)"', table))
    assert len(ours) > 100
    assert ours <= composed


def test_gradients_of_relu_below_autograd():
    s, g = matrix().coalesce(), matrix().coalesce() * 2
    got = torch.ops.aten.threshold_backward(g.to("spmd"), s.to("spmd"), 0)
    assert_same(got, torch.ops.aten.threshold_backward(g, s, 0))


# --- gradients ---

LOSSES = PRODUCTS | {
    "to_dense": lambda s, d, w: s.to_dense() @ d,
    "scaled": lambda s, d, w: (s * 2 / 3) @ d,
    "negative": lambda s, d, w: -s @ d,
    "plus dense": lambda s, d, w: (torch.ones(7, 5, device=w.device) + s) @ d,
    "plus sparse": lambda s, d, w: (s + s) @ d,
    "times dense": lambda s, d, w: (s * (w @ d.t())) @ d,
    "values": lambda s, d, w: s.coalesce().values().square().sum() * d,
    "a sum": lambda s, d, w: torch.sparse.sum(s) * d,
    "sums": lambda s, d, w: torch.sparse.sum(s, 0).to_dense().unsqueeze(1) * d,
    "a copy": lambda s, d, w: s.clone() @ d,
}
del LOSSES["out"]


@pytest.mark.parametrize("coalesced", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_gradients(name, coalesced):
    def gradients(device):
        s = matrix()
        indices, values = s._indices().to(device), s._values().to(device).requires_grad_()
        d, w = random(5, 3).to(device).requires_grad_(), random(7, 3, seed=4).to(device)
        s = torch.sparse_coo_tensor(indices, values, s.shape)
        y = LOSSES[name](s.coalesce() if coalesced else s, d, w)
        (y * torch.arange(1.0, y.numel() + 1, device=device).view(y.shape)).sum().backward()
        return y, values.grad, d.grad

    for got, want in zip(gradients("spmd"), gradients("cpu")):
        assert (got is None) == (want is None)
        if want is not None:
            assert_same(got, want)


@pytest.mark.parametrize("product", [torch.sparse.mm, torch.mm])
def test_the_gradient_of_a_sparse_leaf(product):
    def gradient(device):
        s = matrix().coalesce().to(device).requires_grad_()
        product(s, random(5, 3).to(device)).square().sum().backward()
        return s.grad

    assert gradient("cpu").is_sparse == (product is torch.sparse.mm)
    assert_same(gradient("spmd"), gradient("cpu"))


def test_the_gradient_of_a_tensor_that_becomes_sparse():
    def gradients(device):
        x = random(4, 5).relu().to(device).requires_grad_()
        d = random(5, 3).to(device).requires_grad_()
        (x.to_sparse() @ d).square().sum().backward()
        return x.grad, d.grad

    for got, want in zip(gradients("spmd"), gradients("cpu")):
        assert_same(got, want)


DIMS = [d for n in range(1, 6) for d in itertools.combinations(range(5), n)]


@pytest.mark.parametrize("dims", DIMS)
def test_sums_over_dimensions(dims):
    def sum_and_gradient(device):
        values = hybrid()._values().to(device).requires_grad_()
        s = torch.sparse_coo_tensor(hybrid()._indices().to(device), values, hybrid().shape)
        total = torch.sparse.sum(s, dims)
        dense = total.to_dense() if total.is_sparse else total
        weights = torch.arange(1.0, dense.numel() + 1, device=device).view(dense.shape)
        (dense * weights).sum().backward()
        return total, values.grad

    for got, want in zip(sum_and_gradient("spmd"), sum_and_gradient("cpu")):
        assert_same(got, want)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SparseAdam": lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.filterwarnings("ignore:torch_spmd. aten.._embedding_bag")
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_of_embeddings(kind, name):
    module = kind(9, 4, sparse=True)

    def trained(device):
        table = copy.deepcopy(module).to(device)
        optimizer = OPTIMIZERS[name](table.parameters())
        tokens = torch.tensor([[1, 2, 1], [8, 0, 3]]).to(device)
        for _ in range(3):
            table(tokens).square().sum().backward()
            gradient = table.weight.grad
            optimizer.step()
            optimizer.zero_grad()
        return gradient, table.weight

    for got, want in zip(trained("spmd"), trained("cpu")):
        assert_same(got, want, exactly=False)


# --- sharding ---


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def sent():
    return [(c.kind, c.bytes) for c in spmd.debug.collectives().rows]


def marked_product(mesh, dense=None, values=None, indices=None, width=16, nnz=400, learn=False):
    """One product of a [64, 64] matrix with [64, width], and the gradient of the dense operand; if
    `learn`, that of the values, too. All are compared with the CPU's. Returns what is sent, and the
    result's spec."""
    draw = torch.Generator().manual_seed(0)
    parts = [
        torch.randint(64, (2, nnz), generator=draw),
        torch.randn(nnz, generator=draw),
        torch.randn(64, width, generator=draw),
        torch.randn(64, width, generator=draw),
    ]

    def run(i, v, d, w):
        v.requires_grad_(learn)
        d.requires_grad_()
        s = torch.sparse_coo_tensor(i, v, (64, 64), is_coalesced=True)
        y = torch.spmm(s, d)
        (y * w).sum().backward()
        return [y, d.grad, *([v.grad] if learn else [])]

    want = run(*[part.clone() for part in parts])
    ours = [part.to("spmd") for part in parts]
    for part, spec in zip(ours, (indices, values, dense, dense)):
        if spec is not None:
            spmd.mark_sharding(part, mesh, spec)
    got = run(*ours)
    for a, b in zip(got, want):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-4, atol=1e-4)
    return sent(), spmd.sharding_of(got[0]).spec


@pytest.mark.parametrize("width", [16, 10])
def test_a_dense_operand_cut_by_columns_is_not_sent(mesh, width):
    cut = {"dense": (None, "x"), "width": width}
    assert marked_product(mesh, **cut) == ([], spmd.P(None, "x"))
    # A value's gradient is a sum over columns.
    assert marked_product(mesh, learn=True, **cut) == (
        [("all_reduce", 400 * 4)],
        spmd.P(None, "x"),
    )


@pytest.mark.parametrize("nnz", [400, 401])
def test_cut_values_make_partial_sums(mesh, nnz):
    for indices in (None, (None, "x")):
        collectives, spec = marked_product(mesh, values=("x",), indices=indices, nnz=nnz)
        assert spec == spmd.P(None, None)
        # The product and the dense operand's gradient; neither the values nor the operand.
        assert {kind for kind, _ in collectives} == {"all_reduce"}
        assert sum(size for _, size in collectives) == 2 * 64 * 16 * 4


IN_REGIONS = {
    "left": (lambda s, t: s @ t, P(None, "x")),
    "sparse.mm": (lambda s, t: torch.sparse.mm(s, t), P(None, "x")),
    "right": (lambda s, t: t.t() @ s.t(), P("x")),
}


@pytest.mark.parametrize("name", IN_REGIONS)
def test_products_with_shards(mesh, name):
    """A sparse matrix from outside is whole in a manual region."""
    product, spec = IN_REGIONS[name]

    def run(device):
        values = matrix()._values().to(device).requires_grad_()
        s = torch.sparse_coo_tensor(matrix()._indices().to(device), values, (7, 5)).coalesce()
        t = random(5, 8).to(device).requires_grad_()
        f = spmd.shard_map(lambda t: product(s, t), mesh, P(None, "x"), spec)
        y = f(t) if device == "spmd" else product(s, t)
        (y * torch.arange(56.0, device=device).view(y.shape)).sum().backward()
        return y.detach(), t.grad, values.grad

    for got, want in zip(run("spmd"), run("cpu"), strict=True):
        assert_same(got, want)


def test_a_dense_operand_cut_by_rows_is_not_sent(mesh):
    matrix_bytes = 64 * 16 * 4
    # The product; of the gradient, each device gets its rows.
    assert marked_product(mesh, dense=("x", None)) == (
        [("all_reduce", matrix_bytes), ("reduce_scatter", matrix_bytes // 4)],
        spmd.P(None, None),
    )


def test_steps_take_the_same_program():
    s = matrix().coalesce().to("spmd")
    layer = nn.Linear(5, 5, device="spmd")
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


def test_only_the_number_of_indices_is_waited_for():
    s, d = matrix().coalesce().to("spmd"), random(5, 3).to("spmd")
    before = reported()["runs"]
    y = (s * 2).t() @ (s @ d) + s.to_dense().sum()
    assert reported()["runs"] == before
    assert y.shape == (5, 3)


# --- what is refused ---

REFUSED = {
    "_sparse_softmax": lambda s: torch.sparse.softmax(s, 1),
    "_sparse_sparse_matmul": lambda s: s @ s.t(),
    "index_select": lambda s: s.index_select(0, torch.tensor([0], device="spmd")),
    "eq": lambda s: s == s,
    "exp": torch.exp,
}


@pytest.mark.parametrize("op", REFUSED)
def test_an_op_without_a_kernel_says_what_to_write(op):
    with pytest.raises(NotImplementedError) as raised:
        REFUSED[op](matrix().to("spmd"))
    assert str(raised.value) == (
        f"torch_spmd: aten::{op} takes no sparse tensors on 'spmd:0'; call .to_dense() or .cpu() "
        "first"
    )


WRONG = {
    "addmm: a tensor of shape [5, 3] is on 'cpu', another on 'spmd:0'; move it first: "
    "t = t.to('spmd')": lambda s: s @ random(5, 3),
    "sparse_mask: a tensor of shape [7, 5] is on 'cpu', another on 'spmd:0'; move it first: "
    "t = t.to('spmd')": lambda s: s.to_dense().sparse_mask(matrix()),
    "addmm takes a sparse and a dense matrix, in this order; got two sparse ones; call .to_dense() "
    "on the other one, or transpose the product": lambda s: torch.addmm(
        s.to_dense() @ s.to_dense().t(), s, s.t()
    ),
    "addmm takes a sparse and a dense matrix, in this order; got a dense one first; call "
    ".to_dense() on the other one, or transpose the product": lambda s: torch.addmm(
        torch.zeros(5, 5, device="spmd"), s.to_dense().t(), s
    ),
    "addmm: shapes [7, 5] and [7, 5] cannot be multiplied": lambda s: s @ s.to_dense(),
    "addmm: expected matrices of one dtype; got Float and Double": lambda s: (
        s @ s.to_dense().t().double()
    ),
    "bmm: expected matrices without dense dimensions; got shapes [7, 5] and [7, 5], and 0 dense "
    "dimensions": lambda s: torch.bmm(s, s.to_dense()),
    "add: expected 'self' and 'other' to have the same size, but self has size [5, 7] while other "
    "has size [7, 5]": lambda s: s.to_dense().t() + s,
    "add: expected sizes of 'self' and 'other' to match, but [7, 5] != [5, 7]": lambda s: s + s.t(),
    "add: expected 'self' and 'other' to have same density, but 'self' has 2 sparse dimensions "
    "while 'other' has 1": lambda s: s + s.to_dense().to_sparse(1),
    "add(sparse, dense) is not supported. Use add(dense, sparse) instead.": lambda s: (
        s + s.to_dense()
    ),
    "mul: two sparse tensors must have the same size and the same sparse dimensions; their sizes "
    "are [7, 5] and [5, 7]": lambda s: s * s.t(),
    "mul: a dense tensor of shape [5, 7] does not broadcast to a sparse tensor of shape [7, 5]": (
        lambda s: s * s.to_dense().t()
    ),
    "sparse_mask(): operands have incompatible sizes; self has size [5, 7] but mask has size "
    "[7, 5]": lambda s: s.to_dense().t().sparse_mask(s),
    "sparse_mask: the operands have 1 and 2 sparse dimensions": lambda s: (
        s.to_dense().to_sparse(1).sparse_mask(s)
    ),
    "sparse transpose: transposed dimensions must be sparse; got 1 sparse dimensions, and 0 and "
    "1": lambda s: s.to_dense().to_sparse(1).transpose(0, 1),
    "result type Float can't be cast to the desired output type Long": lambda s: (
        s.to_dense().long().add_(s)
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_errors(text):
    with pytest.raises(RuntimeError) as raised:
        WRONG[text](matrix().to("spmd"))
    assert str(raised.value).removeprefix("torch_spmd: ") == text


def test_a_mark_is_of_the_values(mesh):
    s = matrix(nnz=12).to("spmd")
    with pytest.raises(ValueError) as raised:
        spmd.mark_sharding(s, mesh, ("x", None))
    assert str(raised.value) == (
        "mark_sharding takes no sparse tensor; got one with layout sparsecoo; give it the values, "
        "t._values(), whose nnz can be sharded"
    )
    spmd.mark_sharding(s._values(), mesh, ("x",))
    assert spmd.sharding_of(s._values()).spec == spmd.P("x")
    assert_same(s @ random(5, 3).to("spmd"), matrix(nnz=12) @ random(5, 3))
    assert [kind for kind, _ in sent()] == ["all_reduce"]
