# SPDX-License-Identifier: Apache-2.0
"""Ops sharded along the very dimension they work on: results and collectives."""

import pytest
import torch
from cut_results import check as cut_check
from cut_results import values
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C

pytestmark = pytest.mark.modes("coalesced", "in_turns")

MESH = {"x": (2,), "xy": (2, 2)}


def leaves(results):
    return [results] if isinstance(results, torch.Tensor) else list(results)


def run(function, tensors, specs, mesh=(4,)):
    """The result on the host, and the collectives by kind, of `function` with tensors so marked."""
    m = spmd.make_mesh(mesh, ("x", "y")[: len(mesh)])
    marked = [t.to("spmd") for t in tensors]
    for t, spec in zip(marked, specs):
        if spec is not None:
            spmd.mark_sharding(t, m, spec)
    _C.forget_programs()
    result = function(*marked).cpu()
    return result, {row[0] for p in _C.programs() for row in p.collectives()}


def check(function, tensors, specs, mesh=(4,), kinds=()):
    """Fails unless the result is the unsharded one, and exactly `kinds` of collectives occur."""
    result, found = run(function, tensors, specs, mesh)
    torch.testing.assert_close(result, function(*tensors), rtol=1e-4, atol=1e-5)
    assert found == set(kinds)


X = torch.randn(12, 6)
ROWS = torch.tensor([3, 11, 0, 3, 7])
INDEX = torch.randint(0, 12, (5, 6))
FLAT = torch.tensor([[0, 71, 5], [33, 2, -1]])

READS = {
    "gather": lambda x: x.gather(0, INDEX.to(x.device)),
    "index_select": lambda x: x.index_select(0, ROWS.to(x.device)),
    "index": lambda x: x[ROWS.to(x.device)],
    "index_negative": lambda x: x[(ROWS - 12).to(x.device)],
    "index_both": lambda x: x[ROWS.to(x.device), (ROWS % 6).to(x.device)],
    "index_boolean": lambda x: (x > 0)[ROWS.to(x.device)],
    "index_integers": lambda x: (x * 9).long()[ROWS.to(x.device)],
    "take": lambda x: x.take(FLAT.to(x.device) % 72),
    "trace": lambda x: x.trace(),
    "argmax": lambda x: x.argmax(0),
}


@pytest.mark.parametrize("name", READS)
def test_reading_a_sharded_dimension_by_index_sums_the_parts(name):
    check(READS[name], [X], [("x", None)], kinds=["all_reduce"])


@pytest.mark.parametrize("name", READS)
def test_reading_by_index_on_a_mesh_of_two_axes(name):
    result, kinds = run(READS[name], [X], [("y", "x")], (2, 3))
    torch.testing.assert_close(result, READS[name](X), rtol=1e-4, atol=1e-5)
    assert "all_gather" not in kinds


