# SPDX-License-Identifier: Apache-2.0
"""The door to what PyTorch keeps private: the one place in Python that names it.

Each symbol has a line: what for, what would replace it, what happens when it is missing.
`tools/check_private.py` fails on a private symbol elsewhere. What PyTorch does not have raises
where it is used, and `python -m torch_spmd.info` lists it. What is imported by name must exist.
"""

from __future__ import annotations

import functools
import importlib
import types
from typing import Any, NamedTuple

import torch
import torch._meta_registrations  # strides of fakes; none; import fails
import torch._tensor_str
import torch.jit._recursive
import torch.utils._device  # the functions that take a device; none; import fails
import torch.utils._pytree  # arguments in containers; torch.utils.pytree, in part; import fails
from torch import Tensor, nn
from torch._ops import OpOverload as OpOverload  # an op with its types; none; import fails
from torch._prims_common import (  # strides of fakes; none; import fails
    compute_elementwise_output_strides as compute_elementwise_output_strides,
)
from torch._prims_common import suggest_memory_format as suggest_memory_format
from torch._subclasses.fake_tensor import (  # strides of fakes; none; import fails
    FakeTensor as FakeTensor,
)
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import (
    in_kernel_invocation_manager as in_kernel_invocation_manager,
)
from torch.utils._python_dispatch import (  # ops of a pipeline's stages; none; import fails
    TorchDispatchMode as TorchDispatchMode,
)

meta_registrations = torch._meta_registrations
pytree = torch.utils._pytree

missing: dict[str, str] = {}
"""What happens without it, by the symbol that this PyTorch does not have."""


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"torch_spmd: this needs {self._name}, which PyTorch {torch.__version__} does not have"
        )

    __call__ = __enter__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


class _Why(NamedTuple):
    what_for: str
    instead: str
    without: str


def _room(name: str, table: dict[str, _Why]) -> Any:
    """Symbols of the private module of that name."""
    try:
        module: Any = importlib.import_module(name)
    except ImportError:
        module = None
    found = {}
    for symbol, why in table.items():
        found[symbol] = getattr(module, symbol, None)
        if found[symbol] is None:
            found[symbol] = _Missing(f"{name}.{symbol}")
            missing[f"{name}.{symbol}"] = why.without
    return types.SimpleNamespace(**found)


_AXES = "torch.vmap and autograd.Function.vmap, which name an axis by its depth"
_REGIONS = "shard_map and remat in it raise"
_WRAPPED = "tensors under torch.func are refused where they were looked through"
_COLLECTIVES = "functional collectives raise in shard_map"
_INSIDE = _Why("ops of the region at the level above", _AXES, _REGIONS)
_LOOK = _Why("what a tensor of torch.func stands for", "none", _WRAPPED)

functorch: Any = _room(
    "torch._C._functorch",
    {
        "TransformType": _Why("whether the innermost level is vmap's", "none", _REGIONS),
        "_add_batch_dim": _Why("the axes of a region by hand", _AXES, _REGIONS),
        "_remove_batch_dim": _Why("the same", _AXES, _REGIONS),
        "_vmap_decrement_nesting": _Why("collectives at the innermost level", "none", _COLLECTIVES),
        "_vmap_increment_nesting": _Why("the same", "none", _COLLECTIVES),
        "get_unwrapped": _LOOK,
        "is_batchedtensor": _LOOK,
        "is_functorch_wrapped_tensor": _LOOK,
        "maybe_current_level": _LOOK,
        "maybe_get_bdim": _LOOK,
        "maybe_get_level": _LOOK,
        "peek_interpreter_stack": _INSIDE,
        "pop_dynamic_layer_stack": _INSIDE,
        "push_dynamic_layer_stack": _INSIDE,
        "unwrap_if_dead": _LOOK,
    },
)

pyfunctorch: Any = _room(
    "torch._functorch.pyfunctorch",
    {
        "VmapInterpreter": _Why("the size of the innermost axis", "none", _COLLECTIVES),
        "retrieve_all_functorch_interpreters": _Why("axes that are entered", _AXES, _REGIONS),
        "retrieve_current_functorch_interpreter": _Why("the same", "none", _COLLECTIVES),
        "temporarily_clear_interpreter_stack": _INSIDE,
        "temporarily_restore_interpreter_stack": _Why("axes in a recomputation", _AXES, _REGIONS),
    },
)

vmap: Any = _room(
    "torch._functorch.vmap",
    {"lazy_load_decompositions": _Why("vmap's decompositions in a region", "none", _REGIONS)},
)

_KEYS = _Why("the dispatcher's state", "none", _COLLECTIVES)
_TLS = _Why("the global mesh in backward", "contextvars, not passed on", "use_mesh raises")

