# SPDX-License-Identifier: Apache-2.0
"""Pipelines against the same layers one after the other, what they send, and their bubbles."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from pipeline_layers import Layer, Matrix
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

pytestmark = pytest.mark.modes("coalesced", "verified")


def layers(count, width=6, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.ModuleList([Layer(width).to(dtype) for _ in range(count)])


CASES = {
    "one_layer_each": (4, 6, "gpipe", False),
    "two_layers_each": (8, 4, "gpipe", False),
    "one_microbatch": (4, 1, "gpipe", False),
    "checkpointed": (8, 3, "gpipe", True),
    "circular": (12, 6, "circular", False),
    "circular_without_a_gap": (8, 4, "circular", True),
}


@pytest.mark.parametrize("case", CASES)
def test_it_equals_the_layers_in_a_row(case):
    count, microbatches, schedule, checkpoint = CASES[case]
    mesh, plain = spmd.make_mesh((4,), ("stage",)), layers(count)
    x = torch.randn(12, 3, 6, dtype=torch.float64)
    theirs, their_x = copy.deepcopy(plain), x.clone().requires_grad_()
    expected = nn.Sequential(*theirs)(their_x)
    expected.square().sum().backward()
    blocks = spmd.nn.pipeline(
        plain.to("spmd"),
        mesh,
        microbatches=microbatches,
        schedule=schedule,
        checkpoint=checkpoint,
    )
    our_x = x.to("spmd").requires_grad_()
    got = blocks(our_x)
    got.square().sum().backward()
    torch.testing.assert_close(got.detach().cpu(), expected.detach())
    torch.testing.assert_close(our_x.grad.cpu(), their_x.grad)
    for name, parameter in blocks.layers.named_parameters():
        assert spmd.sharding_of(parameter).spec[0] == "stage"
        grads = torch.stack([dict(layer.named_parameters())[name].grad for layer in theirs])
        order = grads.unflatten(0, (-1, 4)).transpose(0, 1)
        grads = order if schedule == "circular" else grads.unflatten(0, (4, -1))
        torch.testing.assert_close(parameter.grad.cpu(), grads)


def rows():
    """Kind and bytes of what the last program sends, without what is small."""
    return [(r.kind, r.bytes) for r in spmd.debug.collectives() if r.bytes > 64]


def test_trees_and_further_arguments():
    """A mask by example passes with the activations, a scale is the same for all."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, state, scale):
            x, mask = state["x"], state["mask"]
            return {"x": x + scale * torch.where(mask, self.linear(x), 0), "mask": mask}

    torch.manual_seed(0)
    mesh, plain = spmd.make_mesh((2,), ("stage",)), [Masked() for _ in range(2)]
    state = {"x": torch.randn(6, 4), "mask": torch.rand(6, 1) < 0.5}
    expected = plain[1](plain[0](state, 0.5), 0.5)
    blocks = spmd.nn.pipeline([m.to("spmd") for m in plain], mesh, microbatches=3)
    got = blocks({name: t.to("spmd") for name, t in state.items()}, 0.5)
    torch.testing.assert_close(got["x"].cpu(), expected["x"].detach())
    assert torch.equal(got["mask"].cpu(), state["mask"])


def test_dropout_differs_between_stages_and_microbatches():
    mesh = spmd.make_mesh((2,), ("stage",))
    layer = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
    nn.init.ones_(layer[1].weight)
    blocks = spmd.nn.pipeline([layer.to("spmd"), copy.deepcopy(layer)], mesh, microbatches=4)
    y = blocks(torch.ones(4096, 1, device="spmd")).cpu()
    assert abs((y == 4).double().mean() - 0.25) < 0.05  # kept by both
    by_microbatch = y.view(-1, 4).T
    assert all(not torch.equal(by_microbatch[0], other) for other in by_microbatch[1:])
    y = blocks.eval()(torch.ones(8, 1, device="spmd")).cpu()
    assert torch.equal(y, torch.ones(8, 1))


@pytest.mark.parametrize("schedule", ["gpipe", "circular"])
def test_bubbles_are_those_of_the_theory(schedule):
    """Each device does the work of all ticks, of which the layers' own is 1 - bubble."""
    mesh, count, width = spmd.make_mesh((4,), ("stage",)), 8, 32
    blocks = spmd.nn.pipeline(
        [Matrix(width).to("spmd") for _ in range(count)],
        mesh,
        microbatches=6,
        schedule=schedule,
    )
    x = torch.randn(48, width, device="spmd")
    spmd.sync(wait=True)
    y = blocks(x)
    spmd.sync(wait=True)
    work = sum(row.flops for row in spmd.debug.timeline("v5e-4") if "mm" in row.op)
    needed = 2 * 48 * width * width * count / 4
    assert needed / work == pytest.approx(1 - blocks.bubble)
    assert blocks.bubble == {"gpipe": 3 / 9, "circular": 3 / 15}[schedule]
    del y


