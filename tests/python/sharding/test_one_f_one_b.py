# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedule "1f1b": losses and gradients of the same layers one after the other, what
it sends, what it keeps, and its bubble."""

import copy
import re
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from micro_steps import end_micro_steps
from pipeline_layers import Layer, Matrix
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

pytestmark = pytest.mark.modes("coalesced", "verified")


@pytest.fixture
def micro_steps():
    """For tests with several passes to a step: ends them behind the test."""
    yield
    end_micro_steps()


class Head(nn.Module):
    """What is not equal to the other layers: the last norm, a projection and the mean loss."""

    def __init__(self, width=6, classes=5):
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, y, targets):
        return F.cross_entropy(self.out(self.norm(y)).flatten(0, -2), targets.flatten())


def mean_square(y):
    return y.square().mean()


def model(count, seed=0):
    torch.manual_seed(seed)
    return nn.ModuleList([Layer() for _ in range(count)]).double(), Head().double()


def stacked(layers, name, stages=4):
    grads = [dict(layer.named_parameters())[name].grad for layer in layers]
    return torch.stack(grads).unflatten(0, (stages, -1))


@pytest.mark.parametrize("layers, microbatches", [(4, 6), (8, 12), (8, 3), (4, 1), (4, 60)])
def test_losses_and_gradients_are_those_of_the_layers_in_a_row(layers, microbatches):
    """Of the input, the layers and the head, times whatever the loss is multiplied by. Sixty
    micro-batches are several programs."""
    mesh, (plain, head) = spmd.make_mesh((4,), ("stage",)), model(layers)
    x, targets = torch.randn(60, 3, 6, dtype=torch.float64), torch.randint(5, (60, 3))
    ours, our_head = copy.deepcopy(plain).to("spmd"), copy.deepcopy(head).to("spmd")
    their_x, our_x = x.clone().requires_grad_(), x.to("spmd").requires_grad_()
    expected = head(nn.Sequential(*plain)(their_x), targets)
    (expected * -2.5).backward()
    blocks = spmd.nn.pipeline(ours, mesh, microbatches=microbatches, schedule="1f1b", loss=our_head)
    loss = blocks(our_x, targets=targets.to("spmd"))
    (loss * -2.5).backward()
    torch.testing.assert_close(loss.detach().cpu(), expected.detach())
    torch.testing.assert_close(our_x.grad.cpu(), their_x.grad)
    for name, parameter in blocks.layers.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), stacked(plain, name))
    for theirs, p in zip(head.parameters(), our_head.parameters()):
        torch.testing.assert_close(p.grad.cpu(), theirs.grad)
    with torch.no_grad():
        only_forward = blocks(our_x, targets=targets.to("spmd"))
        torch.testing.assert_close(only_forward.cpu(), expected.detach())
        results = blocks.results(our_x).cpu()
    torch.testing.assert_close(results, nn.Sequential(*plain)(x).detach())


def test_one_stage_and_two_axes():
    """A mesh with one stage is gradient accumulation; with data and model sharded, too."""
    x, targets = torch.randn(8, 2, 6, dtype=torch.float64), torch.randint(5, (8, 2))
    for shape in ((1, 2), (2, 2)):
        mesh, (plain, head) = spmd.make_mesh(shape, ("stage", "data")), model(2)
        specs = P("data", None, None), P("data", None)
        ours = [spmd.mark_sharding(t.to("spmd"), mesh, s) for t, s in zip((x, targets), specs)]
        layers, our_head = copy.deepcopy(plain).to("spmd"), copy.deepcopy(head).to("spmd")
        blocks = spmd.nn.pipeline(layers, mesh, microbatches=4, schedule="1f1b", loss=our_head)
        loss = blocks(ours[0], targets=ours[1])
        loss.backward()
        expected = head(nn.Sequential(*plain)(x), targets)
        expected.backward()
        torch.testing.assert_close(loss.detach().cpu(), expected.detach())
        torch.testing.assert_close(
            blocks.layers.up.weight.grad.cpu(), stacked(plain, "up.weight", shape[0])
        )
        torch.testing.assert_close(our_head.out.weight.grad.cpu(), head.out.weight.grad)


def test_trees_arguments_and_what_is_read_from_outside():
    """An embedding in the first stage, a mask that passes with the activations, a scale that is an
    argument, and a loss that is a function: of a head that shares the embedding's weight, and of a
    tensor that is computed outside. All have gradients; what is frozen has none."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

        def forward(self, state, scale):
            x, mask = state["x"], state["mask"]
            more = self.frozen(self.linear(x)).sin()
            return {"x": x + scale.exp() * torch.where(mask, more, 0), "mask": mask}

    torch.manual_seed(0)
    mesh, layers = spmd.make_mesh((2,), ("stage",)), nn.ModuleList([Masked() for _ in range(4)])
    state = nn.ParameterDict(
        {"words": torch.randn(7, 4), "scale": torch.zeros(()), "log": torch.zeros(4)}
    )
    plain = nn.ModuleList([layers, state]).double()
    tokens, targets, mask = (
        torch.randint(7, (6, 3)),
        torch.randint(7, (6, 3)),
        torch.rand(6, 3) < 0.5,
    )

    def run(own, to, pipelined):
        own_layers, own_state = own
        temperature = own_state["log"].exp()

        def first(x):
            return {"x": F.embedding(x["tokens"], own_state["words"]), "mask": x["mask"][..., None]}

        def loss(y, pair):
            logits = (y["x"] * temperature) @ own_state["words"].T
            return F.cross_entropy(logits.flatten(0, 1), pair[0].flatten()) + pair[1].mean()

        x, pair = {"tokens": to(tokens), "mask": to(mask)}, (to(targets), to(mask).double())
        if pipelined:
            blocks = spmd.nn.pipeline(
                own_layers, mesh, microbatches=3, schedule="1f1b", loss=loss, first=first
            )
            value = blocks(x, own_state["scale"], targets=pair)
            parameters = dict(blocks.layers.named_parameters())
        else:
            y = first(x)
            for layer in own_layers:
                y = layer(y, own_state["scale"])
            value, parameters = loss(y, pair), {}
        value.backward()
        assert all((p.grad is None) == ("frozen" in n) for n, p in parameters.items())
        weight = (
            parameters["linear.weight"].grad.cpu()
            if pipelined
            else stacked(own_layers, "linear.weight", 2)
        )
        return [value.detach().cpu(), weight, *(p.grad.cpu() for p in own_state.values())]

    ours = run(copy.deepcopy(plain).to("spmd"), lambda t: t.to("spmd"), True)
    torch.testing.assert_close(ours, run(plain, lambda t: t, False))


