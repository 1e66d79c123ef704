# SPDX-License-Identifier: Apache-2.0
"""What optimizers get back: every kind of state in the type that was saved, each parameter its
own."""

import re

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool),
    *(torch.complex64, torch.complex128),
)
FORMATS = ("spmd", "dcp")


class Odd(torch.optim.Optimizer):
    """An optimizer with state of every kind."""

    def __init__(self, params, seed=None):
        super().__init__(params, {"lr": 0.1, "betas": (0.9, 0.99), "name": None})
        for p in [p for group in self.param_groups for p in group["params"] if seed is not None]:
            self.state[p] = self._state_of(p, seed)

    def _state_of(self, p, seed):
        drawn = torch.Generator().manual_seed(seed)

        def draw(shape, dtype):
            return (torch.randn(shape, generator=drawn) * 50).abs().to(dtype)

        def like(dtype):
            made = draw(p.shape, dtype).to(p.device)
            if p.device.type == "spmd":
                sharding = spmd.sharding_of(p)
                spmd.mark_sharding(made, sharding.mesh, sharding.spec)
            return made

        return {
            **{f"like_{dtype}": like(dtype) for dtype in DTYPES},
            **{f"rows_{dtype}": draw((p.shape[0], 3), dtype).to(p.device) for dtype in DTYPES},
            **{f"host_{dtype}": draw((), dtype) for dtype in DTYPES},
            "step": torch.tensor(float(seed)), "large": torch.tensor(2**53 + seed).to(p.device),
            "count": seed, "rate": 0.5 * seed, "flag": seed > 1, "text": f"at {seed}",
            "none": None, "complex": 1 + 2j * seed,
            "list": [like(torch.float64), draw((2,), torch.int64).to(p.device), seed, None, "x"],
            "tuple": (seed, "y"),
            "nested": {"a": {"b": like(torch.int64), "c": [1.5, draw((2,), torch.float16)]}},
        }  # fmt: skip


def leaves(value, path=""):
    yield path, type(value)
    if isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, torch.Tensor):
        yield path, (value.dtype, value.device.type, value.cpu().tolist())
    else:
        yield path, value


def two_layers(mesh=None, spec=(None, None), order="ab", dtype=torch.bfloat16, sizes=(8, 8)):
    torch.manual_seed(0)
    layers = {name: nn.Linear(8, n, bias=False, dtype=dtype) for name, n in zip("ab", sizes)}
    net = nn.ModuleDict({name: layers[name] for name in order}).to("spmd")
    for name in order if mesh else ():
        spmd.mark_sharding(net[name].weight, mesh, spec)
    return net


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", FORMATS)
def test_every_kind_of_state_keeps_its_type(tmp_path, form, dtype, stepped):
    net = two_layers(spmd.make_mesh((4,), ("x",)), ("x", None), dtype=dtype)
    optimizer = Odd(net.parameters(), seed=1)
    spmd.save(tmp_path, {"net": net, "o": optimizer}, format=form)
    target = two_layers(spmd.make_mesh((2,), ("y",)), (None, "y"), "ba", dtype)
    other = Odd(target.parameters(), seed=2 if stepped else None)
    spmd.load(tmp_path, {"net": target, "o": other})
    for name in "ab":
        state = other.state[target[name].weight]
        assert dict(leaves(state)) == dict(leaves(optimizer.state[net[name].weight]))
        for kept in (state["like_torch.float64"], state["list"][0], state["nested"]["a"]["b"]):
            assert spmd.sharding_of(kept).spec == spmd.P(None, "y")


