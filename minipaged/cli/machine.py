"""Look for a GPU without loading torch.

Triton and Numba read their interpreter switches when they are first imported, and importing transformers
imports triton. So a process of ours (tests, lessons, the command line) must set the switches before that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def has_gpu() -> bool:
    """Whether there is a CUDA or ROCm device."""
    if Path("/dev/kfd").exists() or any(Path("/proc/driver/nvidia/gpus").glob("*")):
        return True
    if shutil.which("nvidia-smi") is None:
        return False
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listing.returncode == 0 and "GPU" in listing.stdout


def interpret_kernels_without_gpu() -> None:
    """Without a GPU, let Triton interpret and Numba simulate. An explicit setting is respected."""
    if not has_gpu():
        os.environ.setdefault("TRITON_INTERPRET", "1")
        os.environ.setdefault("NUMBA_ENABLE_CUDASIM", "1")
