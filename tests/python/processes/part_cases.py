# SPDX-License-Identifier: Apache-2.0
"""from_process_local in a job: python part_cases.py"""

import torch

import torch_spmd as spmd

LAST = spmd.processes.process_count() - 1
mesh = spmd.make_mesh((2, 4), ("data", "model"))
line = spmd.make_mesh((8,), ("all",))
part = spmd.Mesh([1, 4, 6], (3,), ("some",))
turned = spmd.Mesh([0, 4, 1, 5, 2, 6, 3, 7], (8,), ("all",))
alone = spmd.Mesh([5], (1,), ("one",))


def own_part(whole, mesh, spec):
    """What the devices of this process hold, by the shards of a tensor that was given whole."""
    x = spmd.mark_sharding(whole.to("spmd"), mesh, spec)
    shards = [s for s in spmd.local_shards(x) if s.data.numel()]
    if not shards:
        return whole[tuple(slice(0, 0) if dim else slice(None) for dim in spec)]
    for d in range(whole.dim()):
        held = sorted({i for s in shards for i in range(whole.shape[d])[s.index[d]]})
        whole = whole.index_select(d, torch.tensor(held, dtype=torch.long))
    return whole


CASES = [
    ((16, 8), mesh, ("data", "model")),
    ((16, 8), mesh, (("data", "model"), None)),
    ((16, 8), mesh, (None, "data")),
    ((16, 8), mesh, (None, None)),
    ((10, 7), mesh, ("model", "data")),
    ((10, 7), line, ("all", None)),
    ((3, 5), line, ("all", None)),
    ((3, 5), line, (None, "all")),
    ((0, 5), line, ("all", None)),
    ((9, 4), part, ("some", None)),
    ((16, 4), turned, ("all", None)),
    ((4, 4), alone, ("one", None)),
    ((), line, ()),
]


def values():
    for shape, on, spec in CASES:
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        local = own_part(whole, on, spec)
        for given in (shape, None):
            x = spmd.processes.from_process_local(local, on, spec, given)
            assert x.shape == shape, (x.shape, shape, spec)
            assert spmd.sharding_of(x) == spmd.NamedSharding(on, spec)
            assert spmd.sharding_of(x).is_committed and not x.requires_grad
            assert torch.equal((x * 2).cpu(), whole * 2), (shape, spec)
    for dtype in (torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        whole = (torch.arange(40).reshape(10, 4) % 3).to(dtype)
        x = spmd.processes.from_process_local(
            own_part(whole, mesh, ("model", None)), mesh, ("model", None)
        )
        assert torch.equal(x.cpu(), whole)
    fused = spmd.blocks(3, "all")
    whole = torch.arange(48.0).reshape(24, 2)
    rows = whole.view(3, 8, 2)[:, list(spmd.processes.local_devices())].reshape(-1, 2)
    x = spmd.processes.from_process_local(rows, line, (fused, None))
    assert torch.equal(x.cpu(), whole)
    assert spmd.sharding_of(x).spec == spmd.P(fused, None)


def a_step():
    """Gradients are those of the whole batch."""
    torch.manual_seed(0)
    whole = torch.randn(16, 4)
    results = []
    for local in (False, True):
        weight = torch.ones(4, 3, device="spmd", requires_grad=True)
        if local:
            x = spmd.processes.from_process_local(
                own_part(whole, mesh, ("data", None)), mesh, ("data", None)
            )
        else:
            x = spmd.mark_sharding(whole.to("spmd"), mesh, ("data", None))
        (x @ weight).square().mean().backward()
        results.append(weight.grad.cpu())
    assert torch.equal(*results)


def sent():
    """debug.collectives says how many bytes leave this process."""
    count = spmd.processes.process_count()
    whole = torch.arange(64.0).reshape(16, 4)
    for on, before, after, expected in (
        # Each process sends its rows to every other one.
        (line, ("all", None), (None, None), {1: 0, 2: 128, 4: 64 * 3}),
        # Two columns of eight rows, to the process with the others; or nothing, within a process.
        (mesh, ("data", "model"), ("data", None), {1: 0, 2: 0, 4: 64}),
    ):
        x = spmd.mark_sharding(whole.to("spmd"), on, before)
        y = spmd.reshard(x + 1, on, after)
        spmd.sync(wait=True)
        table = spmd.debug.collectives(step=False)
        assert sum(row.sent_bytes for row in table) == expected[count], str(table)
        assert ("to other processes" in str(table)) == (count > 1)
        assert torch.equal(y.cpu(), whole + 1)


def error(call, kind=ValueError):
    """All processes print the same; the job goes on."""
    try:
        call()
    except kind as raised:
        print(kind.__name__, raised)
    else:
        raise AssertionError("no error")


def errors():
    rows = 16 // spmd.processes.process_count()
    last = spmd.processes.process_index() == LAST
    good = torch.zeros(rows, 4)
    call = spmd.processes.from_process_local
    spec = ("all", None)
    error(lambda: call(torch.zeros(rows + last, 4), line, spec, (16, 4)))
    error(lambda: call(good.double() if last else good, line, spec))
    error(lambda: call(None if last else good, line, spec), TypeError)
    error(lambda: call(good, line, spec, (16, 4, 1)[: 3 if last else 2]))
    error(lambda: call(good, line, ("nothing", None)))
    error(lambda: call(good[0] if last else good, line, spec))
    error(lambda: call(torch.zeros(4, 4 + last), mesh, (None, None)))
    parts = [
        spmd.Shard(torch.zeros(1, 4), (slice(i, i + 1), slice(0, 4)), i, 0)
        for i in spmd.processes.local_devices()
    ]
    error(lambda: spmd.from_local_shards(parts[last:], line, spec, (8, 4)))
    x = spmd.from_local_shards(parts, line, spec, (8, 4))
    error(lambda: spmd.load_local_shards_(x, parts[last:]))
    assert torch.equal(spmd.load_local_shards_(x, parts).cpu(), torch.zeros(8, 4))


if __name__ == "__main__":
    values()
    a_step()
    sent()
    if spmd.processes.process_count() > 1:
        errors()