def test_dropout_draws_the_same_numbers_again():
    """The result is linear in each weight, so its gradient is the loss over the weight, if the
    backward pass drops what the forward pass did."""
    mesh = spmd.make_mesh((4,), ("stage",))

    class Scaled(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0 + number], dtype=torch.float64))

        def forward(self, x):
            return F.dropout(x, 0.5) * self.weight * F.dropout(x.abs() + 1, 0.1).sign()

    torch.manual_seed(0)
    layers = [Scaled(number).to("spmd") for number in range(8)]
    blocks = spmd.nn.pipeline(
        layers, mesh, microbatches=6, schedule="1f1b", loss=lambda y: y.mean()
    )
    x = torch.rand(60, 2000, dtype=torch.float64).to("spmd")
    losses = []
    for _ in range(2):
        loss = blocks(x)
        blocks.zero_grad()
        loss.backward()
        losses.append(loss.item())
        expected = loss.detach().cpu() / blocks.layers.weight.detach().cpu()
        torch.testing.assert_close(blocks.layers.weight.grad.cpu(), expected)
    assert losses[0] != losses[1] and losses[0] != 0


def test_gradients_with_dropout_are_those_of_the_loss():
    """A transformer's layer that drops weights of attention and activations: from one seed, the
    loss at two points near each other differs by the gradient."""
    from common.gpt import Block, GPTConfig

    torch.manual_seed(0)
    mesh, config = spmd.make_mesh((2,), ("stage",)), GPTConfig(width=8, heads=2, dropout=0.3)
    layers = [Block(config).double().to("spmd") for _ in range(4)]
    blocks = spmd.nn.pipeline(layers, mesh, microbatches=3, schedule="1f1b", loss=mean_square)
    x, parameters = torch.randn(6, 5, 8).double().to("spmd"), list(blocks.parameters())
    away = [torch.randn(p.shape).to(p) for p in parameters]

    def loss(step):
        torch.manual_seed(1)
        with torch.no_grad():
            for p, direction in zip(parameters, away):
                p += step * direction
        return blocks(x)

    loss(0).backward()
    expected = sum((p.grad * d).sum() for p, d in zip(parameters, away)).item()
    difference = loss(1e-5).item() - loss(-2e-5).item()
    assert difference / 2e-5 == pytest.approx(expected, rel=1e-6)
    assert loss(1e-5).item() != blocks(x).item()


