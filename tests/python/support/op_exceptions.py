# SPDX-License-Identifier: Apache-2.0
"""The op variants, modules and optimizers that are not right yet, by kind of test, each with
what is wrong.

A reason begins with what the test sees, "raises …" or "differs …". The tests fail when an entry
passes, and when one that raises begins to differ; one that "differs by chance" may pass.
"""

NO_SPARSE_MARK = "raises ValueError: mark_sharding takes no sparse tensor"

EXCEPTIONS = {
    # Unsharded, as functions.
    "device": {},
    # Unsharded, every sample: what is wrong beyond "device". Seen with --full-ops only.
    "device, full": {},
    # Unsharded, on inputs with gaps between elements.
    "strided": {},
    # On inputs without elements.
    "empty": {},
    "in_place": {
        "addbmm": (
            "raises RuntimeError: addbmm_ of an input that is broadcast; the CPU resizes the input"
        ),
    },
    "out": {},
    # A few samples, sharded.
    "sharded": {
        "sparse_mm_reduce": NO_SPARSE_MARK,
        "sparse_sampled_addmm": NO_SPARSE_MARK,
    },
    # Every sharding of every sample: what is wrong beyond "sharded". Seen with --full-ops only.
    "sharded, full": {},
    # In other dtypes, with and without sharding.
    "float64": {},
    "float64, full": {},
    "bfloat16": {},
    "bfloat16, full": {},
    "complex64": {},
    "complex64, full": {},
    "int64": {},
    "int64, full": {},
    "bool": {},
    "bool, full": {},
    # Gradients of gradients, and tangents.
    "second": {},
    # Every sample, sharded. Seen by sweep_ops.py only.
    "second, sharded": {
        "nn_functional_linear_cross_entropy_chunked": (
            "differs by chance in bfloat16: terms that nearly cancel are rounded one by one"
        ),
    },
    "forward_mode": {
        "nn_functional_max_unpool3d": (
            "differs by chance where several tangents go to one place: any of them may "
            "stay, says PyTorch; nn_functional_max_unpool3d_grad has no such samples"
        ),
    },
    "module": {},
    "optimizer": {},
}
