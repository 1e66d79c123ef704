# SPDX-License-Identifier: Apache-2.0
"""What jobs of 1, 2 and 4 processes compute alike, to the bit.

Run as a script, it computes all cases but those that are named, and saves the results of this
process: python cases.py FOLDER [NAME …]
"""

import sys
from pathlib import Path

import torch

import torch_spmd as spmd

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mesh_2d():
    return spmd.make_mesh((2, 4), ("data", "model"))


@case
def training():
    """Data- and tensor-parallel, dropout, clipping, AdamW; losses and parameters."""
    torch.manual_seed(0)
    mesh = mesh_2d()
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(20, 7)
    ).to("spmd")
    spmd.mark_sharding(model[0].weight, mesh, ("model", None))
    spmd.mark_sharding(model[3].weight, mesh, (None, "model"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    results = {}
    for step in range(4):
        x = torch.randn(10, 12).to("spmd")
        y = torch.randint(0, 7, (10,)).to("spmd")
        for t in (x, y):
            spmd.mark_sharding(t, mesh, ("data",) + (None,) * (t.dim() - 1))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        results[f"loss {step}"] = loss.detach()
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
    results.update(model.state_dict())
    return {name: value.cpu() for name, value in results.items()}


@case
def layouts():
    """Uneven and empty tiles, other grids, and moves between all of them."""
    mesh = mesh_2d()
    line = spmd.make_mesh((8,), ("all",))
    part = spmd.Mesh([1, 4, 6], (3,), ("some",))
    specs = [
        (mesh, ("data", "model")),
        (line, ("all", None)),
        (line, (None, "all")),
        (mesh, (("model", "data"), None)),
        (mesh, (None, None)),
    ]
    results = {}
    for sizes in [(10, 7), (3, 5), (0, 4), (64, 64)]:
        x = torch.arange(sizes[0] * sizes[1], dtype=torch.float32).reshape(sizes)
        for i, (first, spec) in enumerate(specs):
            on_device = x.to("spmd")
            spmd.mark_sharding(on_device, first, spec)
            for j, (second, other) in enumerate(specs):
                moved = spmd.reshard(on_device * 2, second, other)
                results[f"{sizes} {i} {j}"] = moved.cpu()
        alone = x.to("spmd")
        spmd.mark_sharding(alone, part, ("some", None))
        results[f"{sizes} on three"] = (alone + 1).cpu()
    return results


@case
def types():
    """Sums over devices in every type; half types are rounded once."""
    mesh = mesh_2d()
    results = {}
    torch.manual_seed(1)
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16)
    for dtype in kinds:
        x = (torch.randn(24, 10) * 9).to(dtype)
        t = x.to("spmd")
        spmd.mark_sharding(t, mesh, ("data", "model"))
        for name, value in {
            "sum": t.sum(0),
            "all": t.sum(),
            "max": t.amax(1),
            "prod": (t[:8] / 9 if dtype.is_floating_point else t[:3]).prod(0),
            "any": (t > 8).any(1),
            "both": (t > -40).all(0),
            "sorted": t.sort(dim=1).values,
        }.items():
            results[f"{dtype} {name}"] = value.cpu()
    return results


@case
def random_numbers():
    mesh = mesh_2d()
    torch.manual_seed(3)
    x = torch.randn(9, 11, device="spmd")
    spmd.mark_sharding(x, mesh, ("data", "model"))
    y = torch.rand(16, device="spmd") + torch.nn.functional.dropout(x.sum(), 0.5)
    return {"x": x.cpu(), "y": y.cpu(), "bits": torch.randint(0, 9, (7,), device="spmd").cpu()}


@case
def experts():
    """Rows that a list takes out of a sharded batch stay where they are between programs."""
    torch.manual_seed(0)
    mesh = spmd.make_mesh((8,), ("data",))
    x, scores = torch.randn(32, 6), torch.randn(32, 3)
    weights = [torch.randn(6, 6).to("spmd").requires_grad_() for _ in range(3)]
    x, scores = (spmd.mark_sharding(t.to("spmd"), mesh, ("data", None)) for t in (x, scores))
    x.requires_grad_()
    out, kept = torch.zeros_like(x), []
    for k, w in enumerate(weights):
        (i,) = torch.where(scores.argmax(1) == k)
        y = (x[i] @ w).tanh()
        out = out.index_add(0, i, y)
        kept.append(y.detach())
        spmd.sync()
    read = kept[0].cpu()
    if spmd.processes.process_index() == spmd.processes.process_count() - 1:
        del kept[1]
    out.square().sum().backward()
    results = {"out": out, "x": x.grad, "read": read, "kept": kept[-1] + 1}
    results.update({f"w {k}": w.grad for k, w in enumerate(weights)})
    return {name: value.detach().cpu() for name, value in results.items()}


@case
def places_of_two_masks():
    """Rows are read by the places of one mask and written by those of another; a process still has
    an equal list that the others have dropped."""
    torch.manual_seed(0)
    mesh = spmd.make_mesh((8,), ("data",))
    x, mask = torch.randn(16, 6, 4), torch.rand(16, 6) < 0.4
    w = torch.randn(4, 4).to("spmd").requires_grad_()
    x = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None, None)).requires_grad_()
    mask = spmd.mark_sharding(mask.to("spmd"), mesh, ("data", None))
    before = mask.nonzero()
    used = x.detach()[before[:, 0], before[:, 1]].cpu()
    if spmd.processes.process_index() == 0:
        del before
    counts = mask.long().sum(1)
    most = counts.max().item()
    a = mask.nonzero(as_tuple=True)
    b = (torch.arange(most, device="spmd") < counts[:, None]).nonzero(as_tuple=True)
    packed = x.new_zeros(16, most, 4)
    packed[b] = x[a] @ w
    out = x * 2
    out[a] = packed.softmax(1)[b]
    out.square().sum().backward()
    results = {"used": used, "out": out, "x": x.grad, "w": w.grad, "a": a[1], "b": b[1]}
    return {name: value.detach().cpu() for name, value in results.items()}


