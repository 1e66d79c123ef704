# SPDX-License-Identifier: Apache-2.0
"""Op variants that gather when cut, and rules that nothing reaches: each with why."""

DATA = "the shape of the result depends on the data: runs on the host"
NO_SHAPE = "PyTorch has no Meta kernel that gives the result's shape: runs on the host"
MATRIX = "one matrix: no batch to cut, and its rows and columns are needed whole"
PRODUCT = "both operands of a product are cut by the same axis: one is gathered"
PLACES = "no rule: the offsets of each row in the storage reach into all others"
INDEXED = "no rule: any index may lead to any row"
SEGMENTS = "no rule: a segment may end anywhere, in any tile"
MARGINS = "no rule, and the gradient runs on the host: PyTorch has no Meta kernel of it"
LEAST_SQUARES = "the ranks that come along depend on the data: runs on the host"

GATHERED: dict[str, str] = {
    "_batch_norm_with_update": "no rule; that of native_batch_norm would fit",
    "_chunk_cat": "no rule: chunks along the cut dimension go to other rows",
    "_segment_reduce_lengths": SEGMENTS,
    "_segment_reduce_offsets": SEGMENTS,
    "_unsafe_masked_index": INDEXED,
    "_unsafe_masked_index_put_accumulate": INDEXED,
    "argwhere": DATA,
    "as_strided_copy": PLACES,
    "as_strided_scatter": "its rule needs all of both tensors: strides lead to any row",
    "corrcoef": PRODUCT,
    "cov": PRODUCT,
    "geqrf": NO_SHAPE,
    "hash_tensor": "no rule: no all-reduce combines hashes by exclusive or",
    "histc": "no rule: without bounds, the bins depend on the least and greatest of all elements",
    "histogram": NO_SHAPE,
    "histogramdd": NO_SHAPE,
    "linalg_householder_product": MATRIX,
    "linalg_lstsq": LEAST_SQUARES,
    "linalg_lstsq_grad_oriented": LEAST_SQUARES,
    "linalg_tensorinv": MATRIX,
    "linalg_tensorsolve": MATRIX,
    "masked_scatter": "no rule: which element goes where depends on the mask before it",
    "masked_select": DATA,
    "multinomial": "draws by weight with PyTorch's own kernel: runs on the host",
    "nn_functional_ctc_loss": DATA,
    "nn_functional_embedding_bag": "what it saves for the gradient depends on the kernel: host",
    "nn_functional_fractional_max_pool3d": (
        "the gradient runs on the host: PyTorch has no Meta kernel of it"
    ),
    "nn_functional_multi_margin_loss": MARGINS,
    "nn_functional_multilabel_margin_loss": MARGINS,
    "nn_functional_pdist": "no rule: the distances of all pairs of rows, in one dimension",
    "nonzero": DATA,
    "nonzero_static": "where the k-th nonzero element lies depends on all before it: host",
    "unique": DATA,
    "unique_consecutive": DATA,
}


def each(reason, *ops):
    return {f"aten::{op}": reason for op in ops}


UNREACHED: dict[str, str] = {
    **each(
        "the trace records spmd::full instead",
        *("full", "full_like", "new_full", "new_ones", "new_zeros", "ones", "ones_like"),
        *("scalar_tensor", "zeros", "zeros_like"),
    ),
    **each("the trace records spmd::iota instead", "arange", "arange.start", "arange.start_step"),
    **each("nothing is recorded: no memory yet", "empty.memory_format", "empty_like", "new_empty"),
    **each(
        "no operand is on the device: runs on the host",
        *("eye", "eye.m", "linspace", "logspace", "range", "range.step"),
        *("tril_indices", "triu_indices"),
    ),
    **each(
        "a view: recorded as aten::view when read",
        *("_reshape_alias", "_unsafe_view"),
    ),
    "aten::as_strided": "a view: recorded as the views that it consists of, or aten::take",
    "aten::lift_fresh": "nothing is recorded: the tensor itself",
    **each(
        "PyTorch takes it apart before it arrives",
        *(f"__{op}__.{operand}" for op in ("and", "or", "xor") for operand in ("Scalar", "Tensor")),
        *("_fused_rms_norm", "float_power.Tensor_Tensor", "linalg_eigvals", "max.other"),
        *("min.other", "positive", "relu6", "reshape", "selu", "square", "true_divide.Tensor"),
    ),
    **each(
        NO_SHAPE,
        *("_fused_adagrad", "_fused_adagrad.tensor_lr", "_fused_adam.tensor_lr"),
        *("_fused_adamw.tensor_lr", "_fused_sgd", "_fused_sgd.tensor_lr", "_logcumsumexp"),
        *("_standard_gamma_grad", "fractional_max_pool3d_backward", "geqrf"),
    ),
    **each(
        "PyTorch has no CPU kernel of it, and calls it on accelerators only",
        *("_fused_rms_norm_backward", "_masked_scale"),
    ),
}
