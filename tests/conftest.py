"""Settle how kernels run, and cut the model hub off, before any test imports triton or transformers."""

import os

from minipaged.cli.machine import interpret_kernels_without_gpu

interpret_kernels_without_gpu()
os.environ["HF_HUB_OFFLINE"] = "1"
# Tests run side by side, and their models are tiny: more threads than cores only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
