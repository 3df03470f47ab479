"""How long a step would take on a server: a roofline, and the host time of early vLLM.

Linear layers read all weights once per step, or compute two operations per weight and token, whichever takes
longer. Attention reads the K and V of every context. Host and launches add a constant, and a share per
sequence. Both are fitted to the paper's own measurements: see `HOST_SECONDS`.
Page: docs/paper.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.schedule import Schedule
from .model_shape import ModelShape

GIB = 1 << 30

# The share of a data sheet's figures that real kernels reach: our choice, usual for A100s.
BANDWIDTH_SHARE = 0.8
COMPUTE_SHARE = 0.6
# Two points of the paper's Figure 13 (vLLM, OPT-13B on an A100) give the time of a step, by Little's law:
# 30.42 requests at 2 per second with 338 tokens are 45 ms per step, 132.44 at 30 with 58.5 are 75 ms. These
# two constants are fitted so that the simulation passes both points. The roofline explains the rest.
HOST_SECONDS = 0.0045
HOST_SECONDS_PER_SEQUENCE = 0.00029
# An all-reduce over NVLink, twice per layer under tensor parallelism: its start, and bytes per second.
ALL_REDUCE_SECONDS = 20e-6
ALL_REDUCE_BANDWIDTH = 200e9
# The start of one copy between GPU and host memory, however small the copy is.
TRANSFER_SECONDS = 10e-6


@dataclass(frozen=True)
class Gpu:
    """Figures of a data sheet: bytes, bytes per second, 16-bit operations per second."""

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
    """GPUs that share a model by tensor parallelism, and the bytes that K and V may have."""

    gpu: Gpu
    num_gpus: int
    kv_bytes: int


# The paper's Table 1: the memory that weights and activations leave.
PAPER_SERVERS = {
    "opt-13b": Server(GPUS["a100-40gb"], 1, 12 * GIB),
    "opt-66b": Server(GPUS["a100-40gb"], 4, 21 * GIB),
    "opt-175b": Server(GPUS["a100-80gb"], 8, 264 * GIB),
    "llama-13b": Server(GPUS["a100-40gb"], 1, 12 * GIB),
}


class CostModel:
    """The seconds that a step of one model takes on one server."""

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
        """attention_slowdown: the time of a kernel with blocks of this size over the best time.

        copies_per_block: transfers per swapped block; 1 where a block is one piece of memory.
        seconds_per_sequence: the host's time per sequence and step.
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
        """Return the seconds of one forward pass.

        num_tokens: to be computed, of `num_sequences` sequences. num_context: tokens whose K and V are read,
        once per sequence. num_pairs: pairs of a query and a key that it attends to.
        """
        weights = self.shape.weight_bytes_read(num_tokens) * self.seconds_per_weight_byte
        linear = max(weights, num_tokens * self.seconds_per_token)
        attention = max(num_context * self.seconds_per_context_token, num_pairs * self.seconds_per_pair)
        reduces = self.reduce_seconds + num_tokens * self.reduce_seconds_per_token
        return linear + attention + reduces + HOST_SECONDS + num_sequences * self.seconds_per_sequence

    def move_seconds(self, step: Schedule) -> float:
        """Return the seconds of the copies and swaps at the beginning of a step."""
        num_copies = sum(move.kind == "copy" for move in step.moves)
        return num_copies * self.copy_seconds + (len(step.moves) - num_copies) * self.swap_seconds

    def step_seconds(self, step: Schedule) -> float:
        """Return the seconds of a whole step: its moves and its forward pass."""
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
