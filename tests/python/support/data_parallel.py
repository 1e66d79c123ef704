# SPDX-License-Identifier: Apache-2.0
"""PyTorch's modules with inputs whose first dimension is the batch, large enough to measure
what is sent, and the collectives of one step of plain data parallelism."""

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import torch_spmd as spmd

B, C, L, H = 16, 16, 24, 12  # batch, channels, a length, height and width


def _signal(*sizes):
    return lambda: (torch.randn(B, *sizes),)


def _pair(*sizes, target=None):
    """A prediction and a target for a loss."""

    def draw():
        x = torch.rand(B, *sizes) * 0.8 + 0.1
        return x, (torch.rand(B, *sizes) * 0.8 + 0.1 if target is None else target())

    return draw


def _classes(*sizes):
    return lambda: torch.randint(0, C, (B, *sizes))


def _signs(*sizes):
    return lambda: torch.randint(0, 2, (B, *sizes)) * 2.0 - 1


_LINE, _IMAGE, _CUBE = (C, L), (C, H, H), (C, 8, 8, 8)
_BY_DIMS = {1: _LINE, 2: _IMAGE, 3: _CUBE}


def _of_dims(name, make, dims=(1, 2, 3)):
    return {f"{name}{d}d": (make(d), _signal(*_BY_DIMS[d])) for d in dims}


def _pads():
    cases = {}
    for name in ("Circular", "Constant", "Reflection", "Replication", "Zero"):
        extra = (0.5,) if name == "Constant" else ()
        cases |= _of_dims(
            f"{name}Pad",
            lambda d, name=name, extra=extra: (
                lambda: getattr(nn, f"{name}Pad{d}d")((1, 2) * d, *extra)
            ),
        )
    return cases


def _pointwise():
    names = (
        "CELU ELU GELU Hardshrink Hardswish Hardtanh LeakyReLU LogSigmoid Mish ReLU ReLU6 SELU SiLU"
        " Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Softmax2d"
    )
    cases = {n: (lambda n=n: getattr(nn, n)(), _signal(*_IMAGE)) for n in names.split()}
    for n in ("Softmax", "LogSoftmax", "Softmin"):
        cases[n] = (lambda n=n: getattr(nn, n)(-1), _signal(*_LINE))
    return cases | {
        "GLU": (lambda: nn.GLU(1), _signal(*_LINE)),
        "PReLU": (lambda: nn.PReLU(C), _signal(*_IMAGE)),
        "Threshold": (lambda: nn.Threshold(0.1, 0.2), _signal(*_IMAGE)),
        "Dropout": (lambda: nn.Dropout(0.5), _signal(*_IMAGE)),
        "Dropout2d": (lambda: nn.Dropout2d(0.5), _signal(*_IMAGE)),
        "AlphaDropout": (lambda: nn.AlphaDropout(0.5), _signal(*_IMAGE)),
    }