core: Any = _room(
    "torch._C",
    {
        "DisableTorchFunction": _Why("ops that modes of users do not see", "none", _REGIONS),
        "DispatchKey": _KEYS,
        "DispatchKeySet": _KEYS,
        "_EnableTorchFunction": _Why("modes of users in a recomputation", "none", "remat raises"),
        "_ForceDispatchKeyGuard": _KEYS,
        "_dispatch_get_all_op_names": _Why("ops to register", "none", _COLLECTIVES),
        "_dispatch_has_kernel_for_dispatch_key": _Why("torch_xla's key", "none", "torch_xla fails"),
        "_dispatch_keys": _Why("whether a tensor is traced", "none", "marks raise"),
        "_dispatch_tls_local_exclude_set": _KEYS,
        "_dispatch_tls_local_include_set": _KEYS,
        "_get_obj_in_tls": _TLS,
        "_get_privateuse1_backend_name": _Why("who has the device's slot", "none", "fails"),
        "_is_key_in_tls": _TLS,
        "_len_torch_dispatch_stack": _Why("whether ops are traced", "none", "marks raise"),
        "_remove_obj_from_tls": _TLS,
    },
)

ops: Any = _room(
    "torch._ops",
    {"_higher_order_ops": _Why("autograd.Function in a region", "none", "torch.func there raises")},
)


def let_regions_see_no_higher_order_ops() -> None:
    """Ops of higher order, such as an autograd.Function under torch.func, have no kernel for the
    key of regions, which is the next one above that of levels (csrc/trace/compat/keys.h). Instead:
    none. Without: torch.func in a region raises."""
    key = core.DispatchKey(int(core.DispatchKey.FuncTorchDynamicLayerFrontMode) + 1)
    for op in ops._higher_order_ops.values():
        op.fallthrough(key)


top: Any = _room(
    "torch",
    {
        "_register_device_module": _Why("torch.spmd", "none: documented", "import fails"),
        "_tensor_classes": _Why("classes that are sent to processes", "none", "import fails"),
    },
)

utils: Any = _room(
    "torch._utils",
    {"get_tensor_metadata": _Why("the mark that torch.save keeps", "none", "saving raises")},
)


def remove_from_tls(key: str) -> bool:
    """Whether the object could be removed from PyTorch's thread-local state: 2.11 cannot."""
    remove = core._remove_obj_from_tls
    if isinstance(remove, _Missing):
        return False
    remove(key)
    return True


# --- functions that are replaced: docs/other-packages.md ---


class Place(NamedTuple):
    owner: Any
    name: str

    def current(self) -> Any:
        return getattr(self.owner, self.name)


PRINTING = Place(torch._tensor_str, "_tensor_str")
REPLACING_PARAMETERS = Place(torch, "_has_compatible_shallow_copy_type")
DISPATCH_OF_FAKES = Place(FakeTensorMode, "_dispatch_impl")
INDUCTOR = Place(torch._TorchCompileInductorWrapper, "__call__")
SCRIPT = Place(torch.jit._recursive, "create_script_module")


def data_parallel_device() -> Place:
    # The package's attribute of this name is a function.
    module = importlib.import_module("torch.nn.parallel.data_parallel")
    return Place(module, "_get_available_device_type")


def flex_attention_check() -> Place:
    module = importlib.import_module("torch.nn.attention.flex_attention")
    return Place(module, "_validate_device")


def dcp_steps() -> Any:
    """The class whose methods all processes of a dcp.save or dcp.load take together. Instead:
    planners that users name. Without: integrations.dcp() raises."""
    from torch.distributed.checkpoint import utils

    return utils._DistWrapper


def dcp_file_writer() -> Any:
    """The class that writes files of both formats; its subclasses are public. As above."""
    from torch.distributed.checkpoint import filesystem

    return filesystem._FileSystemWriter


def dcp_storage_prefix() -> Any:
    """What begins the names of files. Instead: a writer of our own from the ground up. Without:
    spmd.save(…, format="dcp") raises."""
    from torch.distributed.checkpoint import filesystem

    return filesystem._StoragePrefix


def dcp_process_executor() -> Any:
    """What saves in another process. As `dcp_steps`."""
    from torch.distributed.checkpoint import state_dict_saver

    return vars(state_dict_saver)["_ProcessBasedAsyncCheckpointExecutor"]


# --- torch.distributed ---


