"""Moving weights and the pool changes where numbers lie, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minipaged.models import huge_pages
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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't say what of a file is in memory")
def test_a_mapped_file_leaves_memory_while_its_weights_move(tmp_path: Path) -> None:
    """safetensors keeps the whole file mapped as long as one of its tensors lives."""
    path = tmp_path / "weights.safetensors"
    torch.manual_seed(0)
    saved = {name: torch.randn(rows, 1000) for name, rows in (("a", 3000), ("b", 6000), ("c", 10))}
    saved |= {"scalar": torch.tensor(3.0), "empty": torch.empty(0, 5)}
    save_file(saved, path)
    mapped = load_file(path)
    model = torch.nn.ParameterDict(mapped).requires_grad_(False)
    kept = mapped["c"].clone(), mapped["c"]
    assert sum(float(weight.sum()) for weight in model.values()) != 0  # reads every page
    assert resident_bytes(path) > 30e6
    huge_pages.move_weights(model)
    assert resident_bytes(path) < 1e6
    assert torch.equal(*kept)
    for name, weight in model.items():
        assert torch.equal(weight, saved[name])


def resident_bytes(path: Path) -> int:
    """How much of a mapped file this process has in memory."""
    sizes, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counts = line.endswith(str(path))
        elif counts and line.startswith("Rss:"):
            sizes += int(line.split()[1]) << 10
    return sizes