def test_each_tick_sends_one_microbatch_to_the_next_stage():
    """And the backward pass as many back. What comes out of the last stage is spread once, and so
    is the gradient that comes out of the first one."""
    mesh, width = spmd.make_mesh((4,), ("stage",)), 32
    blocks = spmd.nn.pipeline([Matrix(width).to("spmd") for _ in range(4)], mesh, microbatches=6)
    x = torch.randn(48, width, device="spmd", requires_grad=True)
    spmd.sync(wait=True)
    y = blocks(x)
    spmd.sync(wait=True)
    shift, spread = ("exchange", 8 * width * 4), ("all_reduce", 48 * width * 4)
    assert rows() == [shift] * 8 + [spread]
    y.square().sum().backward()
    spmd.sync(wait=True)
    assert rows() == [shift] * 8 + [spread]


def test_the_last_stage_sends_to_the_first_in_a_circular_pipeline():
    """Once the first micro-batch has been everywhere, the exchange of a tick is also from the last
    stage to the first."""
    mesh, width = spmd.make_mesh((4,), ("stage",)), 32
    blocks = spmd.nn.pipeline(
        [Matrix(width).to("spmd") for _ in range(8)], mesh, microbatches=6, schedule="circular"
    )
    x = torch.randn(48, width, device="spmd")
    spmd.sync(wait=True)
    y = blocks(x)
    spmd.sync(wait=True)
    assert blocks.ticks == 2 * 6 + 3
    shifts = 3 + (blocks.ticks - 4)
    assert rows() == [("exchange", 8 * width * 4)] * shifts + [("all_reduce", 48 * width * 4)]
    del y


def test_recomputing_and_several_passes_keep_less():
    """Four backward passes of 4 micro-batches keep the activations of 4, with a larger bubble.
    Recomputing keeps the bubble."""
    mesh, width = spmd.make_mesh((4,), ("stage",)), 32

    def run(passes, checkpoint):
        blocks = spmd.nn.pipeline(
            [Layer(width).to("spmd") for _ in range(8)],
            mesh,
            microbatches=16 // passes,
            checkpoint=checkpoint,
        )
        x = torch.randn(256, width, device="spmd")
        spmd.sync(wait=True)
        for part in x.chunk(passes):
            blocks.zero_grad()
            blocks(part).square().sum().backward()
            spmd.sync(wait=True)
        memory = spmd.debug.memory()
        return memory.peak_bytes - memory.input_bytes, blocks.bubble

    kept, bubble = run(1, checkpoint=False)
    recomputed, same_bubble = run(1, checkpoint=True)
    accumulated, larger_bubble = run(4, checkpoint=False)
    assert 1.5 * max(recomputed, accumulated) < kept
    assert bubble == same_bubble == 3 / 19 and larger_bubble == 3 / 7


