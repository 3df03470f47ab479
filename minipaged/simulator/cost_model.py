"""How long a step would take on a server: a roofline, and what early vLLM spent beside it.

Linear layers read all weights once a step, or compute two operations a weight and token, whichever takes
longer; attention reads the K and V of every context. Host and launches add a constant and a share for each
sequence. The paper's own measurements fix those: see `HOST_SECONDS`.
Page: docs/paper.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.scheduler import Schedule
from .model_shape import ModelShape

GIB = 1 << 30

# What real kernels reach of a data sheet's figures; usual for A100s, and ours to choose.
BANDWIDTH_SHARE = 0.8
COMPUTE_SHARE = 0.6
# Two points of the paper's Figure 13 (vLLM, OPT-13B on an A100) say what a step took, by Little's law: 30.42
# requests at 2 a second and 338 tokens each are 45 ms a step, 132.44 at 30 and 58.5 are 75 ms. The roofline
# explains the rest; these are fitted so that the simulation has the same two points.
HOST_SECONDS = 0.0045
HOST_SECONDS_PER_SEQUENCE = 0.00029
# An all-reduce over NVLink, twice a layer under tensor parallelism: start, and bytes a second.
ALL_REDUCE_SECONDS = 20e-6
ALL_REDUCE_BANDWIDTH = 200e9
# One copy between GPU and host memory starts so late, however small it is.
TRANSFER_SECONDS = 10e-6


@dataclass(frozen=True)
class Gpu:
    """Figures of a data sheet: bytes, bytes a second, 16-bit operations a second."""

    name: str
    memory: int
    bandwidth: float
    flops: float
    host_bandwidth: float  # PCIe, one way


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40gb", 40 * GIB, 1555e9, 312e12, 25e9),
        Gpu("a100-80gb", 80 * GIB, 2039e9, 312e12, 25e9),
        Gpu("h100-80gb", 80 * GIB, 3350e9, 989e12, 50e9),
        Gpu("h200", 141 * 10**9, 4800e9, 989e12, 50e9),
        Gpu("l4", 24 * GIB, 300e9, 121e12, 25e9),
        Gpu("rtx-4090", 24 * GIB, 1008e9, 165e12, 25e9),
    )
}


@dataclass(frozen=True)
class Server:
    """So many GPUs that share a model by tensor parallelism, and the bytes that K and V may have."""

    gpu: Gpu
    num_gpus: int
    kv_bytes: int


# The paper's Table 1: what is left of the memory once weights and activations have theirs.
PAPER_SERVERS = {
    "opt-13b": Server(GPUS["a100-40gb"], 1, 12 * GIB),
    "opt-66b": Server(GPUS["a100-40gb"], 4, 21 * GIB),
    "opt-175b": Server(GPUS["a100-80gb"], 8, 264 * GIB),
    "llama-13b": Server(GPUS["a100-40gb"], 1, 12 * GIB),
}


class CostModel:
    """Seconds that a step of one model takes on one server."""

    def __init__(
        self,
        shape: ModelShape,
        server: Server,
        block_size: int,
        *,
        attention_slowdown: float = 1.0,
        copies_per_block: int = 1,
        seconds_per_sequence: float = HOST_SECONDS_PER_SEQUENCE,
    ) -> None:
        """attention_slowdown: of a kernel that reads blocks of this size, against the best.

        copies_per_block: transfers that swapping one takes; 1 where a block is one piece of memory.
        seconds_per_sequence: what the host does for each in a step.
        """
        gpu, n = server.gpu, server.num_gpus
        bandwidth, flops = gpu.bandwidth * n * BANDWIDTH_SHARE, gpu.flops * n * COMPUTE_SHARE
        self.shape = shape
        self.seconds_per_sequence = seconds_per_sequence
        self.seconds_per_weight_byte = 1 / bandwidth
        self.seconds_per_token = 2 * shape.num_active_parameters / flops
        self.seconds_per_context_token = attention_slowdown * shape.bytes_per_token / bandwidth
        # Scores and weighted sums: two multiplications and additions each, for every pair of tokens.
        self.seconds_per_pair = 4 * shape.num_layers * shape.num_heads * shape.head_dim / flops
        self.copy_seconds = 2 * block_size * shape.bytes_per_token / bandwidth
        block_bytes = block_size * shape.bytes_per_token
        self.swap_seconds = copies_per_block * TRANSFER_SECONDS + block_bytes / (gpu.host_bandwidth * n)
        num_reduces = 2 * shape.num_layers if n > 1 else 0
        self.reduce_seconds = num_reduces * ALL_REDUCE_SECONDS
        wire = 2 * (n - 1) / n * shape.hidden_size * shape.bytes_per_value / ALL_REDUCE_BANDWIDTH
        self.reduce_seconds_per_token = num_reduces * wire

    def forward_seconds(self, num_tokens: int, num_sequences: int, num_context: int, num_pairs: int) -> float:
        """One forward pass.

        num_tokens: to be computed, of `num_sequences` sequences. num_context: tokens whose K and V are read,
        by each sequence once. num_pairs: of a query and a key that it attends to.
        """
        weights = self.shape.weight_bytes_read(num_tokens) * self.seconds_per_weight_byte
        linear = max(weights, num_tokens * self.seconds_per_token)
        attention = max(num_context * self.seconds_per_context_token, num_pairs * self.seconds_per_pair)
        reduces = self.reduce_seconds + num_tokens * self.reduce_seconds_per_token
        return linear + attention + reduces + HOST_SECONDS + num_sequences * self.seconds_per_sequence

    def move_seconds(self, step: Schedule) -> float:
        """The copies and swaps that a step begins with."""
        if not step.moves:
            return 0.0
        num_copies = sum(move.kind == "copy" for move in step.moves)
        return num_copies * self.copy_seconds + (len(step.moves) - num_copies) * self.swap_seconds

    def step_seconds(self, step: Schedule) -> float:
        """All of a step: its moves, and its forward pass."""
        num_tokens = num_context = num_pairs = 0
        for _, _, start, stop, _ in step.rows:
            num_new = stop - start
            num_tokens += num_new
            if self.shape.window is None:
                num_context += stop
                num_pairs += num_new * (start + stop + 1) // 2  # a token attends to those up to itself
            else:
                context = self.shape.bytes_read(stop) // self.shape.bytes_per_token
                num_context += context
                num_pairs += num_new * context
        seconds = self.move_seconds(step)
        if num_tokens:
            seconds += self.forward_seconds(num_tokens, len(step.rows), num_context, num_pairs)
        return seconds
