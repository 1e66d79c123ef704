# SPDX-License-Identifier: Apache-2.0
"""`SPMD_VERIFY=1` runs every program a second time, unsharded, also if a node leaves results
out."""

import pytest
import random_models
import torch
import torch.nn.functional as F
from model_zoo import MODELS

import torch_spmd as spmd
from torch_spmd.device import options


@pytest.fixture(autouse=True)
def verified():
    with options.update(verify=True):
        yield
        spmd.sync()


# Sums whose gradient is all rounding: the results differ, and each op is looked at by itself.


def layer_norm(x, w, mesh):
    (F.layer_norm(x @ w, (16,)) ** 2).sum().backward()
    return w.grad


def layer_norm_affine(x, w, mesh):
    weight, bias = torch.ones(16).to("spmd").requires_grad_(), torch.zeros(16).to("spmd")
    (F.layer_norm(x @ w, (16,), weight, bias) ** 2).sum().backward()
    return w.grad, weight.grad


def group_norm(x, w, mesh):
    (F.group_norm(x @ w, 4) ** 2).sum().backward()
    return w.grad


def group_norm_of_a_leaf(x, w, mesh):
    y = (x @ w).detach().requires_grad_()
    (F.group_norm(y.view(8, 4, 4), 2) ** 2).sum().backward()
    return y.grad


def batch_norm(x, w, mesh):
    (F.batch_norm(x @ w, None, None, training=True) ** 2).sum().backward()
    return w.grad


def convolution_of_data(x, w, mesh):
    kernel = torch.randn(4, 2, 3, 3).to("spmd").requires_grad_()
    spmd.mark_sharding(kernel, mesh, ("a", None, None, None))
    y = F.conv2d(x.detach().view(8, 2, 2, 4), kernel, padding=1)
    (F.group_norm(y, 2) ** 2).sum().backward()
    return kernel.grad


@pytest.mark.parametrize(
    "gradients",
    [
        layer_norm,
        layer_norm_affine,
        group_norm,
        group_norm_of_a_leaf,
        batch_norm,
        convolution_of_data,
    ],
)
def test_results_that_an_output_mask_leaves_out(gradients):
    mesh = spmd.make_mesh((4,), ("a",))
    torch.manual_seed(0)
    x = spmd.mark_sharding(torch.randn(8, 16).to("spmd"), mesh, ("a", None)).requires_grad_()
    w = torch.randn(16, 16).to("spmd").requires_grad_()
    spmd.mark_sharding(w, mesh, (None, "a"))
    gradients(x, w, mesh)
    spmd.sync(wait=True)


# A few for every run; the rest of the zoo with `--full-models 1`.
FEW = ("gpt2", "resnet", "vit")


def test_models_of_the_zoo_agree(pytestconfig):
    models = sorted(MODELS) if pytestconfig.getoption("full_models") else FEW
    for model in models:
        assert random_models.difference(random_models.random_case(0, model)) is None, model