class WithMasters(torch.optim.Optimizer):
    """Adam of a kind: float32 masters and moments of bfloat16 weights."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(master=p.float(), m=torch.zeros_like(p, dtype=torch.float32))
                state["updates"] = torch.zeros_like(p, dtype=torch.int8)
            state["m"].lerp_(p.grad.float(), 0.1)
            state["master"].sub_(state["m"], alpha=0.01)
            state["updates"] += 1
            p.copy_(state["master"])


@pytest.mark.parametrize("form", FORMATS)
def test_a_run_with_masters_goes_on_where_it_was(tmp_path, form):
    mesh = spmd.make_mesh((4,), ("x",))

    def steps(net, optimizer, seeds):
        for seed in seeds:
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
            net["b"](net["a"](x.to("spmd"))).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    nets = [two_layers(mesh, ("x", None)) for _ in range(2)]
    first, second = (WithMasters(net.parameters()) for net in nets)
    steps(nets[0], first, range(3))
    spmd.save(tmp_path, {"net": nets[0], "o": first}, format=form)
    steps(nets[0], first, range(3, 6))
    steps(nets[1], second, range(9, 10))
    spmd.load(tmp_path, {"net": nets[1], "o": second})
    steps(nets[1], second, range(3, 6))
    for p, q in zip(nets[0].parameters(), nets[1].parameters()):
        assert torch.equal(p.cpu(), q.cpu())
        assert torch.equal(first.state[p]["master"].cpu(), second.state[q]["master"].cpu())


def stepped(net, kind=torch.optim.AdamW, params=None, **options):
    optimizer = kind(net.parameters() if params is None else params, **options)
    for scale, name in enumerate(sorted(net), 1):
        (scale * net[name].weight.float().square().sum()).backward()
    optimizer.step(lambda: torch.zeros(())) if kind is torch.optim.LBFGS else optimizer.step()
    optimizer.zero_grad()
    return optimizer


def moments(net, optimizer, field="exp_avg"):
    return {name: optimizer.state[net[name].weight][field].cpu() for name in net}


def same_moments(net, optimizer, other_net, other):
    expected, found = moments(net, optimizer), moments(other_net, other)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(*expected.values()) or len(expected) == 1


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sizes", [(8, 8), (8, 4)])
@pytest.mark.parametrize(
    "named", ["module", "state_dict", "parameters", "named_parameters", "wrapped", "in_a_list"]
)
def test_parameters_are_found_by_their_names(tmp_path, form, sizes, named):
    def tree(net, optimizer, saving):
        if named == "module":
            return {"net": net, "o": optimizer}
        if named == "state_dict":
            return {"net": net.state_dict(), "o": optimizer}
        if named == "parameters":
            return {**dict(net.named_parameters()), "o": optimizer}
        if named == "wrapped":
            return {"net": net if saving else nn.ModuleDict({"module": net}), "o": optimizer}
        if named == "in_a_list":
            return {"nets": [net], "o": optimizer}
        return {"o": optimizer}

    net = two_layers(sizes=sizes)
    given = list(net.named_parameters()) if named == "named_parameters" else None
    optimizer = stepped(net, params=given)
    spmd.save(tmp_path, tree(net, optimizer, True), format=form)
    target = two_layers(order="ba", sizes=sizes)
    given = list(target.named_parameters()) if named == "named_parameters" else None
    other = torch.optim.AdamW(given or target.parameters())
    spmd.load(tmp_path, tree(target, other, False))
    same_moments(net, optimizer, target, other)
    for p in target.parameters():
        p.grad = torch.ones_like(p)
    other.step()
    if named == "named_parameters":
        assert other.param_groups[0]["param_names"] == ["b.weight", "a.weight"]


@pytest.mark.parametrize("form", FORMATS)
def test_modules_with_equal_names_and_an_optimizer_of_both(tmp_path, form):
    def parts():
        return {"one": two_layers(), "two": two_layers()}

    nets = parts()
    optimizer = torch.optim.AdamW([*nets["one"].parameters(), *nets["two"].parameters()])
    for scale, p in enumerate(optimizer.param_groups[0]["params"], 1):
        p.grad = torch.full_like(p, scale)
    optimizer.step()
    spmd.save(tmp_path, {**nets, "o": optimizer}, format=form)
    targets = parts()
    other = torch.optim.AdamW([*targets["two"].parameters(), *targets["one"].parameters()])
    spmd.load(tmp_path, {**targets, "o": other})
    for name in nets:
        same_moments(nets[name], optimizer, targets[name], other)


@pytest.mark.parametrize("form", FORMATS)
def test_what_has_no_name_is_found_by_its_place_among_the_others(tmp_path, form):
    def made(order):
        net, scales = two_layers(order=order), [nn.Parameter(torch.ones(3, device="spmd"))]
        scales.append(nn.Parameter(torch.ones(3, device="spmd")))
        return net, scales, torch.optim.AdamW([scales[0], *net.parameters(), scales[1]])

    net, scales, optimizer = made("ab")
    for scale, p in enumerate(optimizer.param_groups[0]["params"], 1):
        p.grad = torch.full_like(p, scale)
    optimizer.step()
    spmd.save(tmp_path, {"net": net, "o": optimizer}, format=form)
    target, others, other = made("ba")
    spmd.load(tmp_path, {"net": target, "o": other})
    same_moments(net, optimizer, target, other)
    for mine, theirs in zip(scales, others):
        moment = other.state[theirs]["exp_avg"].cpu()
        assert torch.equal(moment, optimizer.state[mine]["exp_avg"].cpu())


@pytest.mark.parametrize("form", FORMATS)
def test_groups_have_the_options_of_their_parameters(tmp_path, form):
    def grouped(net, names, rates):
        groups = [{"params": [net[n].weight], "lr": rate} for n, rate in zip(names, rates)]
        return stepped(net, params=groups)

    net = two_layers()
    optimizer = grouped(net, "ab", (0.25, 0.5))
    spmd.save(tmp_path, {"net": net, "o": optimizer}, format=form)
    target = two_layers()
    other = grouped(target, "ba", (1.0, 1.0))
    spmd.load(tmp_path, {"net": target, "o": other})
    assert [group["lr"] for group in other.param_groups] == [0.5, 0.25]
    same_moments(net, optimizer, target, other)
    one = torch.optim.AdamW(target.parameters())
    said = "group 0 of 'o' has parameters of 2 groups that were saved, whose options differ"
    with pytest.raises(ValueError, match=said):
        spmd.load(tmp_path, {"net": target, "o": one})
    assert not one.state


@pytest.mark.parametrize("form", FORMATS)
def test_what_does_not_fit_an_optimizer_is_named(tmp_path, form):
    net = two_layers(sizes=(8, 4))
    spmd.save(tmp_path, {"net": net, "o": stepped(net)}, format=form)
    target = two_layers(sizes=(8, 4))
    more = nn.ModuleDict({**target, "c": nn.Linear(2, 2, bias=False).to("spmd")})
    swapped = [target["b"].weight, target["a"].weight]
    cases = (
        ({"o": torch.optim.AdamW(swapped)}, "parameter 0 of 'o' has shape (4, 8), and (8, 8) was"),
        ({"net": more, "o": torch.optim.AdamW(more.parameters())},
         "'o' was saved with 2 parameters, and the optimizer has 3; 'c.weight' is not among"),
        ({"net": target, "o": torch.optim.AdamW([target["a"].weight])},
         "'o' was saved with 2 parameters, and the optimizer has 1"),
        ({"net": target, "o": stepped(target, torch.optim.SGD, momentum=0.9, lr=0.1)},
         "'o.state.0' has momentum_buffer, and exp_avg, exp_avg_sq was saved"),
        ({"net": target, "o": torch.optim.AdamW(target.parameters(), lr=torch.tensor(0.1))},
         "'o.lr' is a tensor, and another value was saved"),
    )  # fmt: skip
    for tree, said in cases:
        before = {p: dict(state) for p, state in tree["o"].state.items()}
        with pytest.raises(ValueError, match=re.escape(said)):
            spmd.load(tmp_path, tree, strict=False)
        assert {p: dict(state) for p, state in tree["o"].state.items()}.keys() == before.keys()


def test_state_that_is_there_has_the_type_and_the_shape_that_was_saved(tmp_path):
    net = two_layers()
    optimizer = stepped(net)
    spmd.save(tmp_path, {"net": net, "o": optimizer})
    target = two_layers()
    for field, dtype, shape, said in (
        ("exp_avg", torch.float32, (8, 8), "'o.state.0.exp_avg' is of torch.float32, and torch.bf"),
        ("exp_avg", torch.bfloat16, (8, 4), "'o.state.0.exp_avg' has shape (8, 4), and (8, 8) was"),
    ):
        other = stepped(target)
        other.state[target["a"].weight][field] = torch.zeros(shape, dtype=dtype).to("spmd")
        with pytest.raises(ValueError, match=re.escape(said.replace("bf", "bfloat16"))):
            spmd.load(tmp_path, {"net": target, "o": other})
    for value, said in (
        (0.5, "is 0.5 (float), and a tensor was saved"),
        (None, "is None (NoneType), and a tensor was saved"),
        ("x", "is 'x' (str), and a tensor was saved"),
    ):
        other = stepped(target)
        other.state[target["a"].weight]["exp_avg"] = value
        with pytest.raises(ValueError, match=re.escape(f"'o.state.0.exp_avg' {said}")):
            spmd.load(tmp_path, {"net": target, "o": other})
    wide = stepped(target)
    state = wide.state[target["a"].weight]
    state["exp_avg"] = torch.zeros(8, 8, device="spmd")
    spmd.load(tmp_path, {"net": target, "o": wide}, cast=True)
    expected = optimizer.state[net["a"].weight]["exp_avg"]
    assert torch.equal(state["exp_avg"].cpu(), expected.cpu().float())


def test_cast_is_for_state_of_the_type_of_its_parameter(tmp_path):
    net = two_layers(dtype=torch.float32)
    optimizer = Odd(net.parameters(), seed=1)
    spmd.save(tmp_path, {"net": net, "o": optimizer})
    target = two_layers(dtype=torch.bfloat16)
    other = Odd(target.parameters())
    spmd.load(tmp_path, {"net": target, "o": other}, cast=True)
    state = other.state[target["a"].weight]
    types = {dtype: state[f"like_{dtype}"].dtype for dtype in DTYPES}
    assert types == {d: torch.bfloat16 if d is torch.float32 else d for d in DTYPES}


def test_vectors_of_all_parameters_keep_their_order(tmp_path):
    net = two_layers(dtype=torch.float32)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1)
    optimizer.step(lambda: net["a"].weight.sum())
    spmd.save(tmp_path, {"net": net, "o": optimizer})
    target = two_layers(order="ba", dtype=torch.float32)
    with pytest.raises(ValueError, match="'o' has vectors of all parameters, which were saved in"):
        spmd.load(tmp_path, {"net": target, "o": torch.optim.LBFGS(target.parameters())})
    again = two_layers(dtype=torch.float32)
    other = torch.optim.LBFGS(again.parameters())
    spmd.load(tmp_path, {"net": again, "o": other})
    [mine], [theirs] = optimizer.state.values(), other.state.values()
    assert torch.equal(mine["d"].cpu(), theirs["d"].cpu())


class Odder(torch.optim.SGD):
    """State that belongs to no parameter, a state_dict with more in it, and hooks."""

    def state_dict(self):
        return {**super().state_dict(), "extra": torch.ones(2, dtype=torch.float64)}

    def load_state_dict(self, state_dict):
        self.extra = state_dict["extra"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "extra"})


@pytest.mark.parametrize("form", FORMATS)
def test_what_belongs_to_no_parameter_is_kept(tmp_path, form):
    net = two_layers()
    optimizer = stepped(net, Odder, momentum=0.9)
    optimizer.state["seen"] = {"tokens": 7}
    spmd.save(tmp_path, {"net": net, "o": optimizer}, format=form)
    target = two_layers(order="ba")
    other = Odder(target.parameters(), lr=1.0)
    seen = []
    other.register_load_state_dict_pre_hook(lambda _, state: seen.append(set(state["state"])))
    other.register_load_state_dict_post_hook(lambda optimizer: seen.append(len(optimizer.state)))
    spmd.load(tmp_path, {"net": target, "o": other})
    assert other.state["seen"] == {"tokens": 7} and other.extra.dtype == torch.float64
    assert seen == [{0, 1, "seen"}, 3]
    expected = moments(net, optimizer, "momentum_buffer")
    found = moments(target, other, "momentum_buffer")
    assert all(torch.equal(found[name], expected[name]) for name in "ab")


class Wrapping(torch.optim.Optimizer):
    """As accelerate's: an optimizer that is made without one's fields, and asks another."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)


