# SPDX-License-Identifier: Apache-2.0
"""`XlaFullyShardedDataParallel`: FSDP of many processes there, here over all devices of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import torch_spmd as spmd
from torch_spmd.torch_xla.distributed.fsdp._wrapper import Wrapper, check_module
from torch_spmd.torch_xla.distributed.fsdp.wrap import recursive_wrap

_NO_EFFECT = {
    "reshard_after_forward",
    "flatten_parameters",
    "execute_sharding_on_init",
    "optimization_barrier_in_forward",
    "optimization_barrier_in_backward",
    "sync_on_finalization",
    "disable_reshard_on_root",
    "buffer_dtype",
    "fp32_reduce_scatter",
    "shard_param_on_dim_0",
    "pin_layout_in_collective_ops",
    "reduce_scatter_bucket_size_mb",
    "coalesce_all_gather_ops",
}
_GROUPS = {"sharding_groups", "sharding_rank", "sharding_world_size"}


class XlaFullyShardedDataParallel(Wrapper):
    """`spmd.fsdp` over all devices, in a wrapper with torch_xla's names.

    There is one process, which has the whole batch and all devices: parameters are sharded over the
    devices, and so is dimension 0 of the inputs. Values are those of a world of one process. The
    parameters that an optimizer sees, and `state_dict`, are whole.

    Args:
        module: is moved to the device.
        compute_dtype: parameters are cast to it before they are gathered, and inputs are, too.
        auto_wrap_policy: which modules below get a wrapper of their own, see
            `torch_xla.distributed.fsdp.wrap`.
        auto_wrapper_callable: what wraps them instead of this class.
        param_init_fn: is called with each module whose own parameters are on `meta`, and gives them
            values; without it `to_empty` and `reset_parameters` do.
        options: torch_xla's others, without effect: when weights are gathered again and where
            barriers are follows from memory. Groups of devices are refused: use a mesh.

    Errors: RuntimeError for a module that is wrapped, or has no `forward`; TypeError for an unknown
    option; ValueError for groups of devices; as `spmd.fsdp`.
    """

    wrapped_name = "_fsdp_wrapped_module"

    def __init__(
        self,
        module: nn.Module,
        *,
        compute_dtype: torch.dtype | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        **options: Any,
    ) -> None:
        check_module(module, XlaFullyShardedDataParallel)
        _check_options(options)
        super().__init__()
        if auto_wrap_policy is not None:
            arguments = {"compute_dtype": compute_dtype, "param_init_fn": param_init_fn, **options}
            wrapper = auto_wrapper_callable or XlaFullyShardedDataParallel
            recursive_wrap(
                module, auto_wrap_policy, wrapper, [], [], only_wrap_children=True, **arguments
            )
        _materialize(module, param_init_fn)
        self._fsdp_wrapped_module = _Inner(module.to("spmd"))
        mesh = spmd.make_mesh((spmd.config.device_count(),), ("fsdp",))
        spmd.fsdp(module, mesh, "fsdp", param_dtype=compute_dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, groups: Any = None
    ) -> Tensor:
        """`torch.nn.utils.clip_grad_norm_` of all parameters: the norm is that of whole
        gradients."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of the next backward passes are added; they are reduced when they are used."""
        yield

    def get_shard_metadata(self) -> dict[str, Any]:
        """What torch_xla's checkpoints need to put shards together: nothing, as there is one part
        of the checkpoint, with whole parameters."""
        empty: dict[str, Any] = {}
        return {
            "shard_info": empty,
            "flatten_info": empty,
            "buffer_info": empty,
            "world_size": 1,
            "rank": 0,
        }


class _Inner(Wrapper):
    """The wrapper in which torch_xla flattens parameters: scripts ask for `model.module.module`."""

    wrapped_name = "_fpw_module"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._fpw_module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def _check_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _GROUPS and value is not None:
            raise ValueError(
                f"XlaFullyShardedDataParallel: {name} describes groups of processes, and here one "
                "process has all devices; use spmd.fsdp(model, mesh, axis, replicate) over a mesh "
                "with more axes, or SpmdFullyShardedDataParallel"
            )
        if name not in _NO_EFFECT | _GROUPS and not name.startswith("_"):
            raise TypeError(f"XlaFullyShardedDataParallel: there is no option {name!r}")


def _materialize(module: nn.Module, init: Callable[[nn.Module], None] | None) -> None:
    for child in module.modules():
        own = [*child.parameters(recurse=False), *child.buffers(recurse=False)]
        if any(t.is_meta for t in own):
            (init or _with_own_values)(child)


def _with_own_values(module: Any) -> None:
    module.to_empty(device="spmd", recurse=False)
    module.reset_parameters()