SOURCE = torch.randn(5, 6)
WRITES = {
    "scatter": lambda x: x.scatter(0, INDEX.to(x.device), SOURCE.to(x.device)),
    "scatter_value": lambda x: x.scatter(0, INDEX.to(x.device), 2.5),
    "scatter_multiply": lambda x: x.scatter(
        0, INDEX.to(x.device), SOURCE.to(x.device), reduce="multiply"
    ),
    "scatter_add": lambda x: x.scatter_add(0, INDEX.to(x.device), SOURCE.to(x.device)),
    "scatter_mean": lambda x: x.scatter_reduce(
        0, INDEX.to(x.device), SOURCE.to(x.device), "mean", include_self=False
    ),
    "scatter_amax": lambda x: x.scatter_reduce(0, INDEX.to(x.device), SOURCE.to(x.device), "amax"),
    "index_copy": lambda x: x.index_copy(0, ROWS.unique().to(x.device), SOURCE[:4].to(x.device)),
    "index_add": lambda x: x.index_add(0, ROWS.to(x.device), SOURCE.to(x.device), alpha=-2),
    "index_fill": lambda x: x.index_fill(0, ROWS.to(x.device), 7.0),
    "index_reduce": lambda x: x.index_reduce(0, ROWS.to(x.device), SOURCE.to(x.device), "prod"),
    "index_put": lambda x: x.index_put((ROWS.unique().to(x.device),), SOURCE[:4].to(x.device)),
    "index_put_add": lambda x: x.index_put(
        (ROWS.to(x.device), (ROWS % 6).to(x.device)), SOURCE[:, 0].to(x.device), accumulate=True
    ),
    "index_put_last": lambda x: x.index_put(
        (ROWS.to(x.device), torch.zeros_like(ROWS).to(x.device)), SOURCE[:, 0].to(x.device)
    ),
    "put": lambda x: x.put(FLAT.to(x.device), SOURCE[0].to(x.device).view(2, 3)),
    "mask": lambda x: x.index_put((x > 0,), torch.zeros((), device=x.device)),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_a_sharded_dimension_by_index_sends_nothing(name):
    check(WRITES[name], [X], [("x", None)])


@pytest.mark.parametrize("name", WRITES)
def test_writing_by_index_on_a_mesh_of_two_axes(name):
    result, kinds = run(WRITES[name], [X], [("y", "x")], (2, 3))
    torch.testing.assert_close(result, WRITES[name](X), rtol=1e-4, atol=1e-5)
    assert "all_gather" not in kinds


@pytest.mark.parametrize("device", ["cpu", "spmd"])
def test_an_index_that_is_not_there_is_an_error(device):
    x = X.to(device)
    if device == "spmd":
        spmd.mark_sharding(x, spmd.make_mesh((4,), ("x",)), ("x", None))
    with pytest.raises(IndexError, match="index 12 is out of bounds for dimension 0 with size 12"):
        x[torch.tensor([1, 12]).to(device)].sum().item()
    with pytest.raises(RuntimeError, match="index 12 is out of bounds"):
        x.gather(0, torch.full((1, 6), 12).to(device)).sum().item()


BATCH = torch.randn(8, 6, 6) + 4 * torch.eye(6)
POSITIVE = BATCH @ BATCH.mT
ON_MATRICES = {
    "cholesky": (torch.linalg.cholesky, [POSITIVE]),
    "det": (torch.linalg.det, [BATCH]),
    "eigvalsh": (torch.linalg.eigvalsh, [POSITIVE]),
    "fft2": (lambda x: torch.fft.fft2(x).abs(), [BATCH]),
    "inv": (torch.linalg.inv, [BATCH]),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, [BATCH, BATCH.mT]),
    "irfft": (torch.fft.irfft, [BATCH]),
    "lu_factor": (lambda x: torch.linalg.lu_factor(x).LU, [BATCH]),
    "matrix_exp": (torch.matrix_exp, [BATCH / 8]),
    "pinv": (torch.linalg.pinv, [BATCH]),
    "qr": (lambda x: torch.linalg.qr(x).R.abs(), [BATCH]),
    "solve": (torch.linalg.solve, [BATCH, BATCH.mT]),
    "sort": (lambda x: x.sort(-1).values.sort(-2).values, [BATCH]),
    "svdvals": (torch.linalg.svdvals, [BATCH]),
}


@pytest.mark.parametrize("name", ON_MATRICES)
def test_batches_of_matrices_communicate_nothing(name):
    function, tensors = ON_MATRICES[name]
    check(function, tensors, [("x", None, None)] * len(tensors))


@pytest.mark.parametrize("name", sorted(set(ON_MATRICES) - {"irfft", "lstsq", "solve", "sort"}))
def test_a_sharded_matrix_moves_its_axis_to_the_batch(name):
    function, tensors = ON_MATRICES[name]
    check(function, tensors, [(None, "x", None)] * len(tensors), kinds=["all_to_all"])
    check(function, tensors, [(None, None, "x")] * len(tensors), kinds=["all_to_all"])


MANY = values(6, 3000, seed=5)
WITH_MANY_SIDES = {
    "solve": lambda a, b: torch.linalg.solve_ex(a, b),
    "solve, with its factors": lambda a, b: torch.ops.aten._linalg_solve_ex(a, b),
    "triangular_solve": lambda a, b: torch.triangular_solve(b, a),
    "cholesky_solve": lambda a, b: torch.cholesky_solve(b, a.tril()),
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b),
}


