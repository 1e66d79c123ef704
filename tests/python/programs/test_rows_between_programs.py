# SPDX-License-Identifier: Apache-2.0
"""Rows that a list took out of a sharded dimension pass from program to program where they are."""

import copy

import pytest
import torch
from torch.nn import functional as F

import torch_spmd as spmd
from torch_spmd import _C, _options

N, D, H = 32, 32, 48
# Unsorted, with duplicates and negative indices; one row; no row.
LISTS = [[3, 17, 30, 31, 4, 2, 9, 8, 29], [0, 0, 5, -1, 5, -32, 12], [7], [], [11, 10, 25, 7, 1]]


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("data",))


def drawn():
    g = torch.Generator().manual_seed(0)
    x, p = torch.rand(N, D, generator=g) + 0.1, torch.rand(N, 2, generator=g)
    weights = [0.1 * torch.randn(size, generator=g) for _ in LISTS for size in ((2 * H, D), (D, H))]
    return x, p, weights


def placed(mesh, x, p, weights):
    x, p = (spmd.mark_sharding(t.to("spmd"), mesh, ("data", None)) for t in (x, p))
    return x, p, [spmd.mark_sharding(w.to("spmd"), mesh, (None, None)) for w in weights]


def loop(x, p, weights, lists, after=lambda **rows: None):
    """Experts, each in a program of its own."""
    out = torch.zeros_like(x)
    for k, i in enumerate(lists):
        h = x[i]
        gate, up = F.linear(h, weights[2 * k]).chunk(2, dim=-1)
        y = F.linear(F.silu(gate) * up, weights[2 * k + 1]) * p[i, i % 2, None]
        out.index_put_((i,), y, accumulate=True)
        if x.device.type == "spmd":
            spmd.sync()
        after(h=h, y=y, gate=gate, i=i, out=out)
    return out


def trained(x, p, weights, lists):
    leaves = [t.detach().requires_grad_() for t in (x, p, *weights)]
    out = loop(leaves[0], leaves[1], leaves[2:], lists)
    (out.square().sum() / out.numel()).backward()
    if x.device.type == "spmd":
        spmd.sync()
    return [out.detach(), *(t.grad for t in leaves)]


def lists_on(device):
    return [torch.tensor(list_, dtype=torch.int64).to(device) for list_ in LISTS]


def sent(programs):
    """The bytes of each collective of programs with these numbers."""
    made = [p for p in _C.programs() if p.number in programs]
    return [row[4] for p in made for row in p.collectives()]


def last_compiled():
    return max((event[0] for event in _C.compile_events()), default=0)


def compiled_since(last):
    """The numbers of programs behind that one. Only the last events are kept."""
    return {event[0] for event in _C.compile_events() if event[0] > last}


def same(got, want, rtol=1e-4):
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"verify": True}, {"coalesce": False}], ids=str)
def test_experts_of_several_programs_send_their_gradients(mesh, options):
    given = drawn()
    want = trained(*given, lists_on("cpu"))
    _C.forget_programs()
    with _options.options(**options):
        at = placed(mesh, *given)
        lists = lists_on("spmd")
        last = last_compiled()
        got = trained(*at, lists)
        first = compiled_since(last)
        last = last_compiled()
        again = trained(*at, lists)
        assert compiled_since(last) == set()
    same(got, want)
    same(again, want)
    # Each device computes the gradients of an expert without tokens, or with one, itself.
    several = [k for k, list_ in enumerate(LISTS) if len(list_) > 1]
    gradients = sum(w.numel() * 4 for k in several for w in given[2][2 * k : 2 * k + 2])
    rows = sent(first)
    assert gradients <= sum(rows) < gradients + 2048


def kept(mesh, case):
    """What `case` gives for the rows of the first expert after its program has run."""
    results = {}
    for device in ("cpu", "spmd"):
        given = drawn()
        given = placed(mesh, *given) if device == "spmd" else given
        found = []

        def look(device=device, found=found, **rows):
            if not found:
                with torch.no_grad():
                    found.append(case(**rows))

        with torch.no_grad():
            out = loop(*given, lists_on(device), after=look)
        results[device] = (found[0], out)
    for ours, theirs in zip(results["spmd"], results["cpu"], strict=True):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-6)
        else:
            assert ours == theirs


