# SPDX-License-Identifier: Apache-2.0
"""Op variants that gather when they are sharded, and rules that nothing reaches, each with a
reason."""

TOTALS = "small samples: the number of chosen elements in each row is gathered, not the elements"
SORTED = "sorts the only dimension there is"
MATRIX = "one matrix: no batch to cut, and its rows and columns are needed whole"
PRODUCT = "both operands of a product are cut by the same axis: one is gathered"

GATHERED: dict[str, str] = {
    "argwhere": TOTALS,
    "corrcoef": PRODUCT,
    "cov": PRODUCT,
    "linalg_householder_product": MATRIX,
    "linalg_tensorinv": MATRIX,
    "linalg_tensorsolve": MATRIX,
    "masked_scatter": "the source is gathered where it is smaller than the result",
    "nn_functional_pdist": "no rule: the distances of all pairs of rows, in one dimension",
    "nonzero": TOTALS,
    "nonzero_static": TOTALS,
    "to_sparse": TOTALS,
    "unique": SORTED,
    "unique_consecutive": TOTALS,
}


IMAGE = "for images cut by rows or columns, which test_halos.py has, not by the first dimension"

START = "where a start is given at run time: test_changing_starts.py"

# Rules that nothing reaches.
UNREACHED: dict[str, str] = {
    "aten::_scaled_grouped_mm": "no kernel on the CPU to compare with: test_grouped_matmul.py",
    "aten::clone": "in graphs that are read; a recorded clone is its operand: elementwise_test.cc",
    "spmd::add_linear_dinput": "put together when a program is loaded: test_one_place.py",
    "spmd::channel_squares": "statistics of images in double precision",
    "spmd::col2im": IMAGE,
    "spmd::im2col": IMAGE,
    "spmd::resample_dinput": IMAGE,
    "spmd::roll_start": START,
    "spmd::slice_part": START,
    "spmd::slice_put_part": START,
}