@case
def reads_by_one():
    """A value that every process holds is read by whoever wants it."""
    mesh = mesh_2d()
    x = torch.ones(8, 4).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    total = x.sum()
    spmd.sync()
    read = [total.item() for _ in range(3)] if spmd.processes.process_index() == 0 else [32.0] * 3
    return {"read": torch.tensor(read), "after": (x + total).cpu()}


@case
def results_that_differ_in_liveness():
    """A process drops a value earlier than the others."""
    mesh = mesh_2d()
    results = {}
    for round in range(3):
        x = torch.full((8, 4), float(round)).to("spmd")
        spmd.mark_sharding(x, mesh, ("data", None))
        a, b, c = x + 1, x * 2, x - 3
        if spmd.processes.process_index() == spmd.processes.process_count() - 1:
            del a
        if spmd.processes.process_index() == 0 and round == 1:
            del b
        spmd.sync()
        results[f"c {round}"] = c.cpu()
    return results


@case
def ops_on_the_host():
    """Ops whose sizes depend on data read whole values, in every process."""
    mesh = mesh_2d()
    torch.manual_seed(5)
    x = torch.randint(-3, 4, (12, 5)).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", None))
    return {
        "nonzero": x.nonzero().cpu(),
        "unique": x.unique().cpu(),
        "masked": x.masked_select(x > 0).cpu(),
    }


@case
def an_op_fails_and_training_goes_on():
    """An index is out of range on the tile of one process: all raise, and nothing has changed."""
    mesh = spmd.make_mesh((8,), ("data",))
    table = torch.arange(32.0).reshape(16, 2).to("spmd")
    spmd.mark_sharding(table, mesh, (None, None))
    caught = []
    for bad in (3, 16, 5):
        index = torch.arange(8)
        index[6] = bad
        i = index.to("spmd")
        spmd.mark_sharding(i, mesh, ("data",))
        try:
            table += torch.index_select(table, 0, i).sum(0)
            spmd.sync(wait=True)
        except (IndexError, RuntimeError) as error:
            caught.append(str(error))
    assert len(caught) == 1 and "out of range" in caught[0], caught
    return {"table": table.cpu()}


