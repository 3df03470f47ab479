"""What the commands take: groups of arguments that several of them share."""

from __future__ import annotations

import argparse

from ..config import BACKENDS
from ..machine import usable_cores


def add_simulate_arguments(command: argparse.ArgumentParser) -> None:
    """A server, a workload, and the engine's settings."""
    command.add_argument("--model", default="opt-13b", help="a name, a config.json, or a folder with one")
    command.add_argument("--gpu", default="a100-80gb", help="whose bandwidth and speed; also its memory")
    command.add_argument("--gpu-memory", metavar="SIZE", help='memory of each GPU, such as "80GiB"')
    command.add_argument("--num-gpus", type=int, default=1, metavar="N", help="tensor parallelism")
    command.add_argument("--gpu-memory-utilization", type=float, default=0.9, metavar="SHARE")
    command.add_argument("--kv-cache-memory", metavar="SIZE", help="instead of what the weights leave")
    command.add_argument(
        "--workload", default="sharegpt", metavar="NAME", help="sharegpt, alpaca, or a file of JSON lines"
    )
    command.add_argument("--minutes", type=float, default=10, metavar="M", help="of each simulated trace")
    command.add_argument(
        "--latency-target", type=float, default=0.1, metavar="S", help="seconds a token, on average"
    )
    command.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens a block")
    command.add_argument("--max-model-len", type=int, metavar="N", help="limit of prompt + output")
    command.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="sequences a step")
    command.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens a step")
    command.add_argument(
        "--host-us-per-sequence",
        type=float,
        default=20,
        metavar="US",
        help="host work in a step for each sequence: 20 is this engine's, 290 was vLLM's in the paper",
    )
    command.add_argument("--swap-space", default="0", metavar="SIZE", help="host memory to preempt to")
    add_simulation_arguments(command, output=None)


def add_simulation_arguments(command: argparse.ArgumentParser, output: str | None) -> None:
    """How many simulations run at a time, and where results go."""
    command.add_argument("--processes", type=int, default=usable_cores(), metavar="N", help="at a time")
    command.add_argument("--output", default=output, metavar="FILE", help="where the JSON goes")
    command.add_argument("--plot", metavar="FILE", help="draw latency over rate, as .svg or .png")


def add_engine_arguments(command: argparse.ArgumentParser) -> None:
    """The engine's settings, under vLLM's names."""
    group = command.add_argument_group("engine")
    group.add_argument("--model", default="smollm2-135m", help="a Hugging Face id or a folder")
    group.add_argument("--dtype", default="auto", help="auto, float32, float64, float16 or bfloat16")
    group.add_argument("--device", default="auto", help="auto, cpu or cuda")
    group.add_argument("--attention-backend", default="auto", metavar="NAME", help=", ".join(BACKENDS))
    group.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens a block")
    group.add_argument("--num-blocks", type=int, metavar="N", help="blocks in the pool")
    group.add_argument("--kv-cache-memory", metavar="SIZE", help='size of the pool, such as "512MiB"')
    group.add_argument("--max-model-len", type=int, metavar="N", help="limit of prompt + output")
    group.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="sequences a step")
    group.add_argument("--max-num-batched-tokens", type=int, default=2048, metavar="N", help="tokens a step")
    group.add_argument("--swap-space", metavar="SIZE", help='preempt to host memory, such as "1GiB"')
    group.add_argument("--no-prefix-caching", action="store_true", help="compute every prompt in full")
    group.add_argument("--seed", type=int, default=0, help="seed of requests that bring none")
    group.add_argument(
        "--use",
        action="append",
        metavar="FILE",
        help="serve with the allocator, block table and so on that FILE defines; may be given several times",
    )


def add_sampling_arguments(command: argparse.ArgumentParser, max_tokens: int = 64) -> None:
    """How tokens are chosen, and when to stop."""
    group = command.add_argument_group(
        "sampling", "These values stand as given: a model's generation_config.json is not used."
    )
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N")
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy")
    group.add_argument("--top-p", type=float, default=1.0, metavar="P")
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="0 keeps all")
    group.add_argument("--stop", action="append", metavar="TEXT", help="may be given several times")
    group.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")
    group.add_argument("--sampling-seed", type=int, metavar="SEED")
