# SPDX-License-Identifier: Apache-2.0
"""Lines of progress, and scalars for TensorBoard."""

from __future__ import annotations

import functools
import multiprocessing
import time
import unittest
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from torch_spmd.torch_xla import runtime
from torch_spmd.torch_xla.debug import metrics


def mp_test(func: Callable[..., Any]) -> Callable[..., int | None]:
    """A test method that runs in a process of its own; gives the process's exit code."""

    @functools.wraps(func)
    def in_process(*args: Any, **kwargs: Any) -> int | None:
        process = multiprocessing.Process(target=func, args=args, kwargs=kwargs)
        process.start()
        process.join()
        if args and isinstance(args[0], unittest.TestCase):
            args[0].assertEqual(process.exitcode, 0)
        return process.exitcode

    return in_process


def now(format: str = "%H:%M:%S") -> str:
    return datetime.now().strftime(format)


def get_summary_writer(logdir: str | None) -> Any:
    """A writer for TensorBoard; None without a folder. It needs the package tensorboard."""
    if not logdir:
        return None
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(log_dir=logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] | None = None,
    write_xla_metrics: bool = False,
) -> None:
    """Adds scalars, and with `write_xla_metrics` every counter; nothing without a writer."""
    if summary_writer is None:
        return
    scalars: dict[str, Any] = dict(dict_to_write or {})
    if write_xla_metrics:
        scalars |= {name: metrics.counter_value(name) for name in metrics.counter_names()}
    for name, value in scalars.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def print_training_update(
    device: Any,
    step: int,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """One line; `rate` is in examples per second."""
    _print(
        "Training", device, Epoch=epoch, Step=step, Loss=f"{float(loss):.5f}",
        Rate=f"{rate:.2f}", GlobalRate=f"{global_rate:.2f}",
    )  # fmt: skip
    write_to_summary(
        summary_writer, None, {"examples/sec": rate, "average_examples/sec": global_rate}
    )


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """One line."""
    shown = None if accuracy is None else f"{float(accuracy):.2f}"
    _print("Test", device, Step=step, Epoch=epoch, Accuracy=shown)


def _print(what: str, device: Any, **fields: Any) -> None:
    words = [f"{name}={value}" for name, value in fields.items() if value is not None]
    place = f"Device={device}/{runtime.global_ordinal()}"
    print("|", what, place, *words, f"Time={now()}", flush=True)
