# SPDX-License-Identifier: Apache-2.0
"""Which children of a module are wrapped: PyTorch's policies, under torch_xla's names and with its
argument names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wraps every module."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wraps the modules for which `lambda_fn` returns True."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    transformer_layer_cls: Iterable[type[nn.Module]],
) -> bool:
    """Wraps the modules of these classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Wraps modules with so many parameters that no wrapped child has; not inside of the first
    classes, and not modules of the second."""
    leaves = {nn.MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    excluded = {nn.ModuleList, nn.ModuleDict}
    excluded = excluded if exclude_wrap_modules is None else exclude_wrap_modules
    large = unwrapped_params >= min_num_params
    return large and not isinstance(module, tuple(leaves if recurse else excluded))


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Iterable[nn.Module],
    ignored_params: Iterable[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps the modules below `module` that the policy names, innermost first.

    Returns the module, or its wrapper, and the number of parameters that are wrapped.

    Errors: AssertionError if a module is wrapped already.
    """
    ignored = set(ignored_modules)
    if isinstance(wrapper_cls, type):
        for child in module.modules():
            assert child in ignored or not isinstance(child, wrapper_cls), (
                "a module below is wrapped already"
            )
    skipped = set(ignored_params)
    whole = sum(p.numel() for p in module.parameters() if p not in skipped)
    policy = functools.partial(auto_wrap_policy, module=module)
    if not policy(recurse=True, unwrapped_params=whole):
        return module, 0
    wrapped = 0
    for name, child in module.named_children():
        if child not in ignored:
            new_child, count = recursive_wrap(
                child, auto_wrap_policy, wrapper_cls, ignored, skipped, **kwargs
            )
            setattr(module, name, new_child)
            wrapped += count
    if not only_wrap_children and policy(recurse=False, unwrapped_params=whole - wrapped):
        overrides = getattr(module, "_wrap_overrides", {})
        return wrapper_cls(module, **{**kwargs, **overrides}), whole
    return module, wrapped
