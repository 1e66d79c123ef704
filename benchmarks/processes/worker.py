# SPDX-License-Identifier: Apache-2.0
"""One process of a measured job. Process 0 prints a line of JSON per row."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

import torch_spmd as spmd
from benchmarks.processes import sides
from benchmarks.speed.measure import Row, Step, measure

MEBI = 1 << 20
Timed = Callable[[], float]


def job_cpu_seconds(step: Step) -> Timed:
    """CPU-seconds of all processes together, which begin a step at the same time."""

    def timed() -> float:
        dist.barrier()
        before = time.process_time()
        step()
        mine = torch.tensor(time.process_time() - before, dtype=torch.float64)
        dist.all_reduce(mine)
        return float(mine)

    return timed


def strategy_row(plan: str) -> Row:
    name, make = sides.PEERS[plan]

    def prepare() -> tuple[Timed, Timed | None]:
        ours = sides.ours(plan)
        try:
            theirs = make()
            first = theirs()
        except (RuntimeError, NotImplementedError) as error:
            print(f"{name} cannot run here: {error}", file=sys.stderr)
            return job_cpu_seconds(lambda: void(ours)), None
        mine = ours()
        if not math.isclose(mine, first, rel_tol=1e-4):
            raise SystemExit(f"the two sides differ: loss {mine} here, {first} with {name}")
        return job_cpu_seconds(lambda: void(ours)), job_cpu_seconds(lambda: void(theirs))

    return Row(f"GPT {plan}", 1.0, prepare, warm=2, elapsed=True)


def void(step: Callable[[], float]) -> None:
    step()


def all_reduce_row(mebibytes: int, budget: float) -> Row:
    """A sum over processes of values that each of them has: the time of a sum over the sharded
    dimension, less that of a sum over another one, which is what each process does alone.
    """
    elements = mebibytes * MEBI // 4

    def prepare() -> tuple[Timed, Timed]:
        mesh = spmd.make_mesh((spmd.config.device_count(),), ("data",))
        given = torch.ones(spmd.config.device_count(), 1, elements).to("spmd")
        spmd.mark_sharding(given, mesh, ("data", None, None))
        data = torch.zeros(elements)

        def add(dim: int, spec: tuple[str | None, None]) -> None:
            total = spmd.mark_sharding(given.sum(dim), mesh, spec)
            spmd.sync(wait=True)
            del total

        together = job_cpu_seconds(partial(add, 0, (None, None)))
        alone = job_cpu_seconds(partial(add, 1, ("data", None)))
        return lambda: together() - alone(), job_cpu_seconds(partial(dist.all_reduce, data))

    return Row(f"all-reduce {mebibytes} MiB", budget, prepare)


def psum_row(mebibytes: int) -> Row:
    """The same sum as a user writes it in a manual region, with all that it takes."""
    elements = mebibytes * MEBI // 4

    def prepare() -> tuple[Timed, Timed]:
        mesh = spmd.make_mesh((spmd.config.device_count(),), ("data",))
        given = torch.ones(spmd.config.device_count(), elements).to("spmd")
        spmd.mark_sharding(given, mesh, ("data", None))
        region = spmd.shard_map(
            lambda t: spmd.lax.psum(t[0], "data"), mesh, spmd.P("data", None), spmd.P(None)
        )
        data = torch.zeros(elements)

        def add() -> None:
            total = region(given)
            spmd.sync(wait=True)
            del total

        return job_cpu_seconds(add), job_cpu_seconds(partial(dist.all_reduce, data))

    return Row(f"psum {mebibytes} MiB", None, prepare)


def by_the_wall(step: Step) -> float:
    """Seconds until the last process has ended the step."""
    dist.barrier()
    before = time.perf_counter()
    step()
    mine = torch.tensor(time.perf_counter() - before, dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return float(mine)


def agreement_row(clock: str) -> Row:
    """A step that sends nothing, in a job or, with SPMD_DISTRIBUTED=0, alone."""
    calls = 100

    def prepare() -> tuple[Timed, None]:
        value = torch.zeros(4).to("spmd")

        def step() -> None:
            for _ in range(calls):
                value.add_(1)
                spmd.sync(wait=True)

        step()
        if clock == "wall":
            return lambda: by_the_wall(step) / calls, None
        of_all = job_cpu_seconds(step)
        return lambda: of_all() / calls / dist.get_world_size(), None

    return Row(f"agreement, {clock} time", None, prepare, unit="µs")


def rows(what: str) -> list[Row]:
    if what == "all-reduce":
        return [all_reduce_row(64, 0.7), all_reduce_row(1, 0.7), psum_row(64)]
    if what == "agreement":
        return [agreement_row("wall"), agreement_row("CPU")]
    return [strategy_row(what)]


def main() -> None:
    what, pairs = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")
    for row in rows(what):
        result = measure(row, pairs)
        if dist.get_rank() == 0:
            print(json.dumps(dataclasses.asdict(result)), flush=True)


if __name__ == "__main__":
    main()
