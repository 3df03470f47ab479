"""One greedy decode step of one request passes few files: what a reader opens to follow a token.

`python tests/house/test_decode_step.py` prints them, with the lines of each file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import transformers

import minipaged
from minipaged import LLM, SamplingParams

ROOT = Path(minipaged.__file__).resolve().parents[1]
MOST_FILES, MOST_LINES = 23, 3_320
NOT_OF_A_GREEDY_STEP = {f"minipaged/engine/{name}.py" for name in ("logits", "beams", "stop_strings")}


def files_of_a_step(model: str) -> dict[str, int]:
    """The files of the project that run in one decode step, and how many lines each has."""
    llm = LLM(model, dtype="float32", device="cpu", num_blocks=8)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    llm.engine.add_request("one", [5, 6, 7], params)
    llm.engine.step()  # the prompt
    llm.engine.step()
    paths: set[str] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        paths.add(os.path.realpath(frame.f_code.co_filename))

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        llm.engine.step()
    finally:
        sys.settrace(before)
    rooms = tuple(str(ROOT / name) + os.sep for name in ("minipaged", "reference", "kernels"))
    own = sorted(path for path in paths if path.startswith(rooms))
    return {os.path.relpath(path, ROOT): len(Path(path).read_text().splitlines()) for path in own}


def tiny_llama(folder: str) -> str:
    """A random Llama of two layers."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_decode_step_passes_few_files(tmp_path: Path) -> None:
    files = files_of_a_step(tiny_llama(str(tmp_path)))
    assert "minipaged/engine/scheduler.py" in files and "reference/block_table.py" in files
    assert not NOT_OF_A_GREEDY_STEP & files.keys()
    assert len(files) <= MOST_FILES, files
    assert sum(files.values()) <= MOST_LINES, files


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = files_of_a_step(tiny_llama(folder))
    for name, num_lines in found.items():
        print(f"{num_lines:5}  {name}")
    print(f"{sum(found.values()):5}  lines in {len(found)} files")
