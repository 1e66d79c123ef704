# SPDX-License-Identifier: Apache-2.0
"""spmd.save and spmd.load of sparse tensors: each layout, on the device and on the host."""

import pytest
import torch
from torch import nn

import torch_spmd as spmd

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:Sparse ... tensor support"),
]

DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 0], [4, 0, 0, 5]])
LAYOUTS = {
    "coo": lambda: DENSE.to_sparse(),
    "not coalesced": lambda: torch.sparse_coo_tensor(
        [[0, 0, 2], [1, 1, 3]], [1.0, 2.0, 3.0], (4, 4)
    ),
    "hybrid": lambda: DENSE.to_sparse(1),
    "csr": lambda: DENSE.to_sparse_csr(),
    "csc": lambda: DENSE.to_sparse_csc(),
    "bsr": lambda: DENSE.to_sparse_bsr((2, 2)),
    "bsc": lambda: DENSE.to_sparse_bsc((2, 2)),
    "no values": lambda: torch.zeros(4, 4).to_sparse(),
    "int32 indices": lambda: torch.sparse_csr_tensor(
        torch.tensor([0, 1, 1, 1, 2], dtype=torch.int32),
        torch.tensor([3, 0], dtype=torch.int32),
        torch.tensor([1.0 + 2j, 3.0]),
        (4, 4),
    ),
}


def parts(s):
    if s.layout == torch.sparse_coo:
        return [s._indices(), s._values()]
    of_rows = s.layout in (torch.sparse_csr, torch.sparse_bsr)
    indices = (
        (s.crow_indices(), s.col_indices()) if of_rows else (s.ccol_indices(), s.row_indices())
    )
    return [*indices, s.values()]


def assert_same(got, want):
    assert (got.layout, got.dtype, got.shape) == (want.layout, want.dtype, want.shape)
    if got.layout == torch.sparse_coo:
        assert got.is_coalesced() == want.is_coalesced()
    for a, b in zip(parts(got), parts(want), strict=True):
        assert a.dtype == b.dtype and torch.equal(a.cpu(), b)


def zeroed(s):
    s = s.clone()
    for part in parts(s):
        part.zero_()
    return s


@pytest.mark.parametrize("device", ["cpu", "spmd"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout(tmp_path, name, device):
    want = LAYOUTS[name]()
    module = nn.Linear(2, 2)
    module.register_buffer("graph", want.clone())
    module.to(device)
    s = want.to(device)
    spmd.save(tmp_path, {"s": s, "again": [s], "module": module})
    found = spmd.load(tmp_path, None)
    for got in (found["s"], found["again"][0], found["module"]["graph"]):
        assert got.device.type == device
        assert_same(got, want)
    target = {
        "s": zeroed(want).to(device),
        "again": [zeroed(want).to(device)],
        "module": nn.Linear(2, 2),
    }
    target["module"].register_buffer("graph", zeroed(want))
    target["module"].to(device)
    given = target["s"]
    spmd.load(tmp_path, target)
    assert target["s"] is given
    for got in (given, target["again"][0], target["module"].graph):
        assert_same(got, want)


def test_marks_of_values_are_kept(tmp_path):
    mesh = spmd.make_mesh((2,), ("x",))
    s = DENSE.to_sparse_csr().to("spmd")
    values = torch.ones(6, device="spmd")
    spmd.mark_sharding(values, mesh, ("x",))
    s = torch.sparse_csr_tensor([0, 2, 3, 4, 6], [0, 1, 2, 3, 0, 1], values, (4, 4), device="spmd")
    spmd.save(tmp_path, {"s": s})
    assert spmd.sharding_of(spmd.load(tmp_path, None)["s"].values()).spec == spmd.P("x")


def test_what_does_not_fit_changes_nothing(tmp_path):
    spmd.save(tmp_path, {"s": DENSE.to_sparse_csr()})
    for target, text in (
        (torch.eye(4).to_sparse_csr(), r"'s\.values' has shape \(4,\), and \(5,\) was saved"),
        (
            DENSE.to_sparse_csc(),
            r"'s' is of sparse_csc and shape \(4, 4\), and sparse_csr of shape",
        ),
        (DENSE[:3].to_sparse_csr(), r"shape \(3, 4\), and sparse_csr of shape \(4, 4\) was saved"),
        (DENSE.clone(), r"'s' is a tensor, and another value was saved"),
        (DENSE.double().to_sparse_csr(), r"'s\.values' is of torch\.float64"),
    ):
        before = target.clone()
        with pytest.raises(ValueError, match=text):
            spmd.load(tmp_path, {"s": target})
        assert torch.equal(target.to_dense(), before.to_dense())
    spmd.load(tmp_path, {"s": (wide := zeroed(DENSE.double().to_sparse_csr()))}, cast=True)
    assert torch.equal(wide.to_dense(), DENSE.double())


@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_formats_of_others_have_dense_tensors_only(tmp_path, form):
    with pytest.raises(TypeError, match=r"s is a sparse tensor.*DCP|have dense tensors only"):
        spmd.save(tmp_path / "x", {"s": DENSE.to_sparse()}, format=form)
    assert not list(tmp_path.iterdir())
