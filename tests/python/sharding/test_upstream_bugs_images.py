# SPDX-License-Identifier: Apache-2.0
"""Wrong answers that other partitioners have given for sharded images; each must be right here."""

import pytest
import torch
import torch.nn.functional as F
from cut_results import check, each_dim, make_mesh, values
from torch import nn

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns")


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("pad", [(1, 1, 1, 1), (2, 0, 0, 3), (-1, 2, 1, -2)])
def test_padding_of_a_cut_image(mode, pad):
    if mode != "constant" and min(pad) < 0:
        pytest.skip("PyTorch's backward of a crop in this mode differs")
    image = values(2, 3, 7, 6)
    check(lambda x: F.pad(x, pad, mode=mode), (image,), each_dim(image))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_of_a_cut_image(stride, padding):
    tensors = values(2, 4, 9, 6), values(4, 2, 3, 3, seed=1), values(4, seed=2)

    def convolve(x, w, b):
        return F.conv2d(x, w, b, stride, padding, dilation=1, groups=2)

    check(convolve, tensors, each_dim(tensors[0]))
    check(convolve, tensors, [((2, 2), (None, ("x", None, None, None), None))])


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1])
def test_transposed_convolution_of_a_cut_image(stride, padding):
    """DTensor: the wrong shape, silently."""
    tensors = values(2, 4, 7, 5), values(4, 2, 3, 3, seed=1), values(2, seed=2)

    def convolve(x, w, b):
        return F.conv_transpose2d(x, w, b, stride, padding, output_padding=stride - 1)

    check(convolve, tensors, each_dim(tensors[0]))


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)])
def test_indices_of_max_pooling_of_a_cut_image(kernel, stride, padding):
    """Indices refer to the whole image, not to a tile of it."""
    image = values(2, 3, 9, 8)

    def pool(x):
        return F.max_pool2d(x, kernel, stride, padding, return_indices=True)

    check(pool, (image,), each_dim(image))
    ties = torch.ones(1, 2, 8, 6, dtype=torch.float64)
    check(pool, (ties,), each_dim(ties))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_windows_that_see_no_number(padding, dilation, stride):
    """They name the first element of the window that is not in the border."""
    image = values(1, 2, 10, 7)
    image[:, 0] = -torch.inf
    image[:, 1, 3:, :4] = -torch.inf

    def pool(x):
        out, indices = F.max_pool2d(x, 2, stride, padding, dilation, return_indices=True)
        return out.clamp_min(-100.0), indices

    check(pool, (image,), each_dim(image))


@pytest.mark.parametrize("given", ["weight, bias", "weight", "bias", ""])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_under_batch_channel_and_spatial_cuts(training, given):
    """DTensor: running means are wrong if channels are sharded."""
    image = values(5, 4, 6, 3)
    weight, bias = values(4, seed=1), values(4, seed=2)

    def norm(x, w, b):
        running = [torch.zeros_like(b.detach()), torch.ones_like(b.detach())]
        affine = [w if "weight" in given else None, b if "bias" in given else None]
        for _ in range(2):
            y = F.batch_norm(x, *running, *affine, training, momentum=0.3)
        return y, *running

    cuts = [*each_dim(image), *each_dim(image, also=(("x",), ("x",)))]
    cuts = [c for c in cuts if len(c[1]) == 1 or c[1][0][1] == "x"]
    check(norm, (image, weight, bias), cuts)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 6), (4, 4, 5, 3), (2, 4, 3, 2, 3)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_by_infinite_weights(training, shape):
    """Infinities and NaNs as in eager, and only in the weight's channel."""
    image = values(*shape, dtype=torch.float32)
    weight = torch.tensor([1.0, torch.inf, -torch.inf, 0.5])
    running = values(4, seed=1, dtype=torch.float32), values(4, seed=2, dtype=torch.float32).exp()
    want = F.batch_norm(image, *(r.clone() for r in running), weight, None, training)
    for sizes, (spec,) in [((1,), ((),)), *each_dim(image)]:
        x = spmd.mark_sharding(image.to("spmd"), make_mesh(sizes), spec or (None,) * len(shape))
        statistics = [r.to("spmd") for r in running]
        got = F.batch_norm(x, *statistics, weight.to("spmd"), None, training)
        torch.testing.assert_close(got.cpu(), want, equal_nan=True)


def test_batch_norm_modules_keep_running_statistics():
    want, states = None, []
    for sizes in (None, (4,), (2, 3)):
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(3).double().to("spmd" if sizes else "cpu")
        for step in range(3):
            x = values(5, 3, 7, 2, seed=step)
            if sizes:
                x = spmd.mark_sharding(x.to("spmd"), make_mesh(sizes), ("x", None, None, None))
            norm(x)
        states.append({k: v.cpu() for k, v in norm.state_dict().items()})
        want = want or states[0]
        torch.testing.assert_close(states[-1], want)
