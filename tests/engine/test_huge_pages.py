"""Moving weights and the pool changes where numbers lie, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minipaged.engine import huge_pages
from minipaged.models.loading import load_model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(3,), (5, 7, 2), (1 << 20, 3), (0, 4)])
def test_empty_has_the_size_asked_for_and_starts_on_a_cache_line(
    size: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = huge_pages.empty(size, dtype)
    assert tensor.shape == size and tensor.dtype == dtype and tensor.is_contiguous()
    assert tensor.numel() == 0 or tensor.data_ptr() % huge_pages.CACHE_LINE == 0
    tensor.fill_(3)
    assert bool((tensor == 3).all())


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma2"])
def test_moved_weights_give_the_same_logits_and_stay_tied(
    tiny_model: Callable[[str], Path], architecture: str
) -> None:
    model = load_model(tiny_model(architecture)).model
    tokens = torch.tensor([[1, 2, 3, 5, 8, 13]])
    names = {name: weight.clone() for name, weight in model.state_dict().items()}
    shared = len(list(model.parameters()))
    before = model(input_ids=tokens).logits
    huge_pages.move_weights(model)
    # Some BLAS round differently where memory begins elsewhere: in float64, the last bits.
    torch.testing.assert_close(model(input_ids=tokens).logits, before, rtol=1e-12, atol=1e-12)
    assert len(list(model.parameters())) == shared
    assert model.state_dict().keys() == names.keys()
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, names[name])
