"""Heads of the output follow each other.

Words: a head of the output begins at row * output_row_stride
"""

EDITS = {
    "row * output_row_stride + head * output_head_stride": "(row * num_heads + head) * HEAD_DIM",
}