def test_a_scaler_keeps_small_gradients_of_float16():
    """Gradients of 1e-8 are zero in float16. A scale that is given to the call is not in them, and
    one that comes from outside is."""
    mesh = spmd.make_mesh((2,), ("stage",))
    layers = [nn.Linear(4, 4, bias=False).to("spmd") for _ in range(2)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    blocks = spmd.nn.pipeline(
        layers, mesh, microbatches=2, schedule="1f1b", loss=lambda y: y.float().sum() * 1e-8
    )
    x, found = torch.ones(4, 4, device="spmd"), []
    for scale in (1.0, 2.0**16, torch.tensor(2.0**16, device="spmd")):
        with torch.autocast("spmd", torch.float16):
            loss = blocks(x, scale=scale)
        (grad,) = torch.autograd.grad(loss * 2, list(blocks.parameters()))
        found.append(grad.cpu())
    assert torch.equal(found[0], torch.zeros(2, 1, 4, 4))
    for grad in found[1:]:
        torch.testing.assert_close(grad, torch.full((2, 1, 4, 4), 4e-8), rtol=1e-3, atol=0)


def test_autocast_holds_for_what_runs_again(micro_steps):
    """Products are bfloat16 in both passes; the gradients are those of the micro-batches one after
    the other under autocast."""
    mesh, width = spmd.make_mesh((2,), ("stage",)), 16
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(4)])
    layers, head = layers.to("spmd"), nn.Linear(width, width).to("spmd")
    x = torch.randn(8, width, device="spmd")

    def loss_of(y):
        return head(y).float().square().mean()

    blocks = spmd.nn.pipeline(layers, mesh, microbatches=4, schedule="1f1b", loss=loss_of)
    spmd.sync(wait=True)
    with torch.autocast("spmd", torch.bfloat16):
        loss = blocks(x)
    loss.backward()
    ours = [p.grad for p in (*blocks.layers.parameters(), *head.parameters())]
    spmd.sync(wait=True)
    products = re.findall(r": (\w+)\[.* = call aten::bmm\(", str(spmd.debug.print_program()))
    of_stages = 2 * (5 + 5 + 2 * 5) - 1  # x needs no gradient
    assert products == ["bf16"] * of_stages
    head.zero_grad()
    for m in range(4):
        with torch.autocast("spmd", torch.bfloat16):
            loss = loss_of(nn.Sequential(*layers)(x[m::4]))
        (loss / 4).backward()
    theirs = [stacked(layers, name, 2).cpu() for name, _ in layers[0].named_parameters()]
    theirs += [p.grad for p in head.parameters()]
    for mine, other in zip(ours, theirs):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.cpu(), other.cpu(), rtol=1.6e-2, atol=1e-4)


