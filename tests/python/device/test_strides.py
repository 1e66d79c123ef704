# SPDX-License-Identifier: Apache-2.0
"""Results have the CPU's strides, and FakeTensor, on which compiled code relies, predicts them.

`--full-ops` takes every layout and sample; without it two samples of every op in one layout.
"""

import itertools

import pytest
import rotation
import torch
import torch.nn.functional as F
from layouts import LAYOUTS, form, laid_out, on_device
from op_samples import OPS, evenly, ops_of, samples
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map

import torch_spmd as spmd  # noqa: F401
from torch_spmd import _versions

# What is different, and why. An entry that is no longer true fails below.
FORMULA = "autograd takes another formula for FakeTensors"
KNOWN = {
    "linalg_householder_product": "the Meta kernel of its gradient goes row by row",
    "masked_prod": FORMULA,
    "max_reduction_no_dim": FORMULA,
    "min_reduction_no_dim": FORMULA,
    "nn_functional_scaled_dot_product_attention": (
        "gradients of operands that the CPU's fused kernel refuses lie as its math happens to"
    ),
    "ormqr": "the Meta kernel of its gradient goes row by row",
    "prod": FORMULA,
    "tensor_split": "PyTorch asks for indices on the CPU",
}
if _versions.minor(torch.__version__) >= _versions.minor("2.15"):
    # The mask of their gradients is applied in place, but not to FakeTensors.
    MASKED = ("clamp", "clamp_max", "clamp_min", "fmax", "fmin", "max_binary", "maximum")
    KNOWN |= dict.fromkeys((*MASKED, "min_binary", "minimum"), FORMULA)
# The same, among samples that only --full-ops takes.
RARELY = {
    "ldexp": "the CPU's strides of a power of two by expanded numbers",
    "median": FORMULA,
    "nanmedian": FORMULA,
    "unique": "along a dimension that is not the first",
    "unique_consecutive": "along a dimension that is not the first",
}
DYNAMIC = (DataDependentOutputException, DynamicOutputShapeException)