def test_reads_on_the_host(mesh):
    kept(mesh, lambda y, **_: y.cpu())
    kept(mesh, lambda y, **_: y[1:3, ::2].cpu() + y.cpu()[1:3, ::2])
    kept(mesh, lambda gate, **_: gate.t().cpu())
    kept(mesh, lambda y, **_: [y.shape, y.gt(y[0, 0]).sum().item()])


def overwrite(y, h, i, **_):
    y.mul_(2)
    h[1] = 0
    h.index_fill_(1, torch.arange(2, device=h.device), 3)
    i.zero_()
    return torch.cat([y, h])


def resize(y, **_):
    y.data = torch.ones(2, 2, device=y.device)
    return y + 1


def set_bytes(y, h, **_):
    z = torch.empty(0, device=y.device).set_(y.untyped_storage(), 3, (4, 5), (7, 1))
    h.untyped_storage().copy_(y.untyped_storage())
    return torch.cat([z.flatten(), h.flatten()])


def copies(y, h, **_):
    z = copy.deepcopy(y)
    h.copy_(y)
    y.zero_()
    return torch.cat([z, h, y, y.clone().fill_(2)])


def in_more_programs(y, h, i, out, **_):
    """Read by several programs, some of which write them back again."""
    z = y
    for _ in range(3):
        z = z * h.sum() + y.flip(0)
        out.index_put_((i,), z, accumulate=True)
        if y.device.type == "spmd":
            spmd.sync()
    return torch.stack([z, y, h])


@pytest.mark.parametrize("case", [overwrite, resize, set_bytes, copies, in_more_programs])
def test_what_is_done_to_them(mesh, case):
    kept(mesh, case)


def written_back_and_read(y, h, i, out, **_):
    """The program that the read ends writes by the list, so that it leaves rows again."""
    z = y * 2
    out.index_put_((i,), z, accumulate=True)
    return [z.cpu(), y.cpu()][0]


def test_a_read_ends_a_program_that_leaves_rows(mesh):
    kept(mesh, written_back_and_read)


def test_layouts_and_marks(mesh):
    def case(y, h, gate, **_):
        if y.device.type == "cpu":
            return torch.cat([y, h])
        whole = spmd.sharding_of(y)
        assert len(whole.spec) == 2
        assert spmd.debug.explain(h)
        spmd.mark_sharding(h, mesh, (None, "data"))
        assert [tuple(s.data.shape) for s in spmd.local_shards(h)] == [(9, D // 4)] * 4
        spmd.mark_sharding(gate, mesh, (None, "data"))
        assert spmd.sharding_of(gate + 0).spec == spmd.P(None, "data")
        return torch.cat([y, h])

    kept(mesh, case)


def test_a_failure_of_a_program_that_reads_them(mesh):
    """An index out of range is named, and the rows are there for the next program."""

    def case(y, h, i, **_):
        if y.device.type == "spmd":
            bad = y[torch.tensor([40], device="spmd")]
            with pytest.raises(IndexError, match="index 40 is out of bounds"):
                (bad + h[0]).cpu()
        return y + h

    kept(mesh, case)


def test_a_graph_is_kept_for_several_backward_passes(mesh):
    given = drawn()
    found = []
    for device in ("cpu", "spmd"):
        x, p, weights = placed(mesh, *given) if device == "spmd" else given
        leaves = [t.detach().requires_grad_() for t in (x, p, *weights)]
        out = loop(leaves[0], leaves[1], leaves[2:], lists_on(device))
        for _ in range(2):
            out.square().sum().backward(retain_graph=True)
            if device == "spmd":
                spmd.sync()
        (first,) = torch.autograd.grad(out.pow(3).sum(), leaves[:1], create_graph=True)
        if device == "spmd":
            spmd.sync()
        first.square().sum().backward()
        found.append([t.grad for t in leaves])
    same(found[1], found[0], rtol=1e-3)


def test_rows_that_are_not_written_back_leave_whole(mesh):
    """A subset of data is no expert's: it is read by many programs."""
    x = spmd.mark_sharding(torch.rand(N, D).to("spmd"), mesh, ("data", None))
    i = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:16].to("spmd")
    part = x[i]
    mean = part.mean().item()
    assert mean == pytest.approx(x.cpu()[i.cpu()].mean().item(), rel=1e-5)
    (part * 2).sum().item()
    events = _C.compile_events()
    assert sent({events[-1][0]}) == [] or max(sent({events[-1][0]})) < N * D
    torch.testing.assert_close(part.cpu(), x.cpu()[i.cpu()])
