"""Sizes that several benches use, in tokens."""

BLOCK_SIZE = 16
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of the paper's Figures 18 and 19
MAX_MODEL_LEN = 2048  # of the paper's models