def forms(tree):
    return [form(t) for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def gradients(results, inputs):
    outs = [t for t in tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    ins = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outs or not ins:
        return []
    ones = [torch.ones_like(t) for t in outs]
    return torch.autograd.grad(outs, ins, ones, allow_unused=True)


def run(function, args, kwargs, backward):
    torch.manual_seed(0)
    results = function(*args, **kwargs)
    return forms(results) + (forms(gradients(results, (args, kwargs))) if backward else [])


def on_fake(function, args, kwargs, backward):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        args, kwargs = tree_map(
            lambda t: mode.from_tensor(t) if isinstance(t, torch.Tensor) else t, (args, kwargs)
        )
        return run(function, args, kwargs, backward)


def differences(function, args, kwargs, backward=False):
    """The differences between the device, FakeTensor and the CPU; none if the CPU refuses the
    call."""
    try:
        cpu = run(function, args, kwargs, backward)
    except Exception:  # for example, expanded operands of ops that write
        return []
    ours, our_kwargs = tree_map(on_device, (args, kwargs))
    our_kwargs = {k: "spmd" if k == "device" else v for k, v in our_kwargs.items()}
    try:
        real = run(function, ours, our_kwargs, backward)
    except RuntimeError as error:
        if "refers to a single memory location" in str(error):  # running statistics: the CPU
            return []  # does not look
        raise
    found = [] if real == cpu else [f"the device has {real}, the CPU {cpu}"]
    try:
        fake = on_fake(function, ours, our_kwargs, backward)
    except DYNAMIC:
        return found
    if fake != real:
        found.append(f"FakeTensor has {fake}, the device {real}")
    return found


def of_op(name, layouts, number=None, backward=False):
    found = []
    op = OPS[name]
    chosen = samples(op) if number is None else evenly(samples(op), number)
    for sample, layout in itertools.product(chosen, layouts):
        args, kwargs = tree_map(
            lambda t, layout=layout: laid_out(t, layout),
            ((sample.input, *sample.args), dict(sample.kwargs)),
        )
        if any(getattr(t, "layout", torch.strided) != torch.strided for t in tree_leaves(args)):
            continue
        found += [f"{layout}: {text}" for text in differences(op.op, args, kwargs, backward)]
    return found


NAMES = [name for name in ops_of("float32") if name not in KNOWN]


@pytest.mark.in_parts
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_lie_as_on_the_cpu(name, full_ops):
    layouts = list(LAYOUTS)
    backward = OPS[name].supports_autograd
    if full_ops:
        found = of_op(name, layouts) + of_op(name, layouts, backward=backward)
        assert (found != []) == (name in RARELY), found
    else:
        # Another layout for each op, so that all are tested.
        layout = layouts[rotation.place(name, len(layouts))]
        assert not of_op(name, [layout], number=2, backward=backward)


@pytest.mark.parametrize("name", KNOWN)
def test_listed_stride_differences_still_exist(name):
    try:
        found = of_op(name, LAYOUTS, number=2)
        found = found or of_op(name, LAYOUTS, number=2, backward=OPS[name].supports_autograd)
    except RuntimeError:  # NotImplementedError, too
        return
    assert found


SHAPE = (2, 3, 4, 5)


def operands():
    x = torch.rand(SHAPE) + 0.5
    yield x
    yield from (laid_out(x, layout) for layout in LAYOUTS)
    yield x[:, :1].expand(SHAPE)
    yield x[0, 0].mT.contiguous().mT
    yield x[:1, :, :1]


# Ops whose Meta kernels go through other ops, which forget an operand's strides.
OF_TWO = {
    "add": torch.add,
    "complex": torch.complex,
    "copysign": torch.copysign,
    "div, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "floor_divide": torch.floor_divide,
    "heaviside": torch.heaviside,
    "huber_loss": lambda a, b: F.huber_loss(a, b, reduction="none"),
    "into out": lambda a, b: torch.add(a, b, out=torch.empty(0, device=a.device)),
    "logaddexp": torch.logaddexp,
    "logical_and": torch.logical_and,
    "logical_xor": torch.logical_xor,
    "mse_loss": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "normal": torch.normal,
    "polar": torch.polar,
    "xlog1py": torch.special.xlog1py,
    "xlogy": torch.xlogy,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OF_TWO)
def test_two_operands_in_all_layouts(name):
    for a, b in itertools.product(operands(), operands()):
        found = differences(OF_TWO[name], (a, b), {})
        if name == "into out":  # FakeTensor has it contiguous, as for the CPU
            found = [text for text in found if "the CPU" in text]
        assert not found, (a.stride(), b.stride())


def weight(x, *shape):
    return torch.ones(shape, device=x.device, dtype=x.dtype)


OF_IMAGES = {
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch norm, running": lambda x: F.batch_norm(x, weight(x, 3), weight(x, 3)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "channel shuffle": lambda x: F.channel_shuffle(torch.cat([x, x], 1), 2),
    "clone, channels last": lambda x: x.clone(memory_format=torch.channels_last),
    "contiguous": lambda x: x.contiguous(),
    "convolution": lambda x: F.conv2d(x, weight(x, 6, 3, 2, 2)),
    "convolution, 1d": lambda x: F.conv1d(x[0], weight(x, 6, 4, 2)),
    "convolution, depthwise": lambda x: F.conv2d(x, weight(x, 3, 1, 2, 2), groups=3),
    "convolution, double": lambda x: F.conv2d(x.double(), weight(x.double(), 6, 3, 2, 2)),
    "convolution, transposed": lambda x: F.conv_transpose2d(x, weight(x, 3, 6, 2, 2)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "embedding": lambda x: F.embedding(
        torch.zeros(2, 3, dtype=torch.long, device=x.device), x[0, 0]
    ),
    "empty_like": torch.empty_like,
    "hfft2": lambda x: torch.fft.hfft2(x + 0j),
    "instance norm": F.instance_norm,
    "irfft2": lambda x: torch.fft.irfft2(x + 0j, dim=(0, 1)),
    "layer norm": lambda x: F.layer_norm(x, (5,)),
    "linalg.eig": lambda x: torch.linalg.eig(x[..., :4])[1],
    "log_sigmoid": F.logsigmoid,
    "max pool": lambda x: F.max_pool2d(x, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "pad, reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pad, replicated": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pixel shuffle": lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2),
    "rfftn": torch.fft.rfftn,
    "roll": lambda x: x.roll(1, 1),
    "softmax": lambda x: x.softmax(1),
    "svd": lambda x: torch.linalg.svd(x)[2],
    "to": lambda x: x.to(torch.float64),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 1),
    "unsafe_split": lambda x: torch.unsafe_split(x, 2, 1),
    "zeros_like": torch.zeros_like,
}


@pytest.mark.parametrize("name", OF_IMAGES)
def test_images_in_all_layouts(name):
    for x in operands():
        if x.shape == SHAPE:
            assert not differences(OF_IMAGES[name], (x,), {}), x.stride()
    if name not in ("empty_like", "zeros_like", "linalg.eig", "svd", "batch norm, running"):
        for layout in ("contiguous", "channels last", "heads"):
            x = laid_out(torch.rand(SHAPE), layout).requires_grad_()
            assert not differences(OF_IMAGES[name], (x,), {}, backward=True), layout


def attention(q, k, v, **options):
    return F.scaled_dot_product_attention(q, k, v, **options)


ATTENTION = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": True},
    "dropout": {"dropout_p": 0.5},
}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("options", ATTENTION)
def test_attention_in_all_layouts(options, key_heads, backward):
    kwargs = dict(ATTENTION[options], enable_gqa=key_heads == 2)
    if "attn_mask" in kwargs:
        kwargs["attn_mask"] = torch.ones(6, 6, dtype=torch.bool).tril()
    # For operands that the CPU's fused kernel refuses, the strides of gradients follow from its
    # math.
    layouts = ("contiguous", "heads") if backward else ("contiguous", "heads", "reversed")
    for of_q, of_k in itertools.product(layouts, repeat=2):
        q = laid_out(torch.rand(2, 4, 6, 8), of_q)
        k, v = (laid_out(torch.rand(2, key_heads, 6, 8), of_k) for _ in range(2))
        tensors = [t.requires_grad_(backward) for t in (q, k, v)]
        assert not differences(attention, tuple(tensors), kwargs, backward), (of_q, of_k)


def test_resizing_keeps_or_takes_strides():
    def resized(x, like, memory_format=None):
        return x.clone().resize_as_(like, memory_format=memory_format)

    for x, like in itertools.product(operands(), operands()):
        for memory_format in (None, torch.preserve_format, torch.contiguous_format):
            assert not differences(resized, (x, like, memory_format), {}), (x.stride(), like.shape)


def test_pieces_of_an_unsafe_split_share_memory():
    for device in ("cpu", "spmd"):
        x = torch.zeros(4, 3, device=device)
        first, second = torch.unsafe_split(x, 2)
        second.add_(1)
        assert x.cpu().sum() == 6
        assert (first.storage_offset(), second.storage_offset()) == (0, 6)
