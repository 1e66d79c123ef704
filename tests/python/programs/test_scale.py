# SPDX-License-Identifier: Apache-2.0
"""A program does not grow with the number of devices, and many devices fit on few cores."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import run_script
from reported import reported

import torch_spmd as spmd
from torch_spmd import _C
from torch_spmd.sharding.marks import mark_of

EXAMPLES = Path(__file__).parents[3] / "examples"

# Shapes only: nothing is computed.
PLAN = """
    import sys
    sys.path.insert(0, {examples!r})
    import torch, torch_spmd as spmd
    from common.gpt import GPT, GPTConfig
    from common.strategies import strategy

    spmd.config.set_backend("mock_tpu:v4-8192:plan")
    mesh = spmd.make_mesh(({data}, {model}), ("data", "model"))
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=256, block=32, layers=2, width=64, heads=8, dropout=0.1)
    model = GPT(config).to("spmd")
    plan = strategy({plan!r}, mesh.axis_names)
    spmd.shard_module(model, mesh, plan.rules)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(4 * {data} * {model}, 32, dtype=torch.int64).to("spmd")
    spmd.mark_sharding(tokens, mesh, plan.inputs)
    model(tokens, tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    spmd.sync()
    lines = str(spmd.debug.print_program()).splitlines()
    print(sum(line.startswith("  ") for line in lines))
"""


def instructions(data, model, plan):
    script = PLAN.format(examples=str(EXAMPLES), data=data, model=model, plan=plan)
    return int(run_script(script).stdout.split()[-1])


# Same spec, same rank of mesh, no axis of size 1, every shard even: 8, 64, 512 and 4096 devices.
MESHES = {
    "dp": [(2, 4), (8, 8), (64, 8), (512, 8)],
    "fsdp": [(2, 4), (2, 16)],  # tables of 32 and 256 rows
    "2d": [(2, 4), (8, 8), (64, 8), (512, 8)],
}


@pytest.mark.parametrize("plan", MESHES)
def test_the_number_of_instructions_does_not_depend_on_the_mesh(plan):
    counts = {mesh: instructions(*mesh, plan) for mesh in MESHES[plan]}
    assert len(set(counts.values())) == 1, counts


def test_256_devices_train():
    script = """
        import sys
        sys.path.insert(0, {tests!r}); sys.path.insert(0, {examples!r})
        import torch_spmd as spmd
        from training import Job, gpt_losses
        job = Job(steps=2, batch=32)
        mesh = spmd.make_mesh((32, 8), ("x", "y"))
        sharded = gpt_losses(job, "spmd", mesh, "2d")
        plain = gpt_losses(job, "cpu")
        assert all(abs(a - b) < 1e-4 * b for a, b in zip(sharded, plain)), (sharded, plain)
    """
    run_script(
        script.format(tests=str(Path(__file__).parents[1] / "support"), examples=str(EXAMPLES))
    )


@pytest.mark.parametrize("devices", [2, 8, 64])
def test_300_launches_that_nobody_waits_for(devices):
    """XLA's CPU client ends the process where so many collectives are enqueued."""
    mesh = spmd.make_mesh((devices,), ("x",))
    x = spmd.mark_sharding(torch.ones(devices, 3).to("spmd"), mesh, ("x", None))
    before = reported()["runs"]
    for _ in range(300):
        x = x + x.sum(0) / devices  # an all-reduce
        x = x / 2
        spmd.sync()
    assert reported()["runs"] - before == 300
    torch.testing.assert_close(x.cpu(), torch.ones(devices, 3))


@pytest.mark.parametrize("pending", [10, 300])
def test_a_question_about_pending_values_is_planned_once(pending):
    def plans():
        return _C.statistics()["plans_of_pending"]

    mesh = spmd.make_mesh((2, 2), ("a", "b"))
    x = spmd.mark_sharding(torch.rand(8, 8, device="spmd"), mesh, ("a", None))
    spmd.sync()
    values = [x * 1.5]
    before = plans()
    for _ in range(pending):
        values.append(values[-1] * 1.5)
        assert mark_of(values[-1]) is None
        assert (values[-1].shape, values[-1].device.type) == (x.shape, "spmd")
    assert plans() == before
    for value in (*values, values[-1].t()):
        assert "a" in spmd.sharding_of(value).spec
    assert plans() == before + 1
    values.append(values[-1].sum(0))  # what is recorded,
    assert spmd.sharding_of(values[-1]).spec == spmd.P(None)
    assert plans() == before + 2
    del values[-1], values[3]  # dropped
    assert spmd.sharding_of(values[-1]).spec == spmd.P("a", None)
    assert plans() == before + 3
    spmd.mark_sharding(values[-1], mesh, (None, "b"))  # and marked may change the answer
    assert spmd.sharding_of(values[-2]).is_provisional
    assert plans() == before + 4
    spmd.sync()
    assert not spmd.sharding_of(values[-2]).is_provisional
    assert plans() == before + 4


CALLS: dict[str, Callable[[torch.Tensor, spmd.Mesh], object]] = {
    "sharding_of": lambda t, mesh: spmd.sharding_of(t),
    "sharding_of a view": lambda t, mesh: spmd.sharding_of(t.t()),
    "mark_of": lambda t, mesh: mark_of(t),
    "mark_sharding": lambda t, mesh: spmd.mark_sharding(t, mesh, ("a", None)),
    "reshard": lambda t, mesh: spmd.reshard(t, mesh, (None, "b")),
    "an op": lambda t, mesh: t * 2,
    "in place": lambda t, mesh: t.mul_(2),
    "a view": lambda t, mesh: t[1:, None].shape,
    "detach": lambda t, mesh: t.detach(),
    "deepcopy": lambda t, mesh: copy.deepcopy(t),
    "Parameter": lambda t, mesh: torch.nn.Parameter(t),
    "empty_like": lambda t, mesh: torch.empty_like(t),
    "from the host": lambda t, mesh: torch.ones(3).to("spmd"),
    "collectives": lambda t, mesh: spmd.debug.collectives(),
    "memory": lambda t, mesh: spmd.debug.memory(),
    "explain_compile": lambda t, mesh: spmd.debug.explain_compile(),
    "print_program": lambda t, mesh: spmd.debug.print_program(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_public_call_does_what_does_not_depend_on_what_is_pending(call):
    """Counts plans of what is pending, runs, compilations and calls of Python functions."""

    def counts(pending):
        mesh = spmd.make_mesh((2, 2), ("a", "b"))
        spmd.sync()
        kept = [spmd.mark_sharding(torch.rand(8, 8).to("spmd"), mesh, ("a", None))]
        for _ in range(pending):
            kept.append(kept[-1] * 1.5)
        assert spmd.sharding_of(kept[-1]).is_provisional  # planned, and known from here on
        called = 0

        def count(*_):
            nonlocal called
            called += 1

        results = [CALLS[call](kept[-1], mesh)]  # caches of PyTorch, and what is imported
        before = _C.statistics()
        sys.setprofile(count)
        try:
            results.append(CALLS[call](kept[-2], mesh))
        finally:
            sys.setprofile(None)
        after = _C.statistics()
        names = ("plans_of_pending", "runs", "compiles")
        return called, *(after[name] - before[name] for name in names)

    few, many = counts(20), counts(400)
    assert few == many
    assert few[1:] == (0, 0, 0)