def test_tensor_parallel_stages_keep_their_marks():
    """Forward and backward in one program on (stage, data, model): shifts are sharded over data,
    there is one sum over data, of all gradients, and activations are summed over model."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    mesh, plain = spmd.make_mesh((2, 2, 2), ("stage", "data", "model")), [Both() for _ in range(4)]
    modules = [copy.deepcopy(layer).to("spmd") for layer in plain]
    for layer in modules:
        spmd.mark_sharding(layer.up.weight, mesh, ("model", None))
        spmd.mark_sharding(layer.up.bias, mesh, ("model",))
        spmd.mark_sharding(layer.down.weight, mesh, (None, "model"))
    blocks = spmd.nn.pipeline(modules, mesh, microbatches=4)
    assert spmd.sharding_of(blocks.layers.down.weight).spec == P("stage", None, None, "model")
    x = torch.randn(32, 16)
    ours = spmd.mark_sharding(x.to("spmd"), mesh, ("data", None))
    spmd.sync(wait=True)
    blocks(ours).square().sum().backward()
    spmd.sync(wait=True)
    shift, gradients = 4 * 16 * 4, 2 * (16 * 32 + 32 + 32 * 16 + 16) * 4
    sent = [(r.kind, r.axes, r.bytes) for r in spmd.debug.collectives()]
    assert sent.count(("exchange", "stage,data", shift)) == 4 + 4
    assert [row for row in sent if row[1] == "data"] == [("all_reduce", "data", gradients)]
    assert {row[0] for row in sent if row[1] == "model"} == {"all_reduce"}
    nn.Sequential(*plain)(x).square().sum().backward()
    grads = torch.stack([layer.up.weight.grad for layer in plain]).unflatten(0, (2, 2))
    torch.testing.assert_close(blocks.layers.up.weight.grad.cpu(), grads, rtol=1e-4, atol=1e-4)


def test_a_gpt_trains():
    """Blocks as a pipeline, the batch sharded as well: the losses of plain PyTorch."""
    from common.gpt import GPT, GPTConfig

    config = GPTConfig(vocab_size=32, block=8, layers=4, width=16, heads=2, dropout=0.0)
    torch.manual_seed(0)
    plain = GPT(config).double()
    tokens, targets = (torch.randint(32, (8, 8)) for _ in range(2))

    def losses(model, tokens, targets):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        result = []
        for _ in range(3):
            loss = model(tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.item())
        return result

    mesh = spmd.make_mesh((2, 2), ("data", "stage"))
    model = copy.deepcopy(plain).to("spmd")
    model.blocks = nn.ModuleList([spmd.nn.pipeline(model.blocks, mesh, microbatches=2)])
    ours = [spmd.mark_sharding(t.to("spmd"), mesh, P("data", None)) for t in (tokens, targets)]
    torch.testing.assert_close(losses(model, *ours), losses(plain, tokens, targets))


def test_the_conformer_is_the_one_that_is_unrolled_by_hand(monkeypatch):
    """Losses of two steps, and what is sent in the second: the shifts and the same sums. By hand
    there is one shift more, of the empty stages before the first tick."""
    from benchmarks.workloads import conformer

    sizes = {"BLOCKS": 1, "WIDTH": 16, "HIDDEN": 32, "KERNEL": 5, "VOCAB": 8, "LENGTH": 12}
    for name, value in {**sizes, "MICRO_BATCHES": 3}.items():
        monkeypatch.setattr(conformer, name, value)

    def sent_in_two(step):
        losses = [step().item() for _ in range(2)]
        table = spmd.debug.collectives(step=True)
        return losses, Counter((r.kind, r.axes, r.bytes) for r in table if r.wire_bytes > 0)

    torch.manual_seed(0)
    workload = conformer.build(True)
    state = {name: p.detach().cpu() for name, p in workload.model.named_parameters()}
    # Example e of micro-batch m is number e * M + m.
    x, y = (workload.inputs[n].cpu().transpose(0, 1).flatten(0, 1) for n in ("inputs", "targets"))
    losses, by_hand = sent_in_two(workload.step)
    monkeypatch.setattr(conformer, "STAGES", 1)

    class Stage(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.stages = nn.Sequential(conformer.block())
            self.load_state_dict({n: p[number][None] for n, p in state.items() if "head" not in n})

        def forward(self, x):
            return self.stages(x[None])[0]

    mesh = spmd.make_mesh((4, 2), ("stage", "data"))
    blocks = spmd.nn.pipeline([Stage(i).to("spmd") for i in range(4)], mesh, microbatches=3)
    model = nn.Sequential(blocks, nn.Linear(16, 8, bias=False).to("spmd"))
    model[1].load_state_dict({"weight": state["head.weight"]})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (
        spmd.mark_sharding(t.to("spmd"), mesh, ("data", *(None,) * (t.dim() - 1))) for t in (x, y)
    )

    def step():
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ours, with_pipeline = sent_in_two(step)
    torch.testing.assert_close(ours, losses)
    [shift] = (by_hand - with_pipeline).elements()
    assert shift[0] == "exchange" and by_hand[shift] == 5 + 1 + 5
    assert not with_pipeline - by_hand


def test_errors():
    mesh, four = spmd.make_mesh((4,), ("stage",)), [Matrix(4).to("spmd") for _ in range(4)]
    blocks = spmd.nn.pipeline(four, mesh, microbatches=3)
    for make, error, message in (
        (
            lambda: spmd.nn.pipeline(four, mesh, microbatches=3, schedule="zero"),
            ValueError,
            "schedule must be 'gpipe', 'circular' or '1f1b'; got 'zero'",
        ),
        (
            lambda: spmd.nn.pipeline(four[:3], mesh, microbatches=3),
            ValueError,
            "3 layers cannot be divided among the 4 stages along axis 'stage'",
        ),
        (
            lambda: spmd.nn.pipeline(four, mesh, microbatches=3, schedule="circular"),
            ValueError,
            "needs at least as many micro-batches as the 4 stages along axis 'stage'.*got 3",
        ),
        (
            lambda: spmd.nn.pipeline([*four[:3], Matrix(5).to("spmd")], mesh, microbatches=3),
            ValueError,
            r"weight is torch.float32 \(4, 4\) in layer 0 and torch.float32 \(5, 5\) in layer 3",
        ),
        (
            lambda: spmd.nn.pipeline([*four[:3], nn.Linear(4, 4).to("spmd")], mesh, microbatches=3),
            ValueError,
            "layer 0 is a Matrix, layer 3 a Linear",
        ),
        (
            lambda: spmd.nn.pipeline(
                [nn.BatchNorm1d(4).to("spmd") for _ in range(4)], mesh, microbatches=3
            ),
            ValueError,
            "layer 0 has running statistics in 'itself'",
        ),
        (
            lambda: spmd.nn.pipeline([Matrix(4)] * 4, mesh, microbatches=3),
            ValueError,
            "layer 0: weight: the tensor of shape .* is on 'cpu'",
        ),
        (
            lambda: blocks(torch.ones(4, 4, device="spmd")),
            ValueError,
            "first dimension is the batch, a multiple of 3 micro-batches; got tensor of shape",
        ),
    ):
        with pytest.raises(error, match=message):
            make()
