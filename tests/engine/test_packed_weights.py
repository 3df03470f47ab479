"""Packed weights give the products of plain ones, and take their place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minipaged import LLM, SamplingParams
from minipaged.errors import BackendUnavailableError, InvalidConfigError
from minipaged.models import packed_weights
from minipaged.models.packed_weights import PackedFloat32Linear, PackedLinear, is_worth_it

CPU = torch.device("cpu")
needs_bfloat16 = pytest.mark.skipif(
    not is_worth_it(torch.bfloat16, CPU), reason="this processor has no units for bfloat16"
)
needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
BOTH = [pytest.param(torch.float32, marks=needs_mkl), pytest.param(torch.bfloat16, marks=needs_bfloat16)]
# A sum of 48 products of standard normal numbers, against float64: a few roundings of the dtype.
ALLOWED_ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.2}


@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("num_tokens", [1, 3, 31, 32, 33, 127, 128])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_a_packed_layer_multiplies_as_float64_does(dtype: torch.dtype, num_tokens: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 40, bias=bias).to(dtype)
    if bias:
        linear.bias.data.normal_()
    inputs = torch.randn(1, num_tokens, 48).to(dtype)
    with torch.inference_mode():
        packed = PackedFloat32Linear(linear) if dtype == torch.float32 else PackedLinear(linear)
        output = packed(inputs)
        expected = linear.double()(inputs.double())
    assert output.dtype == dtype and output.shape == (1, num_tokens, 40)
    assert (output.double() - expected).abs().max() < ALLOWED_ERROR[dtype]


@needs_mkl
def test_every_linear_layer_is_replaced_and_float32_keeps_its_weight(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), dtype="float32", num_blocks=8, pack_weights=True)
    layers = [module for module in llm.engine.loaded.model.modules() if "Linear" in type(module).__name__]
    assert len(layers) == 2 * 7 + 1  # q, k, v, o, gate, up, down of each layer, and the output layer
    for layer in layers:
        assert isinstance(layer, PackedFloat32Linear) and layer.weight.shape[1] == layer.in_features


@needs_bfloat16
def test_bfloat16_packs_by_itself_and_gives_the_tokens_of_plain_weights(tiny_chat_model: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = [[1, 2, 3, 4, 5], [7, 8, 9]]
    tokens = {}
    for packed in (None, False):
        llm = LLM(str(tiny_chat_model), dtype="bfloat16", num_blocks=8, pack_weights=packed)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens[packed] = [output.outputs[0].token_ids for output in outputs]
        is_packed = any(isinstance(module, PackedLinear) for module in llm.engine.loaded.model.modules())
        assert is_packed == (packed is None)
    assert tokens[None] == tokens[False]


def test_float32_packs_only_where_it_is_asked_to(tiny_chat_model: Path) -> None:
    model = LLM(str(tiny_chat_model), dtype="float32", num_blocks=8).engine.loaded.model
    assert not any("Packed" in type(module).__name__ for module in model.modules())


def test_float64_is_never_packed(tiny_chat_model: Path) -> None:
    model = LLM(str(tiny_chat_model), dtype="float64", num_blocks=8).engine.loaded.model
    assert not any("Packed" in type(module).__name__ for module in model.modules())
    with pytest.raises(InvalidConfigError, match="float64 weights can't be packed on this cpu"):
        LLM(str(tiny_chat_model), dtype="float64", num_blocks=8, pack_weights=True)


@pytest.mark.parametrize("value", [1, "yes"])
def test_pack_weights_is_none_true_or_false(tiny_chat_model: Path, value: object) -> None:
    with pytest.raises(InvalidConfigError, match="pack_weights must be None, True or False, got "):
        LLM(str(tiny_chat_model), pack_weights=value)  # type: ignore[arg-type]


@needs_mkl
def test_a_product_that_is_wrong_for_some_number_of_tokens_is_found_at_load(
    tiny_chat_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(PackedFloat32Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) * (1.001 if inputs.shape[1] == 31 else 1)

    monkeypatch.setattr(packed_weights, "PackedFloat32Linear", Wrong)
    with pytest.raises(BackendUnavailableError, match="a packed product of 31 tokens is wrong"):
        LLM(str(tiny_chat_model), dtype="float32", num_blocks=8, pack_weights=True)
