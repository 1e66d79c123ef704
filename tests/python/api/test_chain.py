# SPDX-License-Identifier: Apache-2.0
"""The choice for a chain of layers is the optimum that an integer program finds."""

import doctest
import itertools
import random

import pytest

from torch_spmd.planning import chain
from torch_spmd.planning.chain import Option, cheapest


def drawn(seed):
    """A chain, its edges, and a limit that binds as often as not."""
    draw = random.Random(seed)
    layers = [
        [Option(draw.randint(1, 40) / 4, draw.randint(0, 30)) for _ in range(draw.randint(1, 4))]
        for _ in range(draw.randint(1, 6))
    ]
    between = [
        [[draw.choice([0, 0.25, 2, 5]) for _ in after] for _ in before]
        for before, after in itertools.pairwise(layers)
    ]
    least = sum(min(o.bytes for o in layer) for layer in layers)
    return layers, between, draw.choice([None, least - 1, least, least + draw.randint(1, 40)])


def seconds_of(choices, layers, between):
    moves = (edge[a][b] for edge, a, b in zip(between, choices, choices[1:], strict=False))
    return sum(layer[c].seconds for layer, c in zip(layers, choices, strict=True)) + sum(moves)


def by_integer_program(layers, between, most):
    """The least seconds, or None: one variable for each option and each pair of options."""
    np = pytest.importorskip("numpy")
    optimize = pytest.importorskip("scipy.optimize")
    cost, bytes_, rows = [], [], []
    nodes = []
    for layer in layers:
        nodes.append(range(len(cost), len(cost) + len(layer)))
        cost += [option.seconds for option in layer]
        bytes_ += [option.bytes for option in layer]
    pairs = []
    for position, edge in enumerate(between):
        for a, line in enumerate(edge):
            for b, seconds in enumerate(line):
                pairs.append((len(cost), nodes[position][a], nodes[position + 1][b]))
                cost.append(seconds)
    bytes_ += [0] * len(pairs)
    ones = [({v: 1 for v in node}, 1, 1) for node in nodes]  # one option of each layer
    for variable, a, b in pairs:  # a pair is paid for where both of its options are taken
        rows.append(({variable: 1, a: -1, b: -1}, -1, np.inf))
    if most is not None:
        rows.append((dict(enumerate(bytes_)), -np.inf, most))
    matrix = np.zeros((len(ones) + len(rows), len(cost)))
    for r, (row, _, _) in enumerate(ones + rows):
        for variable, factor in row.items():
            matrix[r, variable] = factor
    limits = optimize.LinearConstraint(
        matrix, [low for _, low, _ in ones + rows], [high for _, _, high in ones + rows]
    )
    found = optimize.milp(
        cost, constraints=limits, integrality=np.ones(len(cost)), bounds=optimize.Bounds(0, 1)
    )
    return found.fun if found.success else None


@pytest.mark.parametrize("seed", range(60))
def test_is_the_optimum_of_the_integer_program(seed):
    layers, between, most = drawn(seed)
    found, optimum = cheapest(layers, between, most), by_integer_program(layers, between, most)
    assert (found is None) == (optimum is None)
    if found is None:
        return
    choices, seconds = found
    assert seconds == pytest.approx(optimum)
    assert seconds == pytest.approx(seconds_of(choices, layers, between))
    assert (
        most is None
        or sum(layer[c].bytes for layer, c in zip(layers, choices, strict=True)) <= most
    )


def test_some_of_the_drawn_chains_do_not_fit():
    assert {cheapest(*drawn(seed)) is None for seed in range(60)} == {True, False}


def test_equal_layers_are_divided_by_what_fits():
    """A hundred equal layers: as many take the fast way as there is room for, side by side."""
    layer = [Option(1.0, 10), Option(3.0, 1)]
    between = [[[0.0, 0.5], [0.5, 0.0]]] * 99
    choices, seconds = cheapest([layer] * 100, between, 370)
    assert choices.count(0) == 30 and seconds == 30 + 70 * 3 + 0.5
    assert sum(a != b for a, b in itertools.pairwise(choices)) == 1


def test_no_layers_take_nothing():
    assert cheapest([], [], 0) == ([], 0.0)


def test_the_examples():
    assert doctest.testmod(chain).failed == 0
