"""The systems that are compared, and the rate each sustains: paging, Orca's three policies, static batches.

All run over the same trace with the same cost model. All but static batches use the same scheduler.
Page: docs/paper.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..engine.block_manager import BlockManager
from ..engine.scheduler import Scheduler
from ..errors import InvalidConfigError
from ..reference import contiguous
from ..reference.kv_cache_size import blocks_that_fit
from .cost_model import HOST_SECONDS_PER_SEQUENCE, CostModel, Server
from .model_shape import ModelShape
from .reserved_memory import ReservedMemory
from .simulation import ONE_SAMPLE, DecodingMethod, SimulationResult, simulate
from .static_batching import simulate_static_batches
from .workload import Lengths, poisson

POLICIES = {
    "orca-oracle": contiguous.oracle,
    "orca-pow2": contiguous.power_of_two,
    "orca-max": contiguous.maximum,
}
PAGED, STATIC = "paged", "static"
SYSTEM_NAMES = {
    PAGED: "vLLM",
    "orca-oracle": "Orca (Oracle)",
    "orca-pow2": "Orca (Pow2)",
    "orca-max": "Orca (Max)",
    STATIC: "FasterTransformer",
}
SYSTEMS = tuple(SYSTEM_NAMES)
NUM_HALVINGS = 6  # of the range of rates: to 1.1 %


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model on a server, and the settings of the engine. Lengths are in tokens, host memory in bytes."""

    shape: ModelShape
    server: Server
    max_model_len: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2560
    enable_prefix_caching: bool = False
    host_bytes: int = 0  # to swap to
    attention_slowdown: float = 1.0  # see CostModel
    copies_per_block: int = 1
    seconds_per_sequence: float = HOST_SECONDS_PER_SEQUENCE

    def __post_init__(self) -> None:
        num_slots = self.num_blocks * self.block_size
        if num_slots < self.max_model_len:
            raise InvalidConfigError(
                f"{self.server.kv_bytes} bytes hold {num_slots} tokens of {self.shape.name} in blocks of "
                f"block_size={self.block_size}, max_model_len={self.max_model_len} is more"
            )
        heads, kv_heads, num_gpus = self.shape.num_heads, self.shape.num_kv_heads, self.server.num_gpus
        if heads % num_gpus or kv_heads % num_gpus:
            raise InvalidConfigError(
                f"num_gpus={num_gpus} must divide the {heads} query and the {kv_heads} KV heads of "
                f"{self.shape.name}: no head is split or kept twice"
            )

    @property
    def num_slots(self) -> int:
        """The number of tokens whose K and V the memory holds."""
        return self.server.kv_bytes // self.shape.bytes_per_token

    @property
    def num_blocks(self) -> int:
        """The number of whole blocks that the memory holds."""
        return blocks_that_fit(self.server.kv_bytes, self.block_size, self.shape.bytes_per_token)

    @property
    def cost(self) -> CostModel:
        """The cost model of a step."""
        return CostModel(
            self.shape,
            self.server,
            self.block_size,
            attention_slowdown=self.attention_slowdown,
            copies_per_block=self.copies_per_block,
            seconds_per_sequence=self.seconds_per_sequence,
        )

    def memory(self, system: str) -> BlockManager:
        """Return the memory of a system: blocks, or slots that are reserved."""
        if system != PAGED:
            return ReservedMemory(self.num_slots, self.max_model_len, POLICIES[system])
        return BlockManager(
            self.num_blocks,
            self.block_size,
            num_host_blocks=blocks_that_fit(self.host_bytes, self.block_size, self.shape.bytes_per_token),
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def scheduler(self, system: str) -> Scheduler:
        """Return the engine's scheduler over that memory."""
        return Scheduler(
            self.memory(system),
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def serve(
    system: str,
    arrivals: Iterator[tuple[float, Lengths]],
    setting: Setting,
    method: DecodingMethod = ONE_SAMPLE,
    most: float = math.inf,
) -> SimulationResult:
    """Serve a trace, and stop once the normalized latencies sum up to more than `most` seconds."""
    if system == STATIC:
        batch_size = min(setting.num_slots // setting.max_model_len, setting.max_num_seqs)
        return simulate_static_batches(arrivals, batch_size, setting.num_slots, setting.cost)
    return simulate(arrivals, setting.scheduler(system), setting.cost, method, most=most)


class Point(NamedTuple):
    """A rate that was tried, in requests per second, and the normalized latency, perhaps of a stopped run."""

    rate: float
    latency: float


class Sustained(NamedTuple):
    """The highest rate within a target, the requests that then run at once, and all rates that were tried."""

    rate: float
    mean_running: float
    points: list[Point]


def sustained_rate(
    system: str,
    trace: Callable[[float], Sequence[Lengths]],
    setting: Setting,
    target: float,
    method: DecodingMethod = ONE_SAMPLE,
    highest: float = 4096.0,
) -> Sustained:
    """Find the highest rate at which the mean normalized latency is at most `target` seconds per token.

    trace: returns the requests to come at a rate. The search doubles the rate from far below until it is too
    high, or beyond `highest`. Then it halves the range between the last two, in equal ratios. The rate is 0
    if even the lowest is too high, as every rate is for a trace with a request that is refused.
    """
    points: list[Point] = []
    best = Sustained(0.0, 0.0, points)

    def within(rate: float) -> bool:
        nonlocal best
        lengths = trace(rate)
        most = target * len(lengths)
        outcome = serve(system, poisson(lengths, rate), setting, method, most)
        latency = math.inf if outcome.num_refused else outcome.sum_of_normalized / len(lengths)
        points.append(Point(rate, latency))
        if latency > target:
            return False
        if rate > best.rate:
            best = Sustained(rate, outcome.mean_running, points)
        return True

    low = min(1 / 64, highest)
    while low <= highest and within(low):
        low *= 2
    if best.rate == 0.0 or low > highest:
        return best
    high, low = low, low / 2
    for _ in range(NUM_HALVINGS):
        middle = math.sqrt(low * high)
        if within(middle):
            low = middle
        else:
            high = middle
    return best


def saturated(
    system: str, lengths: Sequence[Lengths], setting: Setting, method: DecodingMethod = ONE_SAMPLE
) -> SimulationResult:
    """Serve all requests at once: the pool is as full as the system can make it, until the queue is empty."""
    return serve(system, ((0.0, request) for request in lengths), setting, method)
