# SPDX-License-Identifier: Apache-2.0
"""`SPMD_VERIFY=1` runs every program a second time, whole: also where a node leaves results out."""

import pytest
from model_zoo import MODELS
from processes import run_script

# Sums whose gradient is all rounding: the results differ, and each op is looked at by itself.
LEFT_OUT = """
import torch, torch_spmd as spmd, torch.nn.functional as F
mesh = spmd.make_mesh((4,), ("a",))
torch.manual_seed(0)
spmd.set_coalescing(False)
x = spmd.mark_sharding(torch.randn(8, 16).to("spmd"), mesh, ("a", None)).requires_grad_()
w = torch.randn(16, 16).to("spmd").requires_grad_()
spmd.mark_sharding(w, mesh, (None, "a"))
"""
CASES = {
    "layer_norm": "((F.layer_norm(x @ w, (16,))) ** 2).sum().backward(); print(w.grad.shape)",
    "layer_norm_affine": """
g, b = torch.ones(16).to("spmd").requires_grad_(), torch.zeros(16).to("spmd")
(F.layer_norm(x @ w, (16,), g, b) ** 2).sum().backward(); print(w.grad.shape, g.grad.shape)""",
    "group_norm": "(F.group_norm(x @ w, 4) ** 2).sum().backward(); print(w.grad.shape)",
    "group_norm_of_a_leaf": """
y = (x @ w).detach().requires_grad_()
(F.group_norm(y.view(8, 4, 4), 2) ** 2).sum().backward(); print(y.grad.shape)""",
    "batch_norm": """
(F.batch_norm(x @ w, None, None, training=True) ** 2).sum().backward(); print(w.grad.shape)""",
    "convolution_of_data": """
c = torch.randn(4, 2, 3, 3).to("spmd").requires_grad_()
spmd.mark_sharding(c, mesh, ("a", None, None, None))
y = F.conv2d(x.detach().view(8, 2, 2, 4), c, padding=1)
(F.group_norm(y, 2) ** 2).sum().backward(); print(c.grad.shape)""",
}


@pytest.mark.parametrize("case", CASES)
def test_results_that_an_output_mask_leaves_out(case):
    done = run_script(LEFT_OUT + CASES[case], SPMD_VERIFY="1")
    assert "torch.Size" in done.stdout


TRAINING = """
import sys
sys.path.insert(0, {folder!r})
import random_models
for seed, model in {cases}:
    case = random_models.random_case(seed, model)
    found = random_models.difference(case)
    print(model, found or "agrees")
"""
# A few for every run; the rest of the zoo with `--full-models 1`.
FEW = ("gpt2", "resnet", "vit")


def test_models_of_the_zoo_agree(request, pytestconfig):
    models = sorted(MODELS) if pytestconfig.getoption("full_models") else FEW
    folder = str(request.path.parents[1] / "support")
    script = TRAINING.format(folder=folder, cases=[(0, model) for model in models])
    done = run_script(script, SPMD_VERIFY="1")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line)
    assert said == dict.fromkeys(models, "agrees")
