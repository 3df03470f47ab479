"""Bytes and waste by hand, for models whose figures are published."""

import pytest

from minipaged.reference.kv_cache_size import (
    blocks_that_fit,
    bytes_per_token,
    share_wasted,
    slots_paged,
    slots_reserved,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "size", "expected"),
    [
        (40, 40, 128, 2, 819_200),  # OPT-13B in float16: 800 KiB, as the paper says
        (32, 32, 128, 2, 524_288),  # LLaMA-7B: 512 KiB
        (32, 8, 128, 2, 131_072),  # Llama-3-8B, 8 KV heads for 32 query heads: 128 KiB
        (80, 8, 128, 2, 327_680),  # Llama-3-70B
        (32, 1, 128, 2, 16_384),  # one KV head for all: multi-query attention
        (30, 3, 64, 4, 46_080),  # SmolLM2-135M in float32
    ],
)
def test_bytes_per_token_of_known_models(layers: int, heads: int, dim: int, size: int, expected: int) -> None:
    assert bytes_per_token(layers, heads, dim, size) == expected


def test_a_request_of_opt_13b_takes_up_to_1_6_gigabytes() -> None:
    """Paper, section 3: 2,048 tokens of 800 KiB."""
    assert 2048 * bytes_per_token(40, 40, 128, 2) == 1_677_721_600


def test_slots_of_the_papers_first_server() -> None:
    """Table 1: OPT-13B, 12 GB for the KV cache, at most 15.7 K slots."""
    slots = 16 * blocks_that_fit(12 * GIB, 16, bytes_per_token(40, 40, 128, 2))
    assert slots == 15_728


def test_only_whole_blocks_fit() -> None:
    assert [blocks_that_fit(memory, 4, 10) for memory in (0, 39, 40, 79, 80)] == [0, 0, 1, 1, 2]


def test_a_hundred_requests_of_300_tokens() -> None:
    lengths = [300] * 100
    assert slots_reserved(lengths, 2048) == 204_800
    assert slots_paged(lengths, 16) == 30_400
    assert share_wasted(lengths, 204_800) == pytest.approx(0.853515625)
    assert share_wasted(lengths, 30_400) == pytest.approx(400 / 30_400)


def test_the_last_block_alone_has_empty_slots() -> None:
    assert slots_paged([1, 4, 5, 0], 4) == 4 + 4 + 8 + 0
    assert slots_paged([1, 4, 5], 1) == 10
    assert slots_paged([], 16) == 0


def test_nothing_taken_is_nothing_wasted() -> None:
    assert share_wasted([], 0) == 0.0
    assert share_wasted([8], 8) == 0.0


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="300 tokens, max_length is 256"):
        slots_reserved([100, 300], 256)
    for size in (0, -1, 2.0):
        with pytest.raises(ValueError, match="block_size must be a positive integer"):
            slots_paged([3], size)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="block_size must be a positive integer"):
            blocks_that_fit(100, size, 10)  # type: ignore[arg-type]
