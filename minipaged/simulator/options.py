"""The options of `minipaged simulate`, and the server and settings that they stand for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated

from typer import Option

from ..config import parse_bytes
from ..errors import InvalidConfigError
from .cost_model import GIB, GPUS, Server
from .model_shape import ModelShape, find_shape
from .processes import usable_cores
from .systems import Setting

MOST_BLOCKS = 1 << 25  # of a pool: their bookkeeping takes some 1.5 GB of memory
COUNTS = ("num_gpus", "block_size", "max_num_seqs", "max_num_batched_tokens", "processes", "max_model_len")


@dataclass(frozen=True)
class Options:
    """A server, its workload, and the engine's settings."""

    model: Annotated[str, Option(help="a name, a config.json, or a folder with one")] = "opt-13b"
    gpu: Annotated[str, Option(help="whose bandwidth and speed; also its memory")] = "a100-80gb"
    gpu_memory: Annotated[str | None, Option(help='memory of each GPU, such as "80GiB"')] = None
    num_gpus: Annotated[int, Option(help="tensor parallelism")] = 1
    gpu_memory_utilization: Annotated[float, Option(help="share that is used")] = 0.9
    kv_cache_memory: Annotated[str | None, Option(help="instead of what the weights leave")] = None
    workload: Annotated[str, Option(help="sharegpt, alpaca, or a file of JSON lines")] = "sharegpt"
    minutes: Annotated[float, Option(help="of each simulated trace")] = 10
    latency_target: Annotated[float, Option(help="seconds per token, on average")] = 0.1
    block_size: Annotated[int, Option(help="tokens per block")] = 16
    max_model_len: Annotated[int | None, Option(help="limit of prompt + output")] = None
    max_num_seqs: Annotated[int, Option(help="sequences per step")] = 256
    max_num_batched_tokens: Annotated[int | None, Option(help="tokens per step")] = None
    host_us_per_sequence: Annotated[
        float, Option(help="host work per sequence and step: 20 here, 290 in the paper's vLLM")
    ] = 20
    swap_space: Annotated[str, Option(help="host memory to preempt to")] = "0"
    processes: Annotated[int, Option(help="simulations at a time")] = usable_cores()
    output: Annotated[str | None, Option(help="file for all figures, as JSON")] = None
    plot: Annotated[str | None, Option(help="draw latency over rate, as .svg or .png")] = None


def setting_from(options: Options) -> Setting:
    """Return the server and the engine's settings. Raises InvalidConfigError, which names the argument."""
    _check_numbers(options)
    shape = find_shape(options.model)
    max_model_len = options.max_model_len or shape.max_model_len
    if max_model_len > shape.max_model_len:
        raise InvalidConfigError(
            f"max_model_len={max_model_len} is beyond the model's own limit of {shape.max_model_len}"
        )
    gpu = GPUS[options.gpu]
    if options.gpu_memory is not None:
        gpu = replace(gpu, memory=parse_bytes("gpu_memory", options.gpu_memory))
    kv_bytes = _kv_bytes(options, shape, gpu.memory * options.num_gpus)
    setting = Setting(
        shape=shape,
        server=Server(gpu, options.num_gpus, kv_bytes),
        max_model_len=max_model_len,
        block_size=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or max(2560, max_model_len),
        seconds_per_sequence=options.host_us_per_sequence / 1e6,
    )
    _check_blocks("gpu_memory or kv_cache_memory", setting.num_blocks)
    return setting


def _check_numbers(options: Options) -> None:
    """Raise InvalidConfigError for a number out of range, and for an unknown GPU."""
    for name in COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidConfigError(f"{name} must be at least 1, got {value}")
    for name in ("latency_target", "minutes"):
        if not 0 < getattr(options, name) < math.inf:
            raise InvalidConfigError(f"{name} must be above 0 and finite, got {getattr(options, name)}")
    if not 0 <= options.host_us_per_sequence < math.inf:
        raise InvalidConfigError(
            f"host_us_per_sequence must be 0 or more and finite, got {options.host_us_per_sequence}"
        )
    if not 0 < options.gpu_memory_utilization <= 1:
        raise InvalidConfigError(
            f"gpu_memory_utilization must be above 0 and at most 1, got {options.gpu_memory_utilization}"
        )
    if options.gpu not in GPUS:
        raise InvalidConfigError(f"gpu must be one of {', '.join(GPUS)}, got {options.gpu!r}")


def _check_blocks(names: str, num_blocks: int) -> None:
    if num_blocks > MOST_BLOCKS:
        raise InvalidConfigError(
            f"{names}: {num_blocks:,} blocks are more than the {MOST_BLOCKS:,} that can be simulated; "
            "a larger block_size makes fewer"
        )


def _kv_bytes(options: Options, shape: ModelShape, memory: int) -> int:
    """Return the memory for K and V: as requested, or as the weights leave it."""
    if options.kv_cache_memory is not None:
        requested = parse_bytes("kv_cache_memory", options.kv_cache_memory)
        if requested + shape.weight_bytes > memory:
            raise InvalidConfigError(
                f"kv_cache_memory={options.kv_cache_memory!r} and {shape.weight_bytes / GIB:.1f} GiB of "
                f"weights are more than the {memory / GIB:.1f} GiB of all GPUs"
            )
        return requested
    left = int(memory * options.gpu_memory_utilization) - shape.weight_bytes
    if left <= 0:
        raise InvalidConfigError(
            f"{shape.name} has {shape.weight_bytes / GIB:.1f} GiB of weights, gpu_memory_utilization="
            f"{options.gpu_memory_utilization} of {memory:,} bytes is no more: take more GPUs (num_gpus)"
        )
    return left


def swap_space_from(options: Options, setting: Setting) -> int:
    """Return the bytes of host memory to preempt to. Raises InvalidConfigError if they hold no block."""
    space = parse_bytes("swap_space", options.swap_space)
    block_bytes = setting.block_size * setting.shape.bytes_per_token
    if 0 < space < block_bytes:
        raise InvalidConfigError(
            f"swap_space={options.swap_space!r} holds no block: one takes {block_bytes:,} bytes"
        )
    _check_blocks("swap_space", space // block_bytes)
    return space