@pytest.mark.parametrize("name", WITH_MANY_SIDES)
def test_columns_of_a_right_hand_side_are_solved_where_they_are(name):
    """Properties of the matrix are the same on every device, and not partial sums."""
    matrix = BATCH[0].double()

    def solve(a, b):
        found = WITH_MANY_SIDES[name](a, b)
        return found if isinstance(found, torch.Tensor) else tuple(found)

    cut_check(solve, (matrix, MANY), [((4,), (None, (None, "x")))], rtol=1e-6, atol=1e-8)
    a, b = matrix.to("spmd"), MANY.to("spmd")
    spmd.mark_sharding(b, spmd.make_mesh((4,), ("x",)), (None, "x"))
    _C.forget_programs()
    [t.cpu() for t in leaves(solve(a, b))]
    assert not [row for p in _C.programs() for row in p.collectives() if row[4] > 4096]


SIDES = {  # of the batches (2, 3) of matrices [5, 3] below
    "many": lambda b: b,
    "one each": lambda b: b[..., 0],
    "the same for all": lambda b: b[:1],
    "none": lambda b: b[..., :0],
}


@pytest.mark.parametrize("driver", [None, "gels", "gelsd", "gelss", "gelsy"])
@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("wide", [False, True])
def test_least_squares(driver, sides, wide):
    if sides == "none" and driver in ("gelsd", "gelss"):
        pytest.skip("LAPACK refuses")
    a = values(2, 3, 5, 3, seed=1)
    b = SIDES[sides](values(2, 3, 3 if wide else 5, 2, seed=2))

    def solve(a, b):
        a = a.mT if wide else a
        found = torch.linalg.lstsq(a, b, driver=driver)
        return (found.solution, *(x.detach() for x in found[1:]))

    cuts = [
        ((2,), (("x", None, None, None), ("x", *[None] * (b.dim() - 1)))),
        ((2, 3), (("x", "y", None, None), None)),
        ((3,), ((None, None, None, "x"), None)),
        ((2,), (None, (*[None] * (b.dim() - 1), "x"))),
    ]
    cut_check(solve, (a, b), cuts, rtol=1e-6, atol=1e-8)


def test_least_squares_that_lack_rank_have_no_residuals():
    a = values(4, 5, 3, seed=1)
    a[2, :, 1] = a[2, :, 0]
    b = values(4, 5, 2, seed=2)
    cut = spmd.mark_sharding(a.to("spmd"), spmd.make_mesh((4,), ("x",)), ("x", None, None))
    found = torch.linalg.lstsq(cut, b.to("spmd"), driver="gelsd")
    assert found.residuals.shape == (0,)
    assert found.rank.tolist() == [3, 3, 2, 3]
    want = torch.linalg.lstsq(a, b, driver="gelsd")
    torch.testing.assert_close(found.solution.cpu(), want.solution)
    torch.testing.assert_close(found.singular_values.cpu(), want.singular_values)


def test_cholesky_of_a_matrix_cut_both_ways():
    check(torch.linalg.cholesky, [POSITIVE], [(None, "x", "y")], (2, 2), ["exchange"])


@pytest.mark.parametrize("n", [4096, 1000, 500])
@pytest.mark.parametrize("scan", [torch.cumsum, torch.cumprod])
def test_scans_gather_the_totals_of_blocks_only(scan, n):
    x = torch.rand(n) * 0.01 + 0.995
    m = spmd.make_mesh((4,), ("x",))
    t = spmd.mark_sharding(x.to("spmd"), m, ("x",))
    _C.forget_programs()
    torch.testing.assert_close(scan(t, 0).cpu(), scan(x, 0), rtol=1e-4, atol=1e-5)
    gathered = [row[4] for p in _C.programs() for row in p.collectives() if row[0] == "all_gather"]
    assert sum(gathered) <= 4 * 192


def test_integer_scans_keep_their_type():
    x = torch.arange(400, dtype=torch.int32)
    result, _ = run(lambda t: t.cumsum(0), [x], [("x",)])
    assert result.dtype == torch.int64
    assert result.tolist() == x.cumsum(0).tolist()