@case
def shards():
    """Each process has the shards of its own devices."""
    mesh = mesh_2d()
    x = torch.arange(70.0).reshape(10, 7).to("spmd")
    spmd.mark_sharding(x, mesh, ("data", "model"))
    mine = spmd.local_shards(x)
    assert [s.device for s in mine] == list(spmd.processes.local_devices())
    whole = x.cpu()
    for shard in mine:
        assert torch.equal(shard.data, whole[shard.index])
    return {"whole": whole}


@case
def gradients_of_parts():
    """Micro-steps whose gradients are added up, and parameters sharded over all devices."""
    torch.manual_seed(7)
    line = spmd.make_mesh((8,), ("all",))
    layer = torch.nn.Linear(16, 24).to("spmd")
    spmd.mark_sharding(layer.weight, line, ("all", None))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for _ in range(3):
            x = torch.randn(16, 16).to("spmd")
            spmd.mark_sharding(x, line, ("all", None))
            layer(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.cpu() for name, value in layer.state_dict().items()}


@case
def large_sums():
    """A sum that is added in parts, which take several portions, one that is not, and both in one
    exchange."""
    torch.manual_seed(8)
    line = spmd.make_mesh((8,), ("all",))
    x = torch.randn(8, 300001).to("spmd")
    spmd.mark_sharding(x, line, ("all", None))
    y = torch.randn(16, 160).to("spmd")
    spmd.mark_sharding(y, line, ("all", None))
    large, small = x.sum(0), y.sum(0)
    return {"large": large.cpu(), "small": small.cpu(), "half": x.bfloat16().sum(0).cpu()}


def main():
    folder = Path(sys.argv[1])
    wanted = [name for name in CASES if name not in sys.argv[2:]]
    results = {name: CASES[name]() for name in wanted}
    torch.save(results, folder / f"{spmd.processes.process_index()}.pt")
    print("described:", spmd.config.describe_devices())


@case
def rings_experts_pipelines():
    """Ring attention in zigzag order, a mixture of experts and a pipeline, with gradients."""
    torch.manual_seed(0)
    results = {}

    def note(name, value, *parameters):
        value.square().mean().backward()
        results.update({f"{name} {i}": p.grad for i, p in enumerate(parameters)}, **{name: value})

    ring = spmd.make_mesh((2, 4), ("data", "context"))
    q, k, v = (torch.randn(2, h, 16, 4).to("spmd").requires_grad_() for h in (4, 2, 2))
    out = spmd.nn.ring_attention(q, k, v, ring, is_causal=True, zigzag=True, dropout_p=0.1)
    note("ring", out, q, k, v)
    expert = spmd.make_mesh((2, 4), ("data", "expert"))
    moe = spmd.nn.MoE(6, 10, 8).to("spmd").shard(expert, batch=("data",))
    x = spmd.mark_sharding(
        torch.randn(16, 4, 6).to("spmd"), expert, (("data", "expert"), None, None)
    )
    mixed = moe(x)
    results.update(load=mixed.load, dropped=mixed.dropped)
    note("experts", mixed.output, *moe.parameters())
    stage = spmd.make_mesh((2, 4), ("data", "stage"))
    layers = [torch.nn.Linear(6, 6).to("spmd") for _ in range(8)]
    blocks = spmd.nn.pipeline(layers, stage, microbatches=4, schedule="circular")
    x = spmd.mark_sharding(torch.randn(16, 6).to("spmd"), stage, ("data", None))
    note("pipeline", blocks(x), *blocks.parameters())
    layers = [torch.nn.Linear(6, 6).to("spmd") for _ in range(4)]
    backwards = spmd.nn.pipeline(
        layers, stage, microbatches=4, schedule="1f1b", loss=lambda y: y.square().mean()
    )
    note("1f1b", backwards(x), *backwards.parameters())
    return {name: value.detach().cpu() for name, value in results.items()}


if __name__ == "__main__":
    main()
