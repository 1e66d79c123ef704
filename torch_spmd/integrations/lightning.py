# SPDX-License-Identifier: Apache-2.0
"""Lightning on the device: `Trainer(strategy=Strategy(mesh, batch="data"))`, and
`Fabric(strategy=FabricStrategy(mesh, batch="data"))`.

`import torch_spmd.integrations.lightning` needs the package `lightning`; `import torch_spmd` does
not import it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from lightning.fabric import strategies as fabric_strategies
from lightning.fabric.plugins import precision as fabric_precision
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import accelerators, strategies
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch import Tensor, nn

from torch_spmd import _C, _arguments
from torch_spmd._compat import pytree
from torch_spmd.integrations import trainers
from torch_spmd.processes import local_data
from torch_spmd.sharding.global_mesh import mesh_or_global
from torch_spmd.sharding.marks import mark_all
from torch_spmd.sharding.mesh import Mesh, checked_axis
from torch_spmd.sharding.spec import PartitionSpec

__all__ = ["Accelerator", "FabricStrategy", "Strategy"]

DEVICE = "spmd"


class Accelerator(accelerators.Accelerator):
    """The one logical device `spmd`, as Lightning sees it. `Strategy` brings it along.

    Example:
        >>> from torch_spmd.integrations.lightning import Accelerator
        >>> Accelerator.get_parallel_devices(Accelerator.parse_devices("auto"))
        [device(type='spmd')]
    """

    def setup_device(self, device: torch.device) -> None:
        """Errors: ValueError if it is another device."""
        if device.type != DEVICE:
            raise ValueError(f"Accelerator: the device must be 'spmd'; got {str(device)!r}")

    def teardown(self) -> None:
        pass

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """`torch.accelerator.memory_stats`, in bytes."""
        return dict(torch.accelerator.memory_stats())

    @staticmethod
    def parse_devices(devices: Any) -> int:
        """Errors: ValueError for more than the one logical device."""
        if devices in (1, "1", [0], "auto", -1, "-1"):
            return 1
        raise ValueError(
            f"Accelerator: devices is {_arguments.shown(devices)}, but there is one logical "
            "device, and the devices of a mesh are its parts; leave `devices` out and give "
            'Strategy(mesh, batch="data")'
        )

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(DEVICE)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return DEVICE


class _OneDevice:
    """What the strategies of Trainer and of Fabric have in common: one logical device, a mesh, and
    the axes over which batches are sharded; in a job, processes that do the same."""

    def _read(self, mesh: Mesh | None, batch: Any, shard: Any) -> None:
        caller = type(self).__name__
        if shard is not None and not callable(shard):
            raise TypeError(
                f"{caller}: shard must be a function of the module; got {_arguments.shown(shard)}"
            )
        self.shard = shard
        self.axes = (batch,) if isinstance(batch, str) else batch
        if self.axes is not None:
            mesh = mesh_or_global(caller, mesh)
            given = _arguments.items(caller, "batch", self.axes, "an axis or a tuple of axes")
            self.axes = tuple(checked_axis(caller, "batch", mesh, axis) for axis in given)
        self.mesh = mesh

    def _marked(self, batch: Any) -> Any:
        """The batch, its tensors on the device sharded over the axes of `batch`."""
        if self.axes is not None and self.mesh is not None:
            tensors = [t for t in pytree.tree_leaves(batch) if isinstance(t, Tensor) and t.dim()]
            mark_all(
                self.mesh,
                [
                    (
                        f"{type(self).__name__}: a batch",
                        t,
                        PartitionSpec(self.axes, *[None] * (t.dim() - 1)),
                    )
                    for t in tensors
                    if t.device.type == DEVICE
                ],
            )
        return batch

    @property
    def is_global_zero(self) -> bool:
        return local_data.process_index() == 0

    def barrier(self, name: str | None = None) -> None:
        if local_data.process_count() > 1:
            _C.say("", f"waits in Lightning ({name or 'barrier'})")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """What process `src` gives, which all of them get."""
        if local_data.process_count() == 1:
            return obj
        mine = pickle.dumps(obj) if local_data.process_index() == src else b""
        return pickle.loads(_C.gather_bytes(mine, "broadcasts in Lightning")[src])


class Strategy(_OneDevice, strategies.SingleDeviceStrategy):
    """Trains on `spmd`: `Trainer(strategy=Strategy(mesh, batch="data"))`.

    Lightning sees one process with one device, so the loader gives global batches, nothing is
    wrapped, and metrics are of the global batch. In a job of several processes every process does
    so; process 0 alone shows progress, logs and writes checkpoints, of whole tensors.
    `precision="bf16-mixed"` and `"16-mixed"` work here and as arguments of `Trainer`.

    Args:
        mesh: the mesh; None means the global one, where `batch` is given.
        batch: the axis, or the axes, over which the first dimension of every tensor of a batch is
            sharded; None leaves batches unmarked.
        shard: called with the module when it is on the device, before its optimizers are made:
            `lambda module: spmd.fsdp(module, mesh)`. A module that is marked already stays so.
        precision: as `Trainer(precision=…)`; None leaves that to `Trainer`.
        checkpoint_io: as in Lightning's strategies.

    Errors:
        TypeError: an argument of another kind.
        ValueError: an axis that the mesh does not have.

    Example:
        >>> import torch_spmd as spmd
        >>> from lightning.pytorch import Trainer
        >>> from torch_spmd.integrations.lightning import Strategy
        >>> mesh = spmd.make_mesh((8,), ("data",))
        >>> strategy = Strategy(mesh, batch="data")
        >>> strategy.root_device
        device(type='spmd')
        >>> trainer = Trainer(strategy=strategy)  # doctest: +SKIP
    """

    strategy_name = DEVICE

    def __init__(
        self,
        mesh: Mesh | None = None,
        batch: str | tuple[str, ...] | None = None,
        *,
        shard: Callable[[nn.Module], Any] | None = None,
        precision: Literal["16-mixed", "bf16-mixed"] | None = None,
        checkpoint_io: Any = None,
    ) -> None:
        self._read(mesh, batch, shard)
        super().__init__(
            DEVICE,
            Accelerator(),
            checkpoint_io,
            None if precision is None else MixedPrecision(precision, DEVICE),
        )

    @property
    def precision_plugin(self) -> Precision:
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        # Trainer makes one for "cuda" for every accelerator but the CPU.
        if isinstance(plugin, MixedPrecision) and plugin.device != DEVICE:
            precision: Any = plugin.precision
            plugin = MixedPrecision(precision, DEVICE)
        self._precision_plugin = plugin

    def setup_environment(self) -> None:
        super().setup_environment()
        self.global_rank = self.local_rank = local_data.process_index()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """All processes read the tensors, and process 0 writes them."""
        super().save_checkpoint(trainers.on_host(checkpoint), filepath, storage_options)
        self.barrier("save_checkpoint")

    def model_to_device(self) -> None:
        super().model_to_device()
        if self.shard is not None and self.model is not None:
            self.shard(self.model)

    def teardown(self) -> None:
        """The module and its marks stay on the device; Lightning would move them to the host."""
        self.precision_plugin.teardown()
        self.checkpoint_io.teardown()

    def batch_to_device(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """The batch on the device, its tensors sharded over the axes of `batch`."""
        return self._marked(super().batch_to_device(batch, device, dataloader_idx))


class FabricStrategy(_OneDevice, fabric_strategies.SingleDeviceStrategy):
    """Trains on `spmd`: `Fabric(strategy=FabricStrategy(mesh, batch="data"))`.

    The arguments are those of `Strategy`; `shard` is called with each module that Fabric sets up.

    Example:
        >>> import torch, torch_spmd as spmd
        >>> from lightning import Fabric
        >>> from torch_spmd.integrations.lightning import FabricStrategy
        >>> mesh = spmd.make_mesh((8,), ("data",))
        >>> fabric = Fabric(strategy=FabricStrategy(mesh, batch="data"))
        >>> fabric.setup(torch.nn.Linear(4, 4)).weight.device
        device(type='spmd', index=0)
    """

    def __init__(
        self,
        mesh: Mesh | None = None,
        batch: str | tuple[str, ...] | None = None,
        *,
        shard: Callable[[nn.Module], Any] | None = None,
        precision: Literal["16-mixed", "bf16-mixed"] | None = None,
        checkpoint_io: Any = None,
    ) -> None:
        self._read(mesh, batch, shard)
        mixed = None if precision is None else fabric_precision.MixedPrecision(precision, DEVICE)
        super().__init__(DEVICE, Accelerator(), checkpoint_io, mixed)
        self.global_rank = self.local_rank = local_data.process_index()

    @property
    def precision(self) -> Any:
        return super().precision

    @precision.setter
    def precision(self, plugin: Any) -> None:
        # Fabric makes one for "cuda" for every accelerator but the CPU.
        if isinstance(plugin, fabric_precision.MixedPrecision) and plugin.device != DEVICE:
            plugin = fabric_precision.MixedPrecision(plugin.precision, DEVICE)
        self._precision = plugin

    def module_to_device(self, module: nn.Module) -> None:
        super().module_to_device(module)
        if self.shard is not None:
            self.shard(module)

    def process_dataloader(self, dataloader: Any) -> Any:
        """A loader whose batches are on the device, and sharded over the axes of `batch`."""
        return _Batches(dataloader, self)

    def save_checkpoint(self, path: Any, state: dict[str, Any], *args: Any, **options: Any) -> None:
        """All processes read the tensors, and process 0 writes them."""
        whole = {
            key: trainers.on_host(value.state_dict() if hasattr(value, "state_dict") else value)
            for key, value in state.items()
        }
        super().save_checkpoint(path, whole, *args, **options)
        self.barrier("save_checkpoint")


class _Batches:
    """A loader with the attributes of another, whose batches it moves and marks."""

    def __init__(self, loader: Any, strategy: FabricStrategy) -> None:
        vars(self).update(vars(loader))
        self._loader, self._strategy = loader, strategy

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            moved = move_data_to_device(batch, self._strategy.root_device)
            yield self._strategy._marked(moved)