def of_matrices(layers, width, microbatches):
    """A pipeline of four stages."""
    return spmd.nn.pipeline(
        [Matrix(width).to("spmd") for _ in range(layers)],
        spmd.make_mesh((4,), ("stage",)),
        microbatches=microbatches,
        schedule="1f1b",
        loss=mean_square,
    )


def step_alone(blocks, width):
    """One call of 48 examples and its gradients, as a program of its own."""
    x = torch.randn(48, width, device="spmd", requires_grad=True)
    spmd.sync(wait=True)
    blocks(x).backward()
    spmd.sync(wait=True)


def test_the_bubble_is_that_of_the_theory():
    """Each device does the work of M + S - 1 ticks: forwards, and again with the two products of
    the backward pass. So 1 - bubble of it is the layers' own."""
    width, stages, count = 32, 4, 6
    blocks = of_matrices(8, width, count)
    step_alone(blocks, width)
    rows = [row for row in spmd.debug.timeline("v5e-4") if "mm" in row.op]
    needed = (1 + 1 + 2) * 2 * 48 * width * width * 8 / stages
    assert needed / sum(row.flops for row in rows) == pytest.approx(1 - blocks.bubble)
    assert blocks.bubble == (stages - 1) / (count + stages - 1) and blocks.ticks == 9


def test_each_tick_sends_a_result_down_and_a_gradient_up():
    """And what leaves the last stage, and the gradient that leaves the first one, goes to all."""
    width, count = 32, 6
    blocks = of_matrices(4, width, count)
    step_alone(blocks, width)
    sent = Counter((r.kind, r.bytes) for r in spmd.debug.collectives() if r.bytes > 64)
    micro = 48 // count * width * 4
    assert sent.pop(("exchange", micro)) == 2 * (count + 2)
    # All are of the one kind; the compiler may merge some.
    assert {kind for kind, _ in sent} == {"all_reduce"}
    assert sum(size * times for (_, size), times in sent.items()) == 2 * count * micro


def test_a_call_is_one_program_among_micro_steps(micro_steps):
    """Where gradients of several calls add up, each pass is a program; what a schedule
    differentiates inside of it is not."""
    width, count = 32, 6
    blocks = of_matrices(4, width, count)
    x, once = torch.randn(48, width, device="spmd"), None
    for _ in range(3):
        blocks(x).backward()
        spmd.sync(wait=True)
        sent = [r.kind for r in spmd.debug.collectives() if r.bytes > 64]
        assert sent.count("exchange") == 2 * (count + 2)
        once = blocks.layers.weight.grad.cpu() if once is None else once
    torch.testing.assert_close(blocks.layers.weight.grad.cpu(), 3 * once)


def peak(schedule, microbatches, checkpoint=False, width=32, examples=256):
    """What a step holds at most beyond its inputs, in micro-batches of activations."""
    mesh = spmd.make_mesh((4,), ("stage",))
    embedding = nn.Embedding(50, width).to("spmd")
    layers = [Layer(width).to("spmd") for _ in range(8)]
    tokens = torch.randint(50, (examples * microbatches,)).to("spmd")
    spmd.sync(wait=True)
    if schedule == "1f1b":
        blocks = spmd.nn.pipeline(
            layers,
            mesh,
            microbatches=microbatches,
            schedule=schedule,
            first=embedding,
            loss=mean_square,
        )
        loss = blocks(tokens)
    else:
        blocks = spmd.nn.pipeline(
            layers, mesh, microbatches=microbatches, schedule=schedule, checkpoint=checkpoint
        )
        loss = mean_square(blocks(embedding(tokens)))
    loss.backward()
    spmd.sync(wait=True)
    memory = spmd.debug.memory()
    return (memory.peak_bytes - memory.input_bytes) / (examples * width * 4)