def _images():
    def kernel(d):
        return getattr(nn, f"Conv{d}d")

    cases = _of_dims("Conv", lambda d: lambda: kernel(d)(C, 24, 3, padding=1))
    cases |= _of_dims(
        "ConvTranspose", lambda d: lambda: getattr(nn, f"ConvTranspose{d}d")(C, 24, 3, stride=2)
    )
    cases["Conv2d grouped"] = (lambda: nn.Conv2d(C, 32, 3, groups=4), _signal(*_IMAGE))
    for name in ("AvgPool", "MaxPool"):
        cases |= _of_dims(name, lambda d, name=name: lambda: getattr(nn, f"{name}{d}d")(3, 2))
    cases |= _of_dims("LPPool", lambda d: lambda: getattr(nn, f"LPPool{d}d")(2, 3))
    for name in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        cases |= _of_dims(name, lambda d, name=name: lambda: getattr(nn, f"{name}{d}d")(5))
    cases |= _of_dims(
        "FractionalMaxPool",
        lambda d: lambda: getattr(nn, f"FractionalMaxPool{d}d")(2, output_ratio=0.5),
        (2, 3),
    )
    cases |= _of_dims("InstanceNorm", lambda d: lambda: getattr(nn, f"InstanceNorm{d}d")(C))
    cases |= _of_dims("BatchNorm", lambda d: lambda: getattr(nn, f"BatchNorm{d}d")(C))
    return cases | {
        "GroupNorm": (lambda: nn.GroupNorm(4, C), _signal(*_IMAGE)),
        "LayerNorm": (lambda: nn.LayerNorm(L), _signal(*_LINE)),
        "RMSNorm": (lambda: nn.RMSNorm(L), _signal(*_LINE)),
        "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), _signal(*_IMAGE)),
        "PixelShuffle": (lambda: nn.PixelShuffle(2), _signal(*_IMAGE)),
        "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _signal(*_IMAGE)),
        "ChannelShuffle": (lambda: nn.ChannelShuffle(4), _signal(*_IMAGE)),
        "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _signal(*_IMAGE)),
        "Unfold": (lambda: nn.Unfold(3), _signal(*_IMAGE)),
        "Fold": (lambda: nn.Fold((H, H), 3), _signal(C * 9, (H - 2) ** 2)),
        "Flatten": (lambda: nn.Flatten(), _signal(*_IMAGE)),
        "Unflatten": (lambda: nn.Unflatten(1, (4, 4)), _signal(*_IMAGE)),
    }


def _batch_first(cls, *args, **kwargs):
    return lambda: cls(*args, batch_first=True, **kwargs)


def _ids(*sizes):
    return lambda: (torch.randint(0, C, (B, *sizes)),)


class _SelfAttention(nn.MultiheadAttention):
    def forward(self, x, weights=False):
        return super().forward(x, x, x, need_weights=weights)[0]


def _sequences():
    E = 64
    x = _signal(L, E)
    two = lambda: (torch.randn(B, L, E), torch.randn(B, L + 4, E))  # noqa: E731
    three = lambda: (*two(), torch.randn(B, L + 4, E))  # noqa: E731
    padded = lambda: (torch.randn(B, L, E), None, torch.rand(B, L) < 0.3)  # noqa: E731
    layer = {"dim_feedforward": 96, "dropout": 0.1}

    def encoder(**kwargs):
        one = nn.TransformerEncoderLayer(E, 4, batch_first=True, **layer, **kwargs)
        return nn.TransformerEncoder(one, 2)

    return {
        "Linear": (lambda: nn.Linear(E, 96), x),
        "Bilinear": (lambda: nn.Bilinear(E, E, 8), lambda: (torch.randn(B, L, E),) * 2),
        "Embedding": (lambda: nn.Embedding(C, E), _ids(L)),
        "EmbeddingBag": (lambda: nn.EmbeddingBag(C, E), _ids(L)),
        "RNN": (_batch_first(nn.RNN, E, 48, 2), x),
        "GRU": (_batch_first(nn.GRU, E, 48, bidirectional=True), x),
        "LSTM": (_batch_first(nn.LSTM, E, 48, 2, proj_size=16), x),
        "RNNCell": (lambda: nn.RNNCell(E, 48), _signal(E)),
        "GRUCell": (lambda: nn.GRUCell(E, 48), _signal(E)),
        "LSTMCell": (lambda: nn.LSTMCell(E, 48), _signal(E)),
        "MultiheadAttention": (_batch_first(_SelfAttention, E, 4), x),
        "MultiheadAttention weights": (
            _batch_first(_SelfAttention, E, 4, dropout=0.1),
            lambda: (torch.randn(B, L, E), True),
        ),
        "MultiheadAttention others": (
            _batch_first(nn.MultiheadAttention, E, 4, kdim=E, vdim=E, add_bias_kv=True),
            three,
        ),
        "TransformerEncoder": (encoder, x),
        "TransformerEncoder norm first": (lambda: encoder(norm_first=True, activation="gelu"), x),
        "TransformerEncoder padded": (encoder, padded),
        "TransformerEncoderLayer": (_batch_first(nn.TransformerEncoderLayer, E, 4, **layer), x),
        "TransformerDecoderLayer": (_batch_first(nn.TransformerDecoderLayer, E, 4, **layer), two),
        "Transformer": (_batch_first(nn.Transformer, E, 4, 1, 1, **layer), two),
        "LinearCrossEntropyLoss": (
            lambda: nn.LinearCrossEntropyLoss(E, C),
            lambda: (torch.randn(B, E), torch.randint(0, C, (B,))),
        ),
    }


