# SPDX-License-Identifier: Apache-2.0
"""Elements that nothing has written, and whether tensors have the same memory."""

import pytest
import torch

DTYPES = [
    *(torch.float32, torch.float64, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.uint8, torch.bool),
]

MAKERS = {
    "empty": lambda d, t: torch.empty(3, 2, dtype=t, device=d),
    "empty_like": lambda d, t: torch.empty_like(torch.ones(2, 3, dtype=t, device=d)),
    "empty_strided": lambda d, t: torch.empty_strided((2, 3), (1, 2), dtype=t, device=d),
    "empty_permuted": lambda d, t: torch.empty_permuted((2, 3), (1, 0), dtype=t, device=d),
    "new_empty": lambda d, t: torch.ones(2, dtype=t, device=d).new_empty(4),
    "new_empty_strided": lambda d, t: torch.ones(2, dtype=t, device=d).new_empty_strided(
        (2,), (1,)
    ),
    "channels_last": lambda d, t: torch.empty(
        1, 2, 2, 2, dtype=t, device=d, memory_format=torch.channels_last
    ),
    "nothing": lambda d, t: torch.empty(0, dtype=t, device=d),
    "resize_": lambda d, t: torch.ones(2, dtype=t, device=d).resize_(5),
    "resize_ of nothing": lambda d, t: torch.ones(0, dtype=t, device=d).resize_(2, 2),
    "resize_ to less": lambda d, t: torch.ones(4, dtype=t, device=d).resize_(2).resize_(3),
    "resize_as_": lambda d, t: torch.ones(2, dtype=t, device=d).resize_as_(
        torch.ones(2, 3, dtype=t, device=d)
    ),
    "to_empty": lambda d, t: (
        torch.nn.Linear(2, 2, dtype=t if t.is_floating_point else None).to_empty(device=d).weight
    ),
}


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("maker", MAKERS)
def test_it_is_filled_under_deterministic_algorithms(maker, dtype, deterministic):
    got, want = (MAKERS[maker](device, dtype) for device in ("spmd", "cpu"))
    assert got.dtype == want.dtype and got.stride() == want.stride()
    torch.testing.assert_close(got.detach().cpu(), want.detach(), equal_nan=True)


def test_it_is_not_filled_where_that_is_turned_off(deterministic):
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        assert not torch.empty(3, device="spmd").isnan().any()
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_which_tensors_have_the_same_memory():
    for device in ("cpu", "spmd"):
        t = torch.randn(4, 4, device=device)
        same = [t, t.detach(), t.view(4, 4), t[:], t.T.T, torch.nn.Parameter(t)]
        assert all(t.is_set_to(other) and other.is_set_to(t) for other in same)
        others = [t.clone(), t + 0, t.T, t[1:], t.view(16), t.view(torch.int32)[:2]]
        assert not any(t.is_set_to(other) for other in others)
        assert torch.empty(0, device=device).set_(t).is_set_to(t)