def test_what_is_kept_does_not_depend_on_the_number_of_microbatches():
    kept = {
        (schedule, checkpoint): [peak(schedule, count, checkpoint) for count in (4, 16)]
        for schedule, checkpoint in (("gpipe", False), ("gpipe", True), ("1f1b", False))
    }
    few, many = kept["1f1b", False]
    assert many < few + 1 and few < kept["gpipe", True][0]
    for other in (("gpipe", False), ("gpipe", True)):
        assert kept[other][1] > 3 * kept["1f1b", False][1]


@pytest.mark.modes()
def test_the_memory_of_a_machine_does_not_depend_on_the_number_of_microbatches():
    """That of the program which needs most, where a step is several: what they hand on is added."""

    class Model(nn.Module):
        def __init__(self, schedule, count):
            super().__init__()
            first, layers = nn.Embedding(50, 1024), [Layer(1024) for _ in range(8)]
            parts = {"loss": mean_square, "first": first} if schedule == "1f1b" else {}
            self.blocks = spmd.nn.pipeline(
                layers, microbatches=count, schedule=schedule, checkpoint=True, **parts
            )
            self.first = nn.Identity() if parts else first
            self.loss = nn.Identity() if parts else mean_square

        def forward(self, tokens):
            return self.loss(self.blocks(self.first(tokens)))

    def planned(schedule, count):
        (row,) = spmd.plan(
            lambda: Model(schedule, count),
            torch.empty(4096 * count, device="meta", dtype=torch.int64),
            on="v5e-4",
            mesh={"stage": 4},
            batch_spec=(None,),
            optimizer="sgd",
            specs={},
        )
        return row.hbm

    few, many = planned("1f1b", 4), planned("1f1b", 32)
    assert many < 1.5 * few
    assert planned("gpipe", 32) > 4 * many