def default_group() -> tuple[Any, dict[Any, Any]]:
    """The default group, and the table of groups, which has its store: the groups of a job are made
    through a store of this package's own. Instead: a store of our own for the job. Without: a job
    does not start."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_group(), distributed_c10d._world.pg_map


def mesh_of_context(given: Any) -> Any:
    """The DeviceMesh, or that of the context. Instead: none. Without: integrations.dtensor()
    raises."""
    import torch.distributed.tensor._api as api

    resources: Any = api._mesh_resources  # type: ignore[attr-defined]
    return given or resources.get_current_mesh()


@functools.cache
def mesh_of_devices() -> type:
    """The class of a DeviceMesh whose ranks are devices. Instead: a backend of the device. Without:
    to_device_mesh raises."""
    from torch.distributed.device_mesh import DeviceMesh

    from torch_spmd import _C

    def first_device() -> int:
        return _C.process()[0] * (int(_C.device_count()) // _C.process()[1])

    class OfDevices(DeviceMesh):
        """Without process groups. The rank of a process is the first of its devices, for which it
        asks as late as it can: a process that has asked has joined its job."""

        def __init__(self, device_type: str, *args: Any, **options: Any) -> None:
            self._is_made = False
            super().__init__(device_type, *args, **options | {"_init_backend": False, "_rank": 0})
            self._dim_group_names = []
            self._is_made = True

        def __reduce__(self) -> Any:
            return _empty_mesh, (), self.__getstate__()

        @property
        def mesh(self) -> Any:
            """The devices; of a slice those among which the process's first device is.

            Errors: RuntimeError for a slice of a mesh that has none of them.
            """
            every = slices_like(self)
            if every.size(0) == 1 or not self._is_made:
                return every[0]
            first = first_device()
            if found := [one for one in every if first in one.flatten().tolist()]:
                return found[0]
            raise RuntimeError(
                f"{self} is a slice of a mesh without device {first}, this process's"
            )

        @property
        def _coordinate_on_dim(self) -> Any:
            """Where the process's first device is; None if it is not in the mesh."""
            places = (slices_like(self) == first_device()).nonzero().tolist()
            return tuple(places[0][1:]) if places else None

        @_coordinate_on_dim.setter
        def _coordinate_on_dim(self, place: Any) -> None:
            pass  # it is found when it is asked for

        def _compute_coordinate_on_dim(self) -> Any:
            return None

        def _create_sub_mesh(self, layout: Any, names: Any) -> Any:
            root = root_mesh(self)
            given = {"_layout": layout, "_rank_map": root._rank_map, "_root_mesh": root}
            return type(self)(self.device_type, mesh_dim_names=names, **given)

        def get_rank(self) -> int:
            """The number of the process."""
            return _C.process()[0]

        def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
            """Where the process's first device is along a dimension; -1 outside of the mesh."""
            if mesh_dim is None:
                if self.ndim > 1:
                    raise RuntimeError(
                        f"get_local_rank: the DeviceMesh has {self.ndim} dimensions, "
                        f"{self.mesh_dim_names}; say which one: mesh_dim=…"
                    )
                mesh_dim = 0
            if isinstance(mesh_dim, str):
                flattened = root_mesh(self)._flatten_mapping
                if mesh_dim in flattened:
                    return int(flattened[mesh_dim].get_local_rank())
                mesh_dim = self._get_mesh_dim_by_name(mesh_dim)
            at = self.get_coordinate()
            return -1 if at is None else int(at[mesh_dim])

        def get_group(self, mesh_dim: int | str | None = None) -> Any:
            raise RuntimeError(
                "get_group: a DeviceMesh of 'spmd' has no process groups: its ranks are devices, "
                "and a tensor of the device is the whole one, so that sums and means need no "
                "collective. A group of processes for tensors on the host is that of a DeviceMesh "
                "of 'cpu'"
            )

        @staticmethod
        def _init_process_groups(*args: Any, **options: Any) -> Any:
            return []

    OfDevices.__name__ = OfDevices.__qualname__ = "DeviceMesh"
    return OfDevices


def _empty_mesh() -> Any:
    """Called by pickle and by copies, which fill it."""
    return object.__new__(mesh_of_devices())


def root_mesh(device_mesh: Any) -> Any:
    """The DeviceMesh of which this is a slice. Instead: none. Without: functions that take a mesh
    take no DeviceMesh."""
    return device_mesh._get_root_mesh()


def slices_like(device_mesh: Any) -> Tensor:
    """The ranks of all slices like this one, which is one of them. Instead: none. Without:
    functions that take a mesh take no slice that is several dimensions or a part of one."""
    every: Tensor = device_mesh._layout.remap_to_tensor(device_mesh._rank_map)
    return every


