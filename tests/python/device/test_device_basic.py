# SPDX-License-Identifier: Apache-2.0
"""The device, without any mesh: ordinary PyTorch on `spmd` gives what it gives on the CPU."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from processes import run_script
from reported import reported
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_spmd as spmd


def both(fn, *tensors):
    """Results of fn on CPU copies and on device copies of the tensors, both on the host."""
    cpu = fn(*[t.clone() for t in tensors])
    device = fn(*[t.clone().to("spmd") for t in tensors])
    return cpu, device


def assert_same(fn, *tensors):
    cpu, device = both(fn, *tensors)
    torch.testing.assert_close(device.cpu(), cpu)
    assert device.device.type == "spmd"


class Block(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.block = Block()
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 11))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 11),
    )


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(6, 5, batch_first=True)
        self.head = nn.Linear(5, 11)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


MODELS = {
    "mlp": (mlp, lambda: torch.randn(4, 6)),
    "gpt": (Gpt, lambda: torch.randint(0, 11, (4, 5))),
    "cnn": (cnn, lambda: torch.randn(4, 1, 4, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(4, 3, 6)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(4, 3, 6)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw_loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
}


def train(model, inputs, device, make_optimizer, steps=4):
    model = copy.deepcopy(model).to(device)
    optimizer = make_optimizer(model.parameters())
    losses = []
    for x in inputs[:steps]:
        out = model(x.to(device)).reshape(-1, 11)
        target = torch.arange(out.shape[0], device=device) % 11
        loss = F.cross_entropy(out, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_equals_the_cpu(name, optimizer):
    torch.manual_seed(0)
    make, data = MODELS[name]
    # In double precision: adaptive optimizers turn the rounding noise of tiny gradients into steps.
    model, inputs = make().double(), [data() for _ in range(4)]
    inputs = [x.double() if x.is_floating_point() else x for x in inputs]
    losses, state = train(model, inputs, "spmd", OPTIMIZERS[optimizer])
    want_losses, want_state = train(model, inputs, "cpu", OPTIMIZERS[optimizer])
    torch.testing.assert_close(
        torch.tensor(losses), torch.tensor(want_losses), rtol=1e-5, atol=1e-6
    )
    for key, want in want_state.items():
        if "bias" in key:
            continue  # before a norm or a softmax, their gradient is rounding noise
        torch.testing.assert_close(state[key], want, rtol=1e-5, atol=1e-6, msg=key)


def test_a_training_loop_compiles_two_programs():
    model = mlp().to("spmd")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    x = torch.randn(4, 6).to("spmd")
    before = reported()["compiles"]
    for _ in range(8):
        model(x).square().mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert reported()["compiles"] - before == 2


def test_slices_of_a_resident_data_set_compile_two_programs_more():
    data = torch.randn(40, 6).to("spmd")
    model = mlp().to("spmd")
    before = reported()["compiles"]
    sums = [model(data[4 * i : 4 * (i + 1)]).sum().item() for i in range(10)]
    assert reported()["compiles"] - before == 2
    host = model.to("cpu")
    data = data.cpu()
    want = [host(data[4 * i : 4 * (i + 1)]).sum().item() for i in range(10)]
    assert sums == pytest.approx(want, rel=1e-4, abs=1e-4)


# --- views, writes, aliases ---


VIEW_WRITES = {
    "select": lambda x: x[1].add_(1),
    "slice": lambda x: x[:, 1:3].mul_(2),
    "step": lambda x: x[::2, 1::2].fill_(7),
    "transpose": lambda x: x.t()[1].zero_(),
    "chain": lambda x: x.t()[1:][:, 0].copy_(torch.ones(5, device=x.device)),
    "diagonal": lambda x: x.diagonal().neg_(),
    "reshape": lambda x: x.view(-1)[3:9].sub_(1),
    "unbind": lambda x: x.unbind(1)[2].mul_(3),
    "split": lambda x: x.split(2, 1)[1].add_(5),
    "index": lambda x: x.__setitem__(x > 0.5, 0.0),
    "as_strided": lambda x: x.as_strided((3, 2), (2, 1), 1).mul_(2),
    "swap": lambda x: x[:2].copy_(x[2:4].clone()),
    "expanded_source": lambda x: x.copy_(x[:1].clone()),
    "squeeze_": lambda x: x[:, :1].squeeze_().add_(2),
}


@pytest.mark.parametrize("name", VIEW_WRITES)
def test_writes_through_views(name):
    def fn(x):
        VIEW_WRITES[name](x)
        return x

    assert_same(fn, torch.randn(4, 6))


def test_views_made_before_a_write_see_it():
    def fn(x):
        row, flat = x[1], x.view(-1)
        x.add_(1)
        flat[0] = 9
        return row * flat[:4].sum()

    assert_same(fn, torch.randn(3, 4))


def test_writing_in_place_is_differentiated():
    def fn(x):
        x.requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y[:, 1] = y[:, 0].clone() ** 2
        y.sin().sum().backward()
        return x.grad

    assert_same(fn, torch.randn(3, 4))


def test_overlapping_writes_are_refused_with_pytorchs_words():
    x = torch.zeros(3, 1, device="spmd").expand(3, 4)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x.add_(1)


def test_in_place_keeps_the_element_type():
    assert_same(lambda x: x.to(torch.int32).add_(2), torch.arange(4.0))
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        torch.arange(4, device="spmd").add_(1.5)


def test_out_arguments():
    out = torch.empty(0, device="spmd")
    x = torch.randn(3).to("spmd")
    assert torch.add(x, 1, out=out) is out
    torch.testing.assert_close(out.cpu(), x.cpu() + 1)


def test_conjugate_and_complex_views():
    def fn(x):
        z = torch.view_as_complex(x)
        z.conj().mul_(2j)
        return torch.view_as_real(z.conj().resolve_conj()) + z.imag[:, None]

    assert_same(fn, torch.randn(5, 2))


def test_byte_views():
    assert_same(lambda x: x.view(torch.int32) >> 3, torch.randn(4))


# --- numbers, empty tensors, reading values ---


def test_zero_dim_and_empty():
    assert_same(lambda x: x.sum() * x.mean() + torch.tensor(2.0), torch.randn(3))
    assert_same(lambda x: torch.cat([x[:0], x]).sum(0), torch.randn(3, 2))
    assert torch.zeros(0, 3, device="spmd").sum().item() == 0


def test_cpu_numbers_mix_and_cpu_tensors_do_not():
    x = torch.ones(2, device="spmd")
    assert (x * torch.tensor(3.0)).tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + torch.ones(2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.bool])
@pytest.mark.parametrize("number", [2, 2.5, True])
def test_numbers_promote_as_on_the_cpu(dtype, number):
    for shape in ((), (3,)):
        x = torch.ones(shape, dtype=dtype)
        for fn in (torch.add, torch.mul, torch.true_divide, torch.remainder, torch.gt):
            if dtype == torch.bool and fn is torch.remainder:
                continue  # PyTorch has none for bool
            want = fn(x, number)
            got = fn(x.to("spmd"), number)
            assert got.dtype == want.dtype, fn
            torch.testing.assert_close(got.cpu(), want)


def test_the_host_tensor_may_be_reused_after_to():
    host = torch.ones(3)
    x = host.to("spmd")
    host.fill_(7)
    assert x.tolist() == [1, 1, 1]


def test_reading_values():
    x = torch.tensor([1.0, 2.0]).to("spmd")
    assert x[1].item() == 2 and bool(x[0] < x[1]) and int(x.sum()) == 3
    assert repr(x) == "tensor([1., 2.], device='spmd:0')"
    assert torch.equal(x, x.clone()) and not torch.equal(x, x + 1)


def test_numpy_and_other_indices_are_named_errors():
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        torch.ones(2, device="spmd").numpy()
    with pytest.raises(RuntimeError, match="one device"):
        torch.ones(2, device="spmd:1")
    with pytest.raises(NotImplementedError, match="not supported"):
        torch.quantize_per_tensor(torch.eye(2), 0.1, 0, torch.qint8).to("spmd")


def test_data_dependent_shapes():
    assert_same(lambda x: x[x > 0], torch.randn(9))
    assert_same(lambda x: (x > 0).nonzero(), torch.randn(9))


# --- modules, state, serialization ---


def test_module_to_keeps_parameters_and_ties():
    model = Gpt()
    weight = model.embed.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.to("spmd")
    assert model.embed.weight is weight and model.head.weight is weight
    assert optimizer.param_groups[0]["params"][0].device.type == "spmd"
    model.to("cpu")
    assert model.embed.weight is weight and weight.device.type == "cpu"


def test_data_detach_and_leaves():
    x = torch.randn(3).to("spmd").requires_grad_()
    x.data.mul_(2)
    y = x.detach()
    y.zero_()
    assert x.tolist() == [0, 0, 0] and x.is_leaf
    x.data = torch.ones(3, device="spmd")
    assert x.tolist() == [1, 1, 1] and y.tolist() == [0, 0, 0]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)


def test_a_changed_saved_tensor_is_noticed():
    x = torch.randn(3, device="spmd", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_deepcopy_is_independent_and_keeps_ties():
    model = Gpt().to("spmd")
    twin = copy.deepcopy(model)
    assert twin.head.weight is twin.embed.weight
    with torch.no_grad():
        twin.embed.weight.zero_()
    assert model.embed.weight.abs().sum().item() > 0
    x = torch.randn(3, 4).to("spmd")
    view = x.t()
    copies = copy.deepcopy([x, view])
    copies[0].fill_(5)
    assert copies[1].sum().item() == 60 and x.sum().item() != 60


@pytest.mark.parametrize("location", [None, "cpu", "spmd"])
def test_save_and_load(location):
    model = Gpt().to("spmd")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location=location, weights_only=True)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key].cpu(), value.cpu())
    other = Gpt().to("spmd")
    other.load_state_dict(state)
    tokens = torch.randint(0, 11, (2, 5)).to("spmd")
    torch.testing.assert_close(other(tokens).cpu(), model(tokens).cpu())


def test_save_keeps_aliases():
    x = torch.arange(6.0).to("spmd")
    file = io.BytesIO()
    torch.save([x, x[2:4]], file)
    file.seek(0)
    a, b = torch.load(file)
    a.fill_(1)
    assert b.tolist() == [1, 1]


def test_pickle():
    x = torch.randn(2, 3).to("spmd")
    torch.testing.assert_close(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())


# --- autograd and its companions ---


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant):
    def fn(x):
        x.requires_grad_()
        y = checkpoint(lambda t: (t * 2).sin().exp(), x, use_reentrant=reentrant)
        y.sum().backward()
        return x.grad

    assert_same(fn, torch.randn(4))


def test_no_grad_and_inference_mode():
    with torch.no_grad():
        assert_same(lambda x: x.view(-1).add_(1), torch.randn(2, 2))
    with torch.inference_mode():
        assert_same(lambda x: x.view(-1).add_(1) * x.sum(), torch.randn(2, 2))


def test_function_transforms():
    def f(x):
        return (x.sin() * x).sum()

    def weighted(x):
        return x @ x.t() + x.mean()

    assert_same(torch.func.grad(f), torch.randn(4))
    assert_same(torch.func.vmap(weighted), torch.randn(3, 2, 2))
    assert_same(torch.func.vmap(torch.func.grad(f)), torch.randn(3, 4))
    assert_same(lambda x: torch.func.jvp(f, (x,), (x * 2,))[1], torch.randn(4))
    assert_same(torch.func.hessian(f), torch.randn(3))


def test_forward_mode_through_linear():
    weight = torch.randn(3, 4)

    def f(x):
        return F.linear(x, weight.to(x.device)).sin()

    assert_same(lambda x: torch.func.jvp(f, (x,), (x * 2,))[1], torch.randn(2, 4))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_without_inductor(backend):
    model = mlp()

    def fn(x):
        compiled = torch.compile(copy.deepcopy(model).to(x.device), backend=backend)
        return compiled(x)

    assert_same(fn, torch.randn(4, 6))


def test_micro_steps_are_one_program():
    model = mlp().to("spmd")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4, 6).to("spmd")
    compiles = []
    for _ in range(5):
        before = reported()["compiles"]
        for _ in range(4):
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        compiles.append(reported()["compiles"] - before)
    assert sum(compiles) <= 6 and compiles[2:] == [0, 0, 0]


def test_autocast():
    x = torch.randn(4, 4).to("spmd")
    with torch.autocast("spmd"):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.softmax(x @ x, 0).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_hooks():
    x = torch.randn(3).to("spmd").requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.device.type))
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.mul_(2).device.type) and None)
    (x * 3).sum().backward()
    assert seen == ["spmd", "spmd"] and x.grad.tolist() == [6, 6, 6]


def test_attention_backends_are_honoured():
    q = torch.randn(2, 2, 4, 8).to("spmd")
    plain = F.scaled_dot_product_attention(q, q, q)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        math = F.scaled_dot_product_attention(q, q, q)
    torch.testing.assert_close(plain.cpu(), math.cpu())


# --- random numbers ---


def test_random_numbers_repeat_with_the_seed():
    torch.manual_seed(3)
    a = torch.randn(1000, device="spmd")
    state = torch.spmd.get_rng_state()
    b = torch.rand(1000, device="spmd")
    torch.manual_seed(3)
    assert torch.equal(a, torch.randn(1000, device="spmd"))
    torch.spmd.set_rng_state(state)
    assert torch.equal(b, torch.rand(1000, device="spmd"))
    assert abs(a.mean().item()) < 0.2 and 0.4 < b.mean().item() < 0.6
    assert not torch.equal(a, torch.randn(1000, device="spmd"))


def test_dropout_is_the_same_when_recomputed():
    x = torch.ones(200, device="spmd", requires_grad=True)
    y = checkpoint(lambda t: F.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y, x.grad)


# --- the process ---


def test_a_script_that_ends_after_backward_exits_cleanly():
    code = """
    import torch, torch_spmd
    x = torch.randn(3, device="spmd", requires_grad=True)
    x.sin().sum().backward()
    """
    for _ in range(3):
        run_script(code)


def test_a_forked_child_gets_an_error():
    result = run_script(
        """
        import os, torch, torch_spmd
        x = torch.ones(2, device="spmd")
        pid = os.fork()
        if pid == 0:
            try:
                x + 1
            except RuntimeError as e:
                os._exit(7 if "forked" in str(e) else 1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert result.stdout.strip() == "7", result.stderr


def test_several_threads():
    import threading

    results = {}

    def work(k):
        x = torch.full((8,), float(k), device="spmd", requires_grad=True)
        for _ in range(5):
            (x * x).sum().backward()
        results[k] = x.grad.sum().item()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=120)
    assert results == {k: 8 * 2.0 * k * 5 for k in range(4)}


def test_pending_work_is_one_program():
    before = reported()["runs"]
    x = torch.ones(4, device="spmd")
    for _ in range(10):
        x = x * 2 + 1
    assert reported()["runs"] == before
    spmd.sync()
    assert reported()["runs"] == before + 1
    assert x[0].item() == 2047