def test_a_gpt_trains():
    """Embeddings first, blocks in stages, the tied head in the loss, the batch sharded: the losses
    of plain PyTorch."""
    from common.gpt import GPT, GPTConfig

    config = GPTConfig(vocab_size=32, block=8, layers=4, width=16, heads=2, dropout=0.0)
    torch.manual_seed(0)
    plain = GPT(config).double()
    tokens, targets = (torch.randint(32, (8, 8)) for _ in range(2))

    def losses(model, forward):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        result = []
        for _ in range(3):
            loss = forward()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.item())
        return result

    mesh = spmd.make_mesh((2, 2), ("data", "stage"))
    model = copy.deepcopy(plain).to("spmd")

    def embed(tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return model.dropout(model.tokens(tokens) + model.positions(positions))

    def loss(y, targets):
        return F.cross_entropy(model.head(model.norm(y)).flatten(0, 1), targets.flatten())

    blocks = model.blocks = spmd.nn.pipeline(
        model.blocks, mesh, microbatches=2, schedule="1f1b", first=embed, loss=loss
    )
    x, y = (spmd.mark_sharding(t.to("spmd"), mesh, P("data", None)) for t in (tokens, targets))
    ours = losses(model, lambda: blocks(x, targets=y))
    torch.testing.assert_close(ours, losses(plain, lambda: plain(tokens, targets)))


def test_the_conformer_trains(monkeypatch):
    """The losses of the Conformer that is unrolled by hand."""
    from benchmarks.workloads import conformer

    sizes = {"BLOCKS": 1, "WIDTH": 16, "HIDDEN": 32, "KERNEL": 5, "VOCAB": 8, "LENGTH": 12}
    for name, value in {**sizes, "MICRO_BATCHES": 3}.items():
        monkeypatch.setattr(conformer, name, value)
    torch.manual_seed(0)
    workload = conformer.build(True)
    state = {name: p.detach().cpu() for name, p in workload.model.named_parameters()}
    # Example e of micro-batch m is number e * M + m.
    x, y = (workload.inputs[n].cpu().transpose(0, 1).flatten(0, 1) for n in ("inputs", "targets"))
    expected = [workload.step().item() for _ in range(3)]
    monkeypatch.setattr(conformer, "STAGES", 1)

    class Stage(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.stages = nn.Sequential(conformer.block())
            self.load_state_dict({n: p[number][None] for n, p in state.items() if "head" not in n})

        def forward(self, x):
            return self.stages(x[None])[0]

    mesh, head = spmd.make_mesh((4, 2), ("stage", "data")), nn.Linear(16, 8, bias=False).to("spmd")
    head.load_state_dict({"weight": state["head.weight"]})
    model = spmd.nn.pipeline(
        [Stage(i).to("spmd") for i in range(4)],
        mesh,
        microbatches=3,
        schedule="1f1b",
        loss=lambda y, targets: F.cross_entropy(head(y).flatten(0, -2), targets.flatten()),
    )
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    x, y = (
        spmd.mark_sharding(t.to("spmd"), mesh, ("data", *(None,) * (t.dim() - 1))) for t in (x, y)
    )
    losses = []
    for _ in range(3):
        loss = model(x, targets=y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.testing.assert_close(losses, expected)


def test_errors():
    mesh, layers = spmd.make_mesh((2,), ("stage",)), [Matrix(4).to("spmd") for _ in range(2)]
    x = torch.ones(6, 4, device="spmd")

    def pipe(loss, schedule="1f1b", **kwargs):
        return spmd.nn.pipeline(
            layers, mesh, microbatches=3, schedule=schedule, loss=loss, **kwargs
        )

    def second():
        blocks = pipe(mean_square)
        torch.autograd.grad(blocks(x), list(blocks.parameters()), create_graph=True)

    hooked = torch.ones(4, device="spmd", requires_grad=True)
    hooked.register_hook(lambda g: 2 * g)

    class OnHost(Matrix):
        def forward(self, x):
            return super().forward(x) * torch.rand(()).to(x.device)

    def on_host():
        random = [OnHost(4).to("spmd") for _ in range(2)]
        spmd.nn.pipeline(random, mesh, microbatches=3, schedule="1f1b", loss=mean_square)(x)

    for make, error, message in (
        (
            lambda: pipe(None),
            ValueError,
            "schedule '1f1b' runs micro-batches backwards while later .* so the loss is a part",
        ),
        (lambda: pipe(3), TypeError, "loss must be a module or a function; got 3"),
        (
            lambda: pipe(mean_square, "gpipe"),
            ValueError,
            "loss is for schedule '1f1b', .* with 'gpipe' call it outside",
        ),
        (
            lambda: pipe(None, "circular", first=nn.Identity()),
            ValueError,
            "first is for schedule '1f1b', .* with 'circular' call it outside",
        ),
        (
            lambda: pipe(None, "gpipe")(x, targets=x),
            ValueError,
            "targets are for the loss of schedule '1f1b'; with 'gpipe'",
        ),
        (
            lambda: pipe(lambda y: y.mean(1))(x),
            ValueError,
            r"mean loss of a micro-batch, a floating-point tensor of shape \(\); got tensor of "
            r"shape \(2,\)",
        ),
        (
            lambda: pipe(lambda y: x.mean())(x),
            ValueError,
            "loss must depend on what the layers return",
        ),
        (
            lambda: pipe(mean_square, first=lambda x: "text")(x),
            ValueError,
            "first must return what a layer takes, a tensor or a tree of tensors; got 'text'",
        ),
        (
            lambda: pipe(lambda y, t: y.mean())(x, targets=x[:4]),
            ValueError,
            "targets must be a tensor, or a tree of tensors, .* a multiple of 3 micro-batches",
        ),
        (lambda: pipe(lambda y: (y * hooked).mean())(x), ValueError, r"with hooks \(register_hook"),
        (second, RuntimeError, "schedule '1f1b' .* second derivatives .* use schedule='gpipe'"),
        (on_host, RuntimeError, "random numbers that they draw on the host would be others"),
    ):
        with pytest.raises(error, match=message):
            make()
