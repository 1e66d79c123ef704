# SPDX-License-Identifier: Apache-2.0
"""What both FSDP wrappers are: a module around another one."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from torch import nn


class Wrapper(nn.Module):
    """Has the attributes and items of the module that it wraps."""

    wrapped_name: ClassVar[str]  # the name of that child, which is a part of state_dict's keys

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return cast(nn.Module, super().__getattr__(self.wrapped_name))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__(self.wrapped_name), name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]


def check_module(module: nn.Module, wrapper: type[Wrapper]) -> None:
    """Errors: RuntimeError for a module that is a `wrapper`, or has no `forward`."""
    if isinstance(module, wrapper):
        raise RuntimeError(
            "Cannot wrap a module that is already wrapped with FSDP; wrap inner modules before "
            "outer ones"
        )
    forward = getattr(module, "forward", None)
    if getattr(forward, "__func__", None) is nn.Module.forward or forward is None:
        raise RuntimeError(
            "The module wrapped by FSDP *must define a `forward` method and call it during the "
            "module's forward pass*: wrap the modules of an nn.ModuleList or nn.ModuleDict instead"
        )