@pytest.mark.parametrize("form", FORMATS)
def test_an_optimizer_that_wraps_another(tmp_path, form):
    net = two_layers()
    inner = Odd(net.parameters(), seed=1)
    spmd.save(tmp_path, {"net": net, "o": Wrapping(inner)}, format=form)
    target = two_layers(order="ba")
    other = Odd(target.parameters())
    spmd.load(tmp_path, {"net": target, "o": Wrapping(other)})
    for name in "ab":
        state = other.state[target[name].weight]
        assert dict(leaves(state)) == dict(leaves(inner.state[net[name].weight]))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.Adafactor])
def test_parameters_that_had_no_gradient_when_state_was_saved(tmp_path, form, kind):
    """They get their state next to others whose state was loaded."""

    def run(device, resume):
        torch.manual_seed(0)
        net = nn.ModuleDict({name: nn.Linear(4, 4) for name in "ab"}).to(device)
        optimizer = kind(net.parameters(), 0.01)
        x = torch.ones(2, 4, device=device)
        for _ in range(2):
            net["a"](x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        other = kind(net.parameters(), 0.01)
        resume(net, optimizer, other)
        for _ in range(2):
            net["b"](net["a"](x)).square().mean().backward()
            other.step()
        return [p.detach().cpu() for p in net.parameters()]

    def by_file(net, optimizer, other):
        spmd.save(tmp_path, {"net": net, "o": optimizer}, format=form)
        spmd.load(tmp_path, {"net": net, "o": other})

    def by_pytorch(net, optimizer, other):
        other.load_state_dict(optimizer.state_dict())

    expected = run("cpu", by_pytorch)
    for found in (run("spmd", by_file), run("spmd", by_pytorch)):
        for mine, theirs in zip(found, expected):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("form", FORMATS)
def test_a_tensor_is_no_number_text_or_none(tmp_path, form):
    w = torch.tensor([3.0, 4.0])
    spmd.save(tmp_path, {"w": w.to("spmd"), "n": 3.0, "deep": {"v": [w.to("spmd")]}}, format=form)
    for target, said in (
        ({"w": 0.0}, "'w' is 0.0 (float), and a tensor was saved"),
        ({"w": True}, "'w' is True (bool), and a tensor was saved"),
        ({"w": "x"}, "'w' is 'x' (str), and a tensor was saved"),
        ({"w": None}, "'w' is None (NoneType), and a tensor was saved"),
        ({"deep": {"v": [None]}}, "'deep.v.0' is None (NoneType), and a tensor was saved"),
        ({"deep": {"v": 1}}, "'deep.v' is 1 (int), and a tensor was saved"),
        ({"deep": None}, "'deep' is None (NoneType), and a tensor was saved"),
        ({"n": torch.zeros(()).to("spmd")}, "'n' is a tensor, and another value was saved"),
        ({"n": torch.Generator()}, "'n' is a generator, and another value was saved"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            spmd.load(tmp_path, target, strict=False)
    assert spmd.load(tmp_path, {"n": None}, strict=False) == {"n": 3.0}
    assert spmd.load(tmp_path, None)["w"].tolist() == [3.0, 4.0]


def test_a_checkpoint_without_names_is_read_by_number(tmp_path):
    """As those of earlier versions and of DCP, which have no names of parameters."""
    net = two_layers()
    optimizer = stepped(net)
    dcp.save({"o": optimizer.state_dict()}, checkpoint_id=tmp_path)
    target = two_layers()
    other = torch.optim.AdamW(target.parameters())
    spmd.load(tmp_path, {"o": other})
    same_moments(net, optimizer, target, other)