def _losses():
    vectors = lambda: (torch.randn(B, C), torch.randn(B, C), _signs()())  # noqa: E731
    scores = lambda: (torch.randn(B), torch.randn(B), _signs()())  # noqa: E731
    logs = lambda: (torch.randn(B, C, L).log_softmax(1), _classes(L)())  # noqa: E731
    ctc = lambda: (  # noqa: E731
        torch.randn(B, L, C).log_softmax(2),
        torch.randint(1, C, (B, 5)),
        torch.full((B,), L),
        torch.full((B,), 5),
    )

    class BatchFirstCTC(nn.CTCLoss):
        def forward(self, x, *rest):
            return super().forward(x.transpose(0, 1), *rest)

    pairs = (
        "BCELoss BCEWithLogitsLoss HuberLoss KLDivLoss L1Loss MSELoss PoissonNLLLoss SmoothL1Loss"
    )
    cases = {n: (lambda n=n: getattr(nn, n)(), _pair(*_LINE)) for n in pairs.split()}
    for n in ("HingeEmbeddingLoss", "SoftMarginLoss"):
        cases[n] = (lambda n=n: getattr(nn, n)(), _pair(C, target=_signs(C)))
    return cases | {
        "CTCLoss": (BatchFirstCTC, ctc),
        "CosineEmbeddingLoss": (lambda: nn.CosineEmbeddingLoss(), vectors),
        "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(), _pair(*_LINE, target=_classes(L))),
        "GaussianNLLLoss": (
            lambda: nn.GaussianNLLLoss(),
            lambda: (*_pair(*_LINE)(), torch.rand(B, C, L) + 0.1),
        ),
        "MarginRankingLoss": (lambda: nn.MarginRankingLoss(), scores),
        "MultiLabelMarginLoss": (
            lambda: nn.MultiLabelMarginLoss(),
            _pair(C, target=lambda: torch.randint(-1, C, (B, C))),
        ),
        "MultiLabelSoftMarginLoss": (
            lambda: nn.MultiLabelSoftMarginLoss(),
            _pair(C, target=lambda: torch.randint(0, 2, (B, C)).float()),
        ),
        "MultiMarginLoss": (lambda: nn.MultiMarginLoss(), _pair(C, target=_classes())),
        "NLLLoss": (lambda: nn.NLLLoss(), logs),
        "TripletMarginLoss": (
            lambda: nn.TripletMarginLoss(),
            lambda: tuple(torch.randn(B, C) for _ in range(3)),
        ),
    }


# By name: a function that creates the module, and one that draws its inputs.
STOCK = _pads() | _pointwise() | _images() | _sequences() | _losses()


def _loss_of(out):
    if isinstance(getattr(out, "loss", None), torch.Tensor):
        return out.loss
    ends = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    return sum(t.square().mean() for t in ends)


def step(module, args, kwargs, mesh):
    """Forward, backward and update of a module on `spmd`, every input sharded along the batch.

    Returns its trained parameters. The first input requires a gradient, as in the middle of a
    network.
    """
    params = [p for p in module.parameters() if p.requires_grad]
    for p in params:
        spmd.mark_sharding(p, mesh, (None,) * p.dim())
    inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    for t in inputs:
        spmd.mark_sharding(t, mesh, (mesh.axis_names[0],) + (None,) * (t.dim() - 1))
    if inputs[0].is_floating_point():
        inputs[0].requires_grad_()
    loss = _loss_of(module(*args, **kwargs))
    loss.backward()
    if params:
        torch.optim.SGD(params, lr=0.1).step()
    else:
        spmd.sync()
    return params
