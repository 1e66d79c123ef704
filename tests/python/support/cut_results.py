# SPDX-License-Identifier: Apache-2.0
"""Functions of tensors on the CPU and on `spmd` with the tensors sharded: outputs and gradients."""

import itertools

import torch

import torch_spmd as spmd

MESHES = [(2,), (3,), (4,), (2, 2), (2, 3)]


def make_mesh(sizes):
    return spmd.make_mesh(sizes, ("x", "y")[: len(sizes)])


def values(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def results(function, tensors, sizes=None, specs=()):
    """Outputs and gradients of `function`, on the CPU or, with a mesh, on `spmd`."""
    device = "spmd" if sizes else "cpu"
    copies = [t.clone().to(device) for t in tensors]
    for t, spec in zip(copies, specs):
        if spec is not None:
            spmd.mark_sharding(t, make_mesh(sizes), spec)
    leaves = [t.requires_grad_() for t in copies if t.is_floating_point()]
    output = function(*copies)
    outputs = output if isinstance(output, tuple) else (output,)
    loss = sum((o * (o.detach().cos() + 1)).sum() for o in outputs if o.requires_grad)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    gradients = [t.grad for t in leaves if t.grad is not None]
    return [t.detach().cpu() for t in (*outputs, *gradients, *copies)]


def check(function, tensors, cuts, **tolerances):
    """Whether all shardings, (mesh, specs), give what the CPU gives."""
    want = results(function, tensors)
    for sizes, specs in cuts:
        got = results(function, tensors, sizes, specs)
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert_close(a, b, f"{sizes} {specs}", **tolerances)


def assert_close(a, b, where, **tolerances):
    """As torch.testing.assert_close, whose message also says where, and shows both tensors."""
    torch.testing.assert_close(a, b, msg=lambda m: f"{where}: {a}, not {b}\n{m}", **tolerances)


def each_dim(tensor, sizes=MESHES, also=()):
    """Every dimension of the first tensor over x, and pairs of dimensions over x and y."""
    rank = tensor.dim()
    for mesh in sizes:
        for d in range(rank):
            yield mesh, (tuple("x" if i == d else None for i in range(rank)), *also)
        if len(mesh) == 2:
            for d, e in itertools.permutations(range(rank), 2):
                spec = tuple({d: "x", e: "y"}.get(i) for i in range(rank))
                yield mesh, (spec, *also)
