"""Settle how kernels run, and cut the model hub off, before any test imports triton or transformers."""

import os

from minipaged.machine import interpret_kernels_without_gpu

interpret_kernels_without_gpu()
os.environ["HF_HUB_OFFLINE"] = "1"
