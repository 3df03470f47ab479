"""Print, as JSON, how many times each Triton kernel would be compiled while an engine serves. No GPU is used.

Triton compiles a kernel anew for another specialisation of its arguments: a number that is 1 or a multiple of
16, an address that is a multiple of 16. Launches are noted as in compile_kernels.py, and Triton itself says
which specialisation each one has on a GPU of compute capability 9.0.
"""

import json
import random
from collections import defaultdict
from types import SimpleNamespace

import torch
import triton
from compile_kernels import record_launches
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from minipaged.engine.batch import BatchBuilder
from minipaged.kernels import allocator, attention, block_table

BACKEND = make_backend(GPUTarget("cuda", 90, 32))
CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, MAX_BLOCKS = 4, 2, 64, 16, 63


def specialisation(launch) -> tuple[str, str]:
    """The kernel's name, and what Triton looks its compiled code up by."""
    kernel, args, options = launch
    bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
    _, key, settings = bind(*args, **options)
    return kernel.fn.__name__, repr((key, settings))


def row(start: int, stop: int):
    """A row of a step: the tokens [start, stop) of a sequence."""
    blocks = [random.randrange(100) for _ in range(-(-stop // BLOCK_SIZE))]
    sequence = SimpleNamespace(token_ids=[0] * stop, table=SimpleNamespace(blocks=blocks))
    return SimpleNamespace(start=start, stop=stop, sequence=sequence, is_last_chunk=True)


def random_rows(num_decodes: int):
    """Some decodes, and up to two chunks of prompts."""
    lengths = [random.randrange(1, MAX_BLOCKS * BLOCK_SIZE) for _ in range(num_decodes)]
    decodes = [row(length - 1, length) for length in lengths]
    chunks = [row(start := random.randrange(300), start + random.randrange(2, 99)) for _ in range(2)]
    return decodes + chunks[: random.randrange(3) if decodes else 1]


def launch_step(builder: BatchBuilder, rows, pool: torch.Tensor) -> None:
    """Everything that the engine launches in a step of one layer."""
    batch = builder.build(rows)
    # The third line of the step's tokens, after their ids and positions.
    owners = batch.input_ids.as_strided(batch.positions.shape, (1,), 2 * len(batch.positions))
    block_table.launch_slot_mapping(batch.block_tables, batch.positions, owners, BLOCK_SIZE)
    tokens = torch.zeros(len(batch.positions), HEADS, HEAD_DIM, dtype=torch.float16)
    keys, values = pool[:, 0, 0], pool[:, 0, 1]
    block_table.launch_write_kv(tokens[:, :KV_HEADS], tokens[:, :KV_HEADS], keys, values, batch.slots)
    n = batch.num_decodes
    if n:
        attention.decode_attention(
            tokens[:n], keys, values, batch.decode_tables, batch.context_lengths[:n], scale=1.0
        )
    if n < len(rows):
        attention.prefill_attention(
            tokens[n:], keys, values, batch.block_tables[n:], batch.context_lengths[n:], batch.prefill_starts,
            scale=1.0, max_query_length=batch.max_query_length,
        )  # fmt: skip


def main() -> None:
    random.seed(0)
    launches = record_launches(triton.JITFunction)
    builder = BatchBuilder(
        max_num_tokens=999, max_num_seqs=66, max_blocks=MAX_BLOCKS, block_size=BLOCK_SIZE, device=CPU
    )
    builder._to_device = torch.clone  # a GPU has a copy, which begins at an address of its own
    pool = torch.zeros(100, 2, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM, dtype=torch.float16)
    for _ in range(200):
        launch_step(builder, random_rows(random.randrange(65)), pool)
    blocks = allocator.BlockAllocator(1000, "cpu")
    for batch in range(33, 65):  # one power of two
        lengths = torch.zeros(batch, dtype=torch.int32)
        blocks.allocate(lengths, torch.zeros(batch, random.randrange(1, 99), dtype=torch.int32), lengths)
    found = defaultdict(set)
    for launch in launches:
        name, key = specialisation(launch)
        found[name].add(key)
    print(json.dumps({name: len(keys) for name, keys in sorted(found.items())}))


if __name__ == "__main__":
    main()
