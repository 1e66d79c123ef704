# SPDX-License-Identifier: Apache-2.0
"""Ops that single calls do not reach: a few lines each, called as `op_calls` are."""

import torch
from op_call import call
from op_calls import X, Y


def bits(x, dtype):
    return x.view(dtype) + 1


def negative_through_bits(x, dtype):
    twice = 2 * x
    twice.view(dtype).neg_()
    return twice


def rows_one_by_one(x):
    """Steps that differ in the row only: from the second one on, programs take it as a scalar."""
    return [(2 * x[k]).cpu() for k in range(4)]


def write_rows_one_by_one(x, rows):
    for k in range(4):
        x[k] = rows[k] + 1
        x.sum().cpu()
    return x


def copy_of_what_is_kept(x, y):
    twice = 2 * y
    x.copy_(twice)
    return x + 1, twice


def tables(x):
    """Created on the device, not on the host, and used with sharded tensors."""
    at = {"device": x.device}
    return (
        x + torch.eye(4, **at)[0],
        x * torch.linspace(-1, 2, 4, **at),
        x * torch.logspace(0, 2, 6, base=2, **at)[:, None],
        torch.eye(3, 5, dtype=torch.int64, **at),
        torch.linspace(0, 9, 5, dtype=torch.int32, **at),
        torch.ops.aten.range(1, 6, **at) + x[:, 0],
        torch.ops.aten.range.step(1, 6, 2, dtype=torch.int64, **at),
        x[tuple(torch.tril_indices(6, 4, -1, **at))],
        x[tuple(torch.triu_indices(6, 4, 1, **at))],
    )


def windows(x):
    """One for each row, by every overload, since Python's functions call some of them only."""
    rows, at = len(x), {"device": x.device}
    of = torch.ops.aten
    return (
        *(x * of.bartlett_window(rows, *periodic, **at)[:, None] for periodic in ((), (False,))),
        *(x * of.blackman_window(rows, *periodic, **at)[:, None] for periodic in ((), (False,))),
        *(x * of.hann_window(rows, *periodic, **at)[:, None] for periodic in ((), (False,))),
        *(
            x * of.hamming_window(rows, *options, **at)[:, None]
            for options in ((), (False,), (True, 0.5), (True, 0.5, 0.4))
        ),
        *(
            x * of.kaiser_window(rows, *options, **at)[:, None]
            for options in ((), (False,), (True, 5.0))
        ),
        x * of.fft_fftfreq(rows, 0.5, **at)[:, None],
        x * of.fft_rfftfreq(2 * rows - 2, **at)[:, None],
    )


def experts(tokens, weights):
    ends = torch.tensor([2, 2, 8], dtype=torch.int32, device=tokens.device)
    product = torch.nn.functional.grouped_mm(tokens, weights, offs=ends)
    return product, torch.nn.functional.grouped_mm(tokens.t(), product, offs=ends)


def eight_bits(x, y):
    narrow = [t.to(torch.float8_e4m3fn) for t in (x, y)]
    scales = [torch.full((), scale, device=x.device) for scale in (0.5, 2.0)]
    return torch._scaled_mm(narrow[0], narrow[1].t(), *scales, out_dtype=torch.float32)


def adams_default(x, y, **options):
    optimizer = torch.optim.Adam([torch.nn.Parameter(x)], weight_decay=0.1, **options)
    (p,) = optimizer.param_groups[0]["params"]
    for grad in (y, y.exp()):
        p.grad = grad
        optimizer.step()
    return [p.detach(), *optimizer.state[p].values()]


TOKENS = torch.arange(8 * 16.0).reshape(8, 16).sin()
EXPERTS = torch.arange(3 * 16 * 8.0).reshape(3, 16, 8).cos()


def permuted(x, dim=0):
    """As devices pass on their shards (`ppermute`); nobody sends to the first one."""
    return torch.ops.spmd.reorder(x, dim, [-1, *range(2, x.shape[dim]), 0])


PROGRAMS = [
    call(permuted, X),
    call(permuted, X, dim=1),
    *(call(bits, X, dtype) for dtype in (torch.int32, torch.int16, torch.int64)),
    *(call(negative_through_bits, X, dtype) for dtype in (torch.int32, torch.int16)),
    call(rows_one_by_one, X),
    call(rows_one_by_one, X, dim=1),
    call(write_rows_one_by_one, X, Y),
    call(write_rows_one_by_one, X, Y, dim=1),
    call(copy_of_what_is_kept, X, Y),
    call(tables, X),
    call(tables, X, dim=1),
    call(windows, X),
    call(experts, TOKENS, EXPERTS),
    call(experts, TOKENS, EXPERTS, dim=1),
    call(eight_bits, TOKENS, TOKENS),
    call(adams_default, X, Y),
    call(adams_default, X, Y, dim=1, amsgrad=True, maximize=True),
    call(adams_default, X, Y, decoupled_weight_decay=True),
]
