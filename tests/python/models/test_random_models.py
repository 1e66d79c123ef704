# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters and inputs are sharded at random train as on the CPU.

`--full-models N` tries N more shardings of each model, from seed `--first-program` on.
"""

import pytest
import rotation
import torch
from model_zoo import MODELS
from random_models import OPTIMIZERS, Interruptions, difference, random_case, smaller

import torch_spmd as spmd

pytestmark = pytest.mark.modes("coalesced", "in_turns")

SEEDS = 3


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        more, begin = (metafunc.config.getoption(o) for o in ("full_models", "first_program"))
        # With --parts one of them at each commit.
        seeds = rotation.some(range(SEEDS), SEEDS)
        metafunc.parametrize("seed", [*seeds, *range(begin, begin + more)])


@pytest.mark.parametrize("model", sorted(MODELS))
def test_training_with_random_shardings(model, seed):
    case = random_case(seed, model)
    if difference(case):
        case = smaller(case)
        pytest.fail(f"{difference(case)}\n{case}", pytrace=False)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_programs_that_end_anywhere(model):
    seed = sum(map(ord, model))
    case = random_case(seed, model)
    found = difference(case, lambda: Interruptions(seed, 0.03))
    assert not found, f"{found}\n{case}"


def test_the_fused_optimizer_in_double_precision():
    want = steps("cpu")
    torch.testing.assert_close(steps("spmd"), want, rtol=1e-12, atol=1e-12)


def steps(device):
    p = torch.linspace(-1, 1, 9, dtype=torch.float64).to(device).requires_grad_()
    optimizer = OPTIMIZERS["adamw fused"]([p])
    for _ in range(3):
        p.sin().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return p.detach().cpu()


def test_experts_are_counted_as_on_a_gpu():
    """What transformers does on every device but the CPU."""
    experts = torch.tensor([0, 2, 2, 1], dtype=torch.int32).to("spmd")
    spmd.mark_sharding(experts, spmd.make_mesh((2,), ("x",)), ("x",))
    assert torch.histc(experts, bins=3, min=0, max=3).tolist() == [1, 1, 2]
