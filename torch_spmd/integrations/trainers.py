# SPDX-License-Identifier: Apache-2.0
"""accelerate and the Trainer of transformers, which choose among devices that they list, for
`torch_spmd.integrations`.

accelerate reads `ACCELERATE_TORCH_DEVICE`, but then ignores `cpu=True`, so that is no way to set a
default.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_spmd import _C
from torch_spmd._compat import pytree, storage_number
from torch_spmd._replace import replace

DEVICE = "spmd"
_RANDOM = "random_state_spmd.pth"


def accelerate_state(module: Any) -> None:
    """The device of `PartialState` and `Accelerator` where neither an argument nor a variable says
    another: the one that `torch.accelerator` finds."""
    default_of: Callable[[Any], torch.device] = module.PartialState.default_device.fget

    @functools.wraps(default_of)
    def default_device(self: Any) -> torch.device:
        current = torch.accelerator.current_accelerator()
        if current is not None and current.type == DEVICE:
            return torch.device(DEVICE)
        return default_of(self)

    state = module.PartialState
    replace(state, "default_device", property(default_device), "accelerate()")

    # In a job of several processes every process runs the script with whole batches, so accelerate
    # shards no data and wraps no model: one process to it. Who prints and writes is one of them.
    def of_job(name: str, says: Callable[[Any, bool], bool]) -> None:
        asked: Callable[[Any], bool] = getattr(state, name).fget
        answer = functools.wraps(asked)(lambda self: says(self, asked(self)))
        replace(state, name, property(answer), "accelerate()")

    def is_last(self: Any, last: bool) -> bool:
        index, count = _process(self)
        return last and index == count - 1

    of_job("is_main_process", lambda self, main: main and _process(self)[0] == 0)
    of_job("is_local_main_process", lambda self, main: main and _local_process(self) == 0)
    of_job("is_last_process", is_last)
    of_job("use_distributed", lambda self, several: several or _process(self)[1] > 1)
    wait = state.wait_for_everyone

    @functools.wraps(wait)
    def wait_for_everyone(self: Any) -> None:
        wait(self)
        _wait(self, "waits for everyone")

    replace(state, "wait_for_everyone", wait_for_everyone, "accelerate()")


def accelerate_checkpointing(module: Any) -> None:
    """What one process of a job writes, all of them read from the device."""
    replace(module, "save", _of_whole_tensors(module.save, module.PartialState), "accelerate()")


def accelerate_accelerator(module: Any) -> None:
    """float16 with a scaler of this device, and random numbers that go on after a checkpoint."""
    accelerator = module.Accelerator
    init = accelerator.__init__

    @functools.wraps(init)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        self._torch_spmd_begins = True
        try:
            init(self, *args, **kwargs)
        finally:
            del self._torch_spmd_begins

    def device(self: Any) -> torch.device:
        # It looks for a device with float16 in a list, once, where it begins.
        given: torch.device = self.state.device
        listed = hasattr(self, "_torch_spmd_begins") and self.state.mixed_precision == "fp16"
        return torch.device("cuda") if listed and given.type == DEVICE else given

    replace(accelerator, "__init__", begin, "accelerate()")
    replace(accelerator, "device", property(device), "accelerate()")
    scaler_of = module.get_grad_scaler

    @functools.wraps(scaler_of)
    def get_grad_scaler(*args: Any, **kwargs: Any) -> Any:
        if module.PartialState().device.type != DEVICE:
            return scaler_of(*args, **kwargs)
        kwargs.pop("distributed_type", None)
        return torch.amp.GradScaler(DEVICE, **kwargs)

    save, load = module.save_accelerator_state, module.load_accelerator_state

    @functools.wraps(save)
    def save_accelerator_state(output_dir: Any, *args: Any, **kwargs: Any) -> Any:
        # Each process writes the state of its random numbers, which is the same in all of them.
        state = module.PartialState()
        with contextlib.ExitStack() as ends:
            folder = output_dir
            if _process(state)[0] > 0:
                folder = ends.enter_context(tempfile.TemporaryDirectory())
            save(folder, *args, **kwargs)
            _save_random_state(folder, state.device)
        _wait(state, "saves its state")
        return Path(output_dir)

    dict_of = accelerator.get_state_dict

    @functools.wraps(dict_of)
    def get_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        whole = dict_of(self, *args, **kwargs)
        return on_host(whole) if _process(module.PartialState())[1] > 1 else whole

    @functools.wraps(load)
    def load_accelerator_state(input_dir: Any, *args: Any, **kwargs: Any) -> Any:
        loaded = load(input_dir, *args, **kwargs)
        _load_random_state(input_dir, module.PartialState().device)
        return loaded

    is_last = property(lambda self: self.state.is_last_process)
    replace(accelerator, "get_state_dict", get_state_dict, "accelerate()")
    replace(accelerator, "is_last_process", is_last, "accelerate()")
    replace(module, "save", _of_whole_tensors(module.save, module.PartialState), "accelerate()")
    for function in (get_grad_scaler, save_accelerator_state, load_accelerator_state):
        replace(module, function.__name__, function, "accelerate()")


def transformers_training_args(module: Any) -> None:
    """`TrainingArguments` take the device of accelerate, and accept `bf16=True` for it."""
    cached = vars(module.TrainingArguments)["_setup_devices"]
    device_of: Callable[[Any], torch.device] = cached.func

    @functools.wraps(device_of)
    def setup_devices(self: Any) -> torch.device:
        device = device_of(self)
        state = self.distributed_state
        found = device if state is None or self.use_cpu else state.device
        return found if found.type == DEVICE else device

    asks = type(cached)(setup_devices)
    asks.__set_name__(module.TrainingArguments, "_setup_devices")
    replace(module.TrainingArguments, "_setup_devices", asks, "transformers()")
    available = module.is_torch_bf16_gpu_available

    @functools.wraps(available)
    def is_torch_bf16_gpu_available() -> bool:
        current = torch.accelerator.current_accelerator()
        return (current is not None and current.type == DEVICE) or available()

    replace(module, "is_torch_bf16_gpu_available", is_torch_bf16_gpu_available, "transformers()")


def transformers_trainer(module: Any) -> None:
    """Random numbers go on after a checkpoint of `Trainer` as they would have without one; of the
    processes of a job, one writes checkpoints."""
    trainer = module.Trainer
    save, load = trainer._save_rng_state, trainer._load_rng_state

    @functools.wraps(save)
    def save_rng_state(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        _save_random_state(output_dir, self.args.device)

    @functools.wraps(load)
    def load_rng_state(self: Any, checkpoint: str | None) -> None:
        load(self, checkpoint)
        if checkpoint is not None:
            _load_random_state(checkpoint, self.args.device)

    replace(trainer, "_save_rng_state", save_rng_state, "transformers()")
    replace(trainer, "_load_rng_state", load_rng_state, "transformers()")
    for name in ("_save_checkpoint", "save_model"):
        replace(trainer, name, _by_one(getattr(trainer, name)), "transformers()")
    create = trainer.create_scheduler

    @functools.wraps(create)
    def create_scheduler(
        self: Any, num_training_steps: int, optimizer: Any = None, **kwargs: Any
    ) -> Any:
        # Of a model that it wraps in torch_xla's FSDP, transformers 5 puts the optimizer off, and
        # makes none.
        if optimizer is None and self.optimizer is None:
            self.optimizer = self.accelerator.prepare(self.create_optimizer())
        return create(self, num_training_steps, optimizer, **kwargs)

    smart = trainer.autocast_smart_context_manager

    @functools.wraps(smart)
    def autocast_smart_context_manager(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Such a model is not prepared by accelerate, which would have it run under autocast.
        if getattr(self, "is_fsdp_xla_enabled", False):
            return self.accelerator.autocast()
        return smart(self, *args, **kwargs)

    for function in (create_scheduler, autocast_smart_context_manager):
        replace(trainer, function.__name__, function, "transformers()")
    for name in ("is_world_process_zero", "is_local_process_zero"):
        replace(trainer, name, _of_first(getattr(trainer, name)), "transformers()")


def _of_first(asked: Callable[[Any], bool]) -> Callable[[Any], bool]:
    @functools.wraps(asked)
    def is_first(self: Any) -> bool:
        return asked(self) and _process(self.args)[0] == 0

    return is_first


def _by_one(save: Callable[..., Any]) -> Callable[..., Any]:
    """In a job of several processes, process 0 alone writes. All of them read the model and the
    optimizer from the device before, which the methods of these then return."""

    @functools.wraps(save)
    def saves(self: Any, *args: Any, **kwargs: Any) -> Any:
        index, count = _process(self.args)
        owners = [owner for owner in (self.model, self.optimizer) if owner is not None]
        if count == 1 or any("state_dict" in vars(owner) for owner in owners):
            return save(self, *args, **kwargs)
        wholes = [on_host(owner.state_dict()) for owner in owners]
        error = None
        for owner, whole in zip(owners, wholes):
            owner.state_dict = functools.partial(_given, whole)
        try:
            if index == 0:
                save(self, *args, **kwargs)
        except Exception as raised:
            error = raised
        finally:
            for owner in owners:
                del owner.state_dict
        mine = json.dumps([error and str(error), self.state.best_model_checkpoint])
        failed, self.state.best_model_checkpoint = json.loads(_C.say(mine, "saves in Trainer")[0])
        if error is not None:
            raise error
        if failed is not None:
            raise RuntimeError(f"process 0 could not save: {failed}")

    return saves


def _given(whole: Any, *args: Any, **kwargs: Any) -> Any:
    return whole


def _process(state: Any) -> tuple[int, int]:
    """The number of this process in the job that the device works in, and how many there are."""
    device = getattr(state, "device", None)
    if device is None or device.type != DEVICE:
        return 0, 1
    return _C.process()[:2]


def _local_process(state: Any) -> int:
    index, count = _process(state)
    return int(os.environ.get("LOCAL_RANK", index)) if count > 1 else 0


def _wait(state: Any, doing: str) -> None:
    if _process(state)[1] > 1:
        _C.say("", f"accelerate {doing}")


def on_host(values: Any) -> Any:
    """In a job of several processes the values with whole tensors on the host, which all processes
    make together; tensors that share memory share it there, too. Else what was given."""
    if _C.process()[1] == 1:
        return values
    made: dict[Any, Tensor] = {}

    def of_host(t: Tensor) -> Tensor:
        if t.device.type != DEVICE:
            return t
        place = storage_number(t), t.storage_offset(), t.shape, t.stride()
        if place not in made:
            made[place] = t.detach().cpu()
        return made[place]

    return pytree.tree_map_only(Tensor, of_host, values)


def _of_whole_tensors(save: Callable[..., None], state: Any) -> Callable[..., None]:
    @functools.wraps(save)
    def saves(obj: Any, *args: Any, **kwargs: Any) -> None:
        save(on_host(obj) if _process(state())[1] > 1 else obj, *args, **kwargs)

    return saves


def _save_random_state(folder: Any, device: torch.device) -> None:
    if device.type == DEVICE:
        torch.save(_device_module().get_rng_state(), os.path.join(folder, _RANDOM))


def _load_random_state(folder: Any, device: torch.device) -> None:
    path = os.path.join(folder, _RANDOM)
    if device.type == DEVICE and os.path.isfile(path):
        _device_module().set_rng_state(torch.load(path, weights_only=True))


def _device_module() -> Any:
    return torch.spmd  # type: ignore[attr-defined]