DIAGONALS = {
    "diagonal": lambda x: x.diagonal(1),
    "below": lambda x: x.diagonal(-3),
    "beyond": lambda x: x.diagonal(9),
    "diag": lambda x: x.diag(),
    "embed": lambda x: torch.diag_embed(x, 2),
    "scatter": lambda x: x.diagonal_scatter(SOURCE[:, 0].to(x.device), 1),
    "batch": lambda x: x.view(3, 4, 6).diagonal(1, 2, 0),
    "integers": lambda x: (x * 9).long().diagonal(),
    "booleans": lambda x: (x > 0).diagonal(),
    "infinite": lambda x: (x / 0).diagonal(),
}


@pytest.mark.parametrize("name", DIAGONALS)
@pytest.mark.parametrize("spec", [("x", None), (None, "x"), ("x", "y"), ("y", "x")])
def test_diagonals_are_picked_out_of_the_tiles(name, spec):
    result, kinds = run(DIAGONALS[name], [X], [spec], (2, 3))
    torch.testing.assert_close(result, DIAGONALS[name](X), equal_nan=True)
    assert "all_gather" not in kinds


TESTS = torch.tensor([[0.0, 3.0], [7.0, -2.0]])
IS_IN = {
    "tensor": lambda x: torch.isin(x.round(), TESTS.to(x.device)),
    "number": lambda x: torch.isin(x.round(), 1.0),
    "inverted": lambda x: torch.isin(x.round(), TESTS.to(x.device), invert=True),
    "unique": lambda x: torch.isin(x.round(), TESTS.to(x.device), assume_unique=True),
}


@pytest.mark.parametrize("spec", [("x", None), (None, "x")], ids=str)
@pytest.mark.parametrize("name", IS_IN)
def test_isin_sends_nothing(name, spec):
    check(IS_IN[name], [X], [spec], mesh=(2,))


@pytest.mark.parametrize("invert", [False, True])
def test_test_elements_that_are_sharded(invert):
    tests = torch.arange(24.0)
    for x in (torch.tensor([3.0, 99.0]), 99, 3):

        def is_in(t, x=x):
            return torch.isin(x if isinstance(x, int) else x.to(t.device), t, invert=invert)

        result, _ = run(is_in, [tests], [("x",)])
        assert torch.equal(result, is_in(tests))


MAPS = {4: torch.randn(8, 2, 3), 5: torch.randn(8, 3, 4)}
GRIDS = {4: (8, 1, 6, 4), 5: (8, 1, 2, 6, 4)}


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("rank", MAPS)
def test_a_grid_of_sharded_maps_sends_nothing(rank, corners):
    grid = lambda t: torch.nn.functional.affine_grid(t, GRIDS[rank], corners)  # noqa: E731
    check(grid, [MAPS[rank]], [("x", None, None)])


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("rank", MAPS)
def test_a_grid_is_made_where_its_places_are(rank, corners):
    spec = (None, *[None] * (rank - 4), "x", None, None)

    def grid(t):
        made = torch.nn.functional.affine_grid(t, GRIDS[rank], corners)
        if t.device.type == "spmd":
            spmd.mark_sharding(made, spmd.make_mesh((2,), ("x",)), spec)
        return made * 2

    check(grid, [MAPS[rank]], [None], mesh=(2,))


@pytest.mark.parametrize("of_image", [False, True])
def test_the_gradient_of_a_grid_stays_with_its_images(of_image):
    host = [torch.randn(8, 3, 5, 5), torch.rand(8, 4, 4, 2) * 2 - 1]

    def gradients(device):
        image, grid = (t.clone().to(device) for t in host)
        if device == "spmd":
            mesh = spmd.make_mesh((4,), ("x",))
            for t in (image, grid):
                spmd.mark_sharding(t, mesh, ("x", None, None, None))
        image.requires_grad_(of_image)
        y = torch.nn.functional.grid_sample(image, grid.requires_grad_(), align_corners=False)
        y.pow(2).sum().backward()
        return [t.grad for t in (grid, image) if t.grad is not None]

    before = reported()["host_fallbacks"]
    got = gradients("spmd")
    assert spmd.sharding_of(got[0]).spec == ("x", None, None, None)
    torch.testing.assert_close([t.cpu() for t in got], gradients("cpu"))
    assert reported()["host_fallbacks"] == before
