# SPDX-License-Identifier: Apache-2.0
"""torch.jit.trace and torch.jit.script of modules on the device."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_spmd as spmd
from torch_spmd import P

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Residual(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x + self.layer(x)


class Cell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(4, 4)

    def forward(self, x):
        h = self.cell(x)
        return x + (h[0] if isinstance(h, tuple) else h)


class Function(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


# What torch.jit.trace records in parts, what the device computes in a way of its own, and layers.
MODELS = {
    "conv1d": (lambda: Residual(nn.Conv1d(3, 3, 3, padding=1)), (2, 3, 8)),
    "conv2d": (lambda: Residual(nn.Conv2d(3, 3, 3, padding="same", groups=3)), (2, 3, 4, 4)),
    "conv3d": (lambda: Residual(nn.Conv3d(2, 2, 3, padding=1)), (1, 2, 4, 4, 4)),
    "conv of one image": (lambda: Residual(nn.Conv2d(3, 3, 1)), (3, 4, 4)),
    "conv_transpose1d": (lambda: Residual(nn.ConvTranspose1d(3, 3, 3, padding=1)), (2, 3, 8)),
    "conv_transpose2d": (lambda: Residual(nn.ConvTranspose2d(3, 3, 3, padding=1)), (2, 3, 4, 4)),
    "conv_transpose3d": (lambda: Residual(nn.ConvTranspose3d(2, 2, 1)), (1, 2, 2, 2, 2)),
    "lstm_cell": (lambda: Cell(nn.LSTMCell), (2, 4)),
    "gru_cell": (lambda: Cell(nn.GRUCell), (2, 4)),
    "rnn_cell": (lambda: Cell(nn.RNNCell), (2, 4)),
    "lstm": (lambda: Cell(nn.LSTM), (3, 2, 4)),
    "linear": (lambda: Residual(nn.Linear(4, 4)), (2, 4)),
    "linear of a batch": (lambda: Residual(nn.Linear(4, 4)), (2, 3, 4)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), (3, 4)),
    "layer norm": (lambda: Residual(nn.LayerNorm(4)), (2, 4)),
    "batch norm": (lambda: Residual(nn.BatchNorm1d(4)), (3, 4)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0), (3, 2, 8)),
    "attention": (
        lambda: Function(lambda x: x + F.scaled_dot_product_attention(x, x, x)),
        (2, 2, 4, 8),
    ),
    "reshape": (lambda: Function(lambda x: x.transpose(0, 1).reshape(-1) + 1), (3, 4)),
    "matmul": (lambda: Function(lambda x: x[0] @ x.transpose(1, 2)), (2, 3, 3)),
    "as_strided": (lambda: Function(lambda x: x.as_strided((2, 3), (1, 2)) * 2), (3, 4)),
    "max": (lambda: Function(lambda x: x.max() + x.prod(1).cumprod(0) + x.median()), (3, 4)),
    "in place": (lambda: Function(lambda x: x.clone().add_(1).mul_(x)[1:]), (3, 4)),
    "made within": (lambda: Function(lambda x: x + torch.arange(4, device=x.device)), (3, 4)),
    "sparse": (lambda: Function(lambda x: x.to_sparse().coalesce().to_dense() + x), (3, 4)),
}


@pytest.mark.filterwarnings("ignore")  # what the tracer says of constants, on every device
@pytest.mark.parametrize("mode", ["training", "frozen", "inference"])
@pytest.mark.parametrize("name", MODELS)
def test_a_trace_computes_with_other_inputs(name, mode):
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model = make().train(mode == "training").to("spmd").requires_grad_(mode == "training")
    with torch.inference_mode(mode == "inference"):
        traced = torch.jit.trace(model, torch.randn(sizes).to("spmd"))
    for _ in range(3):  # the second call is profiled, the third optimized
        x = torch.randn(sizes)
        ours, theirs = (x.clone().to("spmd").requires_grad_() for _ in range(2))
        got, want = traced(ours), model(theirs)
        torch.testing.assert_close(got.detach().cpu(), want.detach().cpu())
        got.square().sum().backward()
        want.square().sum().backward()
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad.cpu())


def test_a_traced_convolution_may_be_saved_and_sharded():
    """What was traced on the CPU and what was traced on the device runs on either."""
    mesh = spmd.make_mesh((2,), ("data",))
    model = nn.Conv1d(3, 4, 3).requires_grad_(False)
    x = torch.randn(4, 3, 8)
    for device in ("cpu", "spmd"):
        traced = torch.jit.trace(model.to(device), torch.randn(2, 3, 8).to(device))
        file = io.BytesIO()
        torch.jit.save(traced, file)
        for target in ("cpu", "spmd"):
            file.seek(0)
            loaded = torch.jit.load(file, map_location=target)
            given = x.to(target)
            if target == "spmd":
                spmd.mark_sharding(given, mesh, ("data", None, None))
            y = loaded(given)
            torch.testing.assert_close(y.cpu(), model.cpu()(x))
            if target == "spmd":
                assert spmd.sharding_of(y).spec == P("data", None, None)


def sharded(kind, mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)).to("spmd")
    if kind == "fsdp":
        spmd.fsdp(model, mesh, "data")
    elif kind == "a part":
        spmd.fsdp(model[0], mesh, "data")
    elif kind == "tensor_parallel":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        spmd.tensor_parallel(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["fsdp", "a part", "tensor_parallel"])
def test_a_sharded_module_may_be_scripted_and_traced(kind):
    mesh = spmd.make_mesh((8,), ("data",))
    model = sharded(kind, mesh)
    x = torch.randn(8, 16).to("spmd")
    want = model(x).detach().cpu()
    for script in (torch.jit.script(model), torch.jit.trace(model, torch.ones_like(x))):
        torch.testing.assert_close(script(x).detach().cpu(), want)
        assert spmd.sharding_of(getattr(script, "0").weight).is_committed
    # The module has its hooks still.
    fresh = torch.randn(8, 16).to("spmd")
    model(fresh)
    if kind == "fsdp":
        assert spmd.sharding_of(fresh).spec == P("data", None)


def test_a_script_cannot_cast():
    mesh = spmd.make_mesh((8,), ("data",))
    model = nn.Linear(16, 16).to("spmd")
    spmd.fsdp(model, mesh, "data", param_dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError) as raised:
        torch.jit.script(model)
    assert str(raised.value) == (
        "torch.jit.script: fsdp(param_dtype=…, reduce_dtype=…) casts parameters by hooks, which "
        "this module has and a script cannot have; call fsdp without these types, and cast the "
        "module itself: module.to(dtype)"
    )
