# SPDX-License-Identifier: Apache-2.0
"""FSDPv2: a wrapper that marks a module's parameters and outputs over the mesh axis "fsdp"."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torch_spmd.torch_xla import _XLAC
from torch_spmd.torch_xla.distributed import spmd
from torch_spmd.torch_xla.distributed.fsdp._wrapper import Wrapper, check_module
from torch_spmd.torch_xla.distributed.fsdp.wrap import recursive_wrap


def _prepare_spmd_partition_spec(
    param: Tensor, extra_data_axis: str | None = None, shard_maximal: bool = False
) -> tuple[Any, ...]:
    """The spec with dimension 0, or the largest one, over "fsdp", or over the other axis and
    it."""
    if param.dim() == 0:
        return ()
    sizes = list(param.shape)
    sharded = sizes.index(max(sizes)) if shard_maximal else 0
    axes = (extra_data_axis, "fsdp") if extra_data_axis else "fsdp"
    return tuple(axes if d == sharded else None for d in range(len(sizes)))


class SpmdFullyShardedDataParallel(Wrapper):
    """Marks each parameter without a mark: its largest dimension over the axis "fsdp"; and the
    output: dimension 0 over it.

    Args:
        module: is moved to the device.
        mesh: with an axis "fsdp"; the global mesh without it.
        shard_output: `shard_output(output, mesh)` marks the output. By default it is a tensor, or a
            tuple of which the first is one.
        auto_wrap_policy: which modules below get a wrapper of their own, see
            `torch_xla.distributed.fsdp.wrap`.
        auto_wrapper_callable: what wraps them instead of this class.
        extra_data_axis: an axis of the mesh over which batches are sharded, too, and parameters are
            not.

    Errors: RuntimeError for a module that is wrapped or has no `forward`; ValueError without a
    mesh, for a mesh without these axes, and for a policy over modules that are wrapped already.
    """

    wrapped_name = "_orig_module"

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: spmd.Mesh | None = None,
        shard_output: Callable[..., None] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        check_module(module, SpmdFullyShardedDataParallel)
        mesh = mesh if mesh is not None else spmd.get_global_mesh()
        if mesh is None:
            raise ValueError(
                "No mesh is provided and no global mesh is set. Please provide a mesh."
            )
        names = tuple(mesh.axis_names or ())
        if "fsdp" not in names:
            raise ValueError("The mesh must have an axis named 'fsdp'.")
        if extra_data_axis and extra_data_axis not in names:
            raise ValueError(f"The provided {extra_data_axis} axis is not in the mesh.")
        super().__init__()
        if auto_wrap_policy is not None:
            self._wrap_children(
                module,
                auto_wrap_policy,
                auto_wrapper_callable or SpmdFullyShardedDataParallel,
                {"mesh": mesh, "shard_output": shard_output, "extra_data_axis": extra_data_axis},
            )
        self._orig_module = module.to("spmd")
        self._mesh = mesh
        self._extra_data_axis = extra_data_axis
        for parameter in module.parameters():
            if _XLAC._get_xla_sharding_spec(parameter) == "":
                spec = _prepare_spmd_partition_spec(parameter, shard_maximal=True)
                spmd.mark_sharding(parameter, mesh, spec)
        spmd.apply_backward_optimization_barrier(module)
        self._shard_output = shard_output or self._mark_output

    @staticmethod
    def _wrap_children(
        module: nn.Module,
        policy: Callable[..., bool],
        wrapper: Callable[..., nn.Module],
        arguments: dict[str, Any],
    ) -> None:
        for name, child in module.named_modules():
            if isinstance(child, SpmdFullyShardedDataParallel):
                raise ValueError(
                    f"Expected {name} to NOT be SpmdFullyShardedDataParallel if using an "
                    "`auto_wrap_policy`"
                )
        recursive_wrap(module, policy, wrapper, [], [], only_wrap_children=True, **arguments)

    def _mark_output(self, output: Any, mesh: spmd.Mesh) -> None:
        first = output
        if isinstance(output, tuple) and output:
            first = output[0]
            warnings.warn(
                "The output is a tuple, and its first element alone is sharded; give shard_output "
                "to shard others",
                stacklevel=2,
            )
        if not isinstance(first, Tensor):
            raise RuntimeError(
                f"The output type is not supported: {type(output)}. Please provide your own "
                "shard_output callable."
            )
        spec = _prepare_spmd_partition_spec(first, self._extra_data_axis)
        spmd.mark_sharding(first, mesh, spec)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output