def strided_shard() -> Any:
    """DTensor's placement for blocks and reordered axes. Instead: none. Without: such specs have no
    placements, and their conversion raises."""
    from torch.distributed.tensor import placement_types

    return placement_types._StridedShard


def pieces(placement: Any, tensor: Tensor, count: int) -> list[Tensor]:
    """A tensor cut as a placement says. Instead: our own cut. Without: to_dtensor raises."""
    found, _ = placement._split_tensor(tensor, count, with_padding=False)
    return list(found)


# --- modules and tensors: in use since the first versions of PyTorch ---


def parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Its own, with those that are None, to be changed in place. Instead: named_parameters and
    setattr, which hooks see. Without: loading and sharding modules raises."""
    return module._parameters


def buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """As `parameters`."""
    return module._buffers


def transient_buffers(module: nn.Module) -> set[str]:
    """The names of those that no state dict has. Instead: the difference to state_dict().
    Without: spmd.load raises."""
    return module._non_persistent_buffers_set


def children(module: nn.Module) -> dict[str, Any]:
    """As `parameters`. Without: spmd.plan raises."""
    return module._modules


def coordinates_and_values(sparse: Tensor) -> tuple[Tensor, Tensor]:
    """Also of a tensor that is not coalesced. Instead: indices() and values() of those that are.
    Without: spmd.save and load of tensors in coordinate form raise."""
    return sparse._indices(), sparse._values()


def set_coalesced(sparse: Tensor, coalesced: bool) -> None:
    """As `coordinates_and_values`. Without: spmd.load of them raises."""
    sparse._coalesced_(coalesced)


def forward_pre_hooks(module: nn.Module) -> dict[int, Any]:
    """To remove those of this package. Instead: keeping their handles. Without: sharding a module
    twice raises."""
    return module._forward_pre_hooks


def forward_hooks(module: nn.Module) -> dict[int, Any]:
    """As `forward_pre_hooks`."""
    return module._forward_hooks


def has_backward_hooks(tensor: Tensor) -> bool:
    """Of a tensor between stages of a pipeline. Instead: none. Without: pipelines raise."""
    return bool(tensor._backward_hooks)


def renew_flat_weights(module: nn.RNNBase) -> None:
    """A recurrent layer keeps a list of its parameters. Instead: none. Without: fsdp of it
    computes with the whole ones."""
    if hasattr(module, "_flat_weights"):
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]


def storage_number(tensor: Tensor) -> int:
    """The number of a storage that lives. Instead: data_ptr, where a tensor has one. Without:
    saving tensors that share memory raises."""
    return tensor.untyped_storage()._cdata


def version(tensor: Tensor) -> int:
    """How often it was written. Instead: none. Without: torch_xla's manual sharding raises."""
    return tensor._version


def next_indices(iterator: Any) -> Any:
    """What a loader's iterator draws the next rows' indices with; None if it has no such function.
    Instead: a BatchSampler of ours. Without: rows are read by all processes."""
    from torch.utils.data import dataloader

    alone: Any = getattr(dataloader, "_SingleProcessDataLoaderIter", None)
    kinds: Any = getattr(dataloader, "_DatasetKind", None)
    if alone is None or kinds is None or not isinstance(iterator, alone):
        return None
    of_rows = getattr(iterator, "_dataset_kind", None) == kinds.Map
    return getattr(iterator, "_next_index", None) if of_rows else None


# --- torch_spmd.torch_xla, which is imported by choice: without a symbol, it or its use fails ---


def wrapper_subclass(kind: type, *sizes: Any, **options: Any) -> Any:
    """A tensor of a class that has no data. Instead: none; documented by PyTorch."""
    return Tensor._make_wrapper_subclass(kind, *sizes, **options)


def storage_of(weak: Any) -> Any:
    """The storage of a weak reference, or None. Instead: a weak reference to a tensor."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


def device_constructors() -> Any:
    """The functions that take a device. Instead: a list of our own."""
    return torch.utils._device._device_constructors()


def device_context() -> Any:
    """The class of `with torch.device(…):`. Instead: none."""
    return torch.utils._device.DeviceContext


def keep_for_jit(function: Any, wrapper: Any) -> None:
    """torch.jit.script goes by the function. Instead: none."""
    from torch.jit import _builtins

    if op := _builtins._find_builtin(function):
        _builtins._register_builtin(wrapper, op)


def dtensor_spec(mesh: Any, places: Any, *, shape: Any, stride: Any, dtype: Any) -> Any:
    """What a DTensor says of itself. Instead: none."""
    from torch.distributed.tensor import _dtensor_spec

    return _dtensor_spec.DTensorSpec(mesh, places, _dtensor_spec.TensorMeta(shape, stride, dtype))
