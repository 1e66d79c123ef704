# SPDX-License-Identifier: Apache-2.0
"""Op variants that gather when cut, and rules that nothing reaches: each with why."""

DATA = "the shape of the result depends on the data: runs on the host"
MATRIX = "one matrix: no batch to cut, and its rows and columns are needed whole"
PRODUCT = "both operands of a product are cut by the same axis: one is gathered"
LEAST_SQUARES = "the ranks that come along depend on the data: runs on the host"

GATHERED: dict[str, str] = {
    "argwhere": DATA,
    "corrcoef": PRODUCT,
    "cov": PRODUCT,
    "linalg_householder_product": MATRIX,
    "linalg_lstsq": LEAST_SQUARES,
    "linalg_lstsq_grad_oriented": LEAST_SQUARES,
    "linalg_tensorinv": MATRIX,
    "linalg_tensorsolve": MATRIX,
    "masked_scatter": "no rule: which element goes where depends on the mask before it",
    "masked_select": DATA,
    "multinomial": "draws by weight with PyTorch's own kernel: runs on the host",
    "nn_functional_ctc_loss": DATA,
    "nn_functional_pdist": "no rule: the distances of all pairs of rows, in one dimension",
    "nonzero": DATA,
    "nonzero_static": "where the k-th nonzero element lies depends on all before it: host",
    "unique": DATA,
    "unique_consecutive": DATA,
}


# Rules that nothing reaches.
UNREACHED: dict[str, str] = {}
