# SPDX-License-Identifier: Apache-2.0
"""What wrong calls of the public functions are told, and how much helpers print."""

import random_calls


def test_every_public_parameter_is_known():
    assert random_calls.without_arguments() == [], "add them to RIGHT in random_calls.py"
    assert {"spmd.mark_sharding", "spmd.Mesh.size", "debug.Table.text"} <= set(
        random_calls.surface()
    )


def test_random_calls(request):
    """Each works or raises an error that names the argument, and leaves nothing half done."""
    random_calls.still_works()
    more = request.config.getoption("--full-calls")
    wrong = []
    for seed in range(5000 + more):
        wrong += [message for message in [random_calls.random_call(seed)] if message]
        if seed % 500 == 0:
            random_calls.still_works()
    random_calls.still_works()
    assert not wrong, f"{len(wrong)} of them\n" + "\n".join(wrong[:20])
