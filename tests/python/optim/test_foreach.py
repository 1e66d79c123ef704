# SPDX-License-Identifier: Apache-2.0
"""Ops on lists of tensors, of which optimizers consist: what PyTorch's kernels on a device take."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torch_spmd as spmd

UNARY = (
    *("abs", "ceil", "cos", "exp", "floor", "log1p", "neg", "reciprocal", "round", "rsqrt"),
    *("sigmoid", "sign", "sqrt", "tanh", "trunc"),
)
# The arguments behind the list; Same stands for another list like it.
Same = object()
WITH_MORE = (
    *((name, (2.0,)) for name in ("add", "sub", "mul", "div", "pow", "clamp_min", "maximum")),
    *((name, ([2.0, 3.0, 4.0, 5.0],)) for name in ("add", "sub", "mul", "div", "pow", "minimum")),
    *((name, (Same,)) for name in ("add", "sub", "mul", "div", "pow", "maximum", "clamp_max")),
    *((name, (torch.tensor(2.0),)) for name in ("add", "mul", "div")),
    *((name, (Same, Same, 0.5)) for name in ("addcmul", "addcdiv")),
    *((name, (Same, Same, [1.0, 2.0, 3.0, 4.0])) for name in ("addcmul", "addcdiv")),
    *(("lerp", (Same, weight)) for weight in (0.25, Same)),
)


def on_two_devices(mesh, fill):
    """A matrix of the device and one of the CPU, a number of each."""
    drawn = torch.Generator().manual_seed(fill)
    matrix, host = (torch.rand(8, 4, generator=drawn) + 0.5 for _ in range(2))
    number, host_number = (torch.rand((), generator=drawn) + 0.5 for _ in range(2))
    sharded = spmd.mark_sharding(matrix.to("spmd"), mesh, ("x", None))
    return [sharded, host_number, host, number.to("spmd")]


def on_host(given):
    return [getattr(t, "cpu", lambda t=t: t)() for t in given] if isinstance(given, list) else given


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    "name, more", [*((name, ()) for name in UNARY), *WITH_MORE], ids=lambda v: str(v)[:20]
)
def test_lists_with_tensors_of_the_cpu(name, more, in_place):
    mesh = spmd.make_mesh((4,), ("x",))
    lists = [on_two_devices(mesh, 0)]
    for fill, item in enumerate(more, 1):
        lists.append(on_two_devices(mesh, fill) if item is Same else item)
    op = getattr(torch, f"_foreach_{name}{'_' if in_place else ''}")
    expected = [on_host(given) for given in lists]
    made, wanted = op(*lists), op(*expected)
    made, wanted = (lists[0], expected[0]) if in_place else (made, wanted)
    for found, given, value in zip(made, lists[0], wanted, strict=True):
        assert found.device == given.device
        torch.testing.assert_close(found.cpu(), value)
    if in_place:
        assert spmd.sharding_of(made[0]).spec == spmd.P("x", None)


@pytest.mark.parametrize("first", [0, 1])
def test_a_number_of_the_cpu_for_a_tensor_of_the_device(first):
    matrix = torch.arange(6.0).view(2, 3).to("spmd")
    for _ in range(3):  # the second time by what is known of the first
        lists = [[matrix, torch.tensor(2.0)], [torch.tensor(3.0), torch.tensor(4.0)]]
        order = slice(None, None, -1) if first else slice(None)
        made = torch._foreach_mul(lists[0][order], lists[1][order])[order]
        assert made[0].tolist() == [[0, 3, 6], [9, 12, 15]] and made[1].item() == 8
        assert [t.device.type for t in made] == ["spmd", "cpu"]


def test_a_tensor_of_the_device_for_one_of_the_cpu_is_refused():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch._foreach_add_(
            [torch.ones(2), torch.ones(2, device="spmd")], [torch.ones(2, device="spmd")] * 2
        )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("value", [1, [2, 3], 1.5])
def test_quotients_of_whole_numbers_are_rounded_towards_zero(dtype, value):
    signs = torch.tensor([1, -1, 1, -1]) if dtype.is_signed else torch.ones(4, dtype=torch.int64)
    hosts = [[torch.tensor([7, 8, 9, 10]).to(dtype) for _ in range(2)]]
    hosts += [
        [(torch.tensor([5, 7, 8, 3]) * signs).to(dtype), torch.tensor([1, 2, 3, 4]).to(dtype)]
    ]
    hosts += [[torch.tensor([2, 3, 3, 2]).to(dtype) for _ in range(2)]]
    lists = [[t.to("spmd") for t in each] for each in hosts]
    factors = value if isinstance(value, list) else [int(value)] * 2
    expected = [
        (s + f * torch.div(n, d, rounding_mode="trunc")).to(dtype)
        for s, n, d, f in zip(*hosts, factors)
    ]
    if isinstance(value, list):
        made = torch._foreach_addcdiv(*lists, value)
        torch._foreach_addcdiv_(*lists, value)
    else:
        made = torch._foreach_addcdiv(*lists, value=value)
        torch._foreach_addcdiv_(*lists, value=value)
    for found in (made, lists[0]):
        assert [t.cpu().tolist() for t in found] == [t.tolist() for t in expected]
        assert all(t.dtype == dtype for t in found)


def test_whole_numbers_that_are_divided_by_others_are_refused():
    ones = [torch.ones(2, dtype=torch.int64, device="spmd")]
    for denominator in (torch.ones((), dtype=torch.int64, device="spmd"), torch.ones(2).long()):
        with pytest.raises(RuntimeError, match="Integer division with addcdiv"):
            torch._foreach_addcdiv_(ones, ones, [denominator])


@pytest.mark.parametrize("average", [None, get_ema_multi_avg_fn(0.75)])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_averages_of_models_with_their_buffers(kind, average):
    """Those of running statistics, and of whole numbers that count batches."""

    def run(device):
        torch.manual_seed(0)
        norm = kind(4, track_running_stats=True, affine=True)
        model = nn.Sequential(nn.Conv1d(3, 4, 1), norm).to(device)
        averaged = AveragedModel(model, use_buffers=True, multi_avg_fn=average)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        counts = []
        for step in range(5):
            x = torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(step))
            model(x.to(device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            averaged.update_parameters(model)
            counts.append(averaged.module[1].num_batches_tracked.item())
        return averaged, counts

    (mine, counts), (theirs, expected) = run("spmd"), run("cpu")
    assert counts == expected
    for found, value in zip(mine.state_dict().values(), theirs.state_dict().values()):
        assert found.dtype == value.dtype
        torch.testing.assert_close(found.cpu(), value, rtol=1e-4, atol=1e-5)
