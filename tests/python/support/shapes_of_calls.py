# SPDX-License-Identifier: Apache-2.0
"""Makes every ATen call of the samples of `op_db` and their gradients on the CPU and on the device:
sizes, types and strides of the results must agree.

    python tests/python/support/shapes_of_calls.py          # some calls of every op, in two types
    python tests/python/support/shapes_of_calls.py full     # all of them
"""

import sys
import warnings
from collections import Counter

import rotation
import torch
from layouts import LAYOUTS, form, laid_out, on_device
from op_samples import OPS, evenly, ops_of, samples
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_spmd  # noqa: F401

# Ops that differ, and why.
ELSEWHERE = {
    "aten::_embedding_bag": "a handler of the device's gives what its gradient needs",
    "aten::linalg_lstsq": "the strides of the CPU's come from LAPACK's workspace",
    "aten::linalg_solve_triangular": "transposed complex matrices",
    "aten::unique_consecutive": "empty where the CPU counts what nobody asked for",
    "aten::unique_dim": "the same",
}


class Compared(TorchDispatchMode):
    """A mode that makes each call on the device, too."""

    def __init__(self, at_most):
        super().__init__()
        self.at_most = at_most
        self.calls = Counter()
        self.differences = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.name()
        takes = name.startswith("aten::") and not (func._schema.is_mutable or func.is_view)
        if takes and name not in ELSEWHERE and self.calls[name] < self.at_most:
            self.calls[name] += 1
            self.compare(name, func, args, kwargs, result)
        return result

    def compare(self, name, func, args, kwargs, result):
        if any(getattr(t, "layout", torch.strided) != torch.strided for t in tree_leaves(result)):
            return
        ours, our_kwargs = tree_map(on_device, (args, kwargs))
        if our_kwargs.get("device") is not None:
            our_kwargs["device"] = "spmd"
        try:
            device = forms(func(*ours, **our_kwargs))
        except RuntimeError as error:
            if "refers to a single memory location" in str(error):  # the CPU does not look
                return
            device = f"{type(error).__name__}: {error}"
        if device != forms(result):
            tensors = forms((args, kwargs))
            self.differences[name] = f"of {tensors}: {device}, the CPU has {forms(result)}"


def forms(tree):
    return [form(t) for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def with_gradient(function, tree):
    args, kwargs = tree
    tensors = [
        [t for t in tree_leaves(part) if isinstance(t, torch.Tensor) and t.requires_grad]
        for part in (function(*args, **kwargs), tree)
    ]
    outs, ins = tensors
    if outs and ins:
        torch.autograd.grad(outs, ins, [torch.ones_like(t) for t in outs], allow_unused=True)


def compare_ops(compared, dtype, number):
    for name in ops_of(dtype):
        if not rotation.is_chosen(name):
            continue
        layout = list(LAYOUTS)[rotation.place(name, len(LAYOUTS))]
        for sample in evenly(samples(OPS[name], dtype), number):
            tree = ((sample.input, *sample.args), dict(sample.kwargs))
            for laid in (tree, tree_map(lambda t, at=layout: laid_out(t, at), tree)):
                with compared:
                    try:
                        with_gradient(OPS[name].op, laid)
                    except Exception:  # the CPU refuses it, or a layout
                        continue


def compare(full):
    compared = Compared(at_most=10_000 if full else 6)
    types = ("float32", "bfloat16", "complex64", "int64", "bool")
    for dtype in types if full else types[:2]:
        compare_ops(compared, dtype, number=10_000 if full else 2)
    return compared


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compared = compare(full=sys.argv[1:] == ["full"])
    for op, difference in sorted(compared.differences.items()):
        print(f"{op}: {difference}")
    print(f"{len(compared.calls)} ops: {' '.join(sorted(compared.calls))}")
