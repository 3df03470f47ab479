"""Model folders and GGUF files with faults: a typed error or a model that runs, soon and in little memory.

`make fuzz` tries 300 of each, the suite a few. Every case follows from its number alone.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from how_often import UNDER_FUZZ, how_often
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from minipaged import LLM, SamplingParams
from minipaged.errors import MinipagedError

TIMES = how_often(15, 300)
MOST_SECONDS = 10
MOST_GROWTH = 200 << 20
WORDS = ["<eos>", "<bos>", *"abcdefghijklmnopqrstuvwxyz0123456789 "]
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
FOLDERS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8},
    "Gemma3Text": {"head_dim": 8, "sliding_window": 8},
    "GPT2": {},
}
HOSTILE: list[Any] = [
    0, -1, 1, 3, 7, 10**6, 10**9, 10**12, 2**63, 10**30, -(10**12), 0.5, 1e9, 1e308, float("nan"),
    float("inf"), "", "x", "gelu", "../../x", "/etc/passwd", "9" * 5000, "\ud83d", None, True,
    False, [], [0], [10**9] * 3, ["x"], {}, {"a": {"b": 1}}, [[[[[[]]]]]],
]  # fmt: skip
ROPE_TYPES = ["linear", "dynamic", "yarn", "longrope", "llama3", "default", "none"]
# Keys that a configuration may have, and ours have not.
KEYS = [
    "auto_map", "quantization_config", "layer_types", "text_config", "vision_config",
    "model_max_length", "dtype", "torch_dtype", "transformers_weights", "architectures",
    "model_type", "rope_scaling", "sliding_window", "head_dim", "attention_chunk_size", "n_layer",
    "num_layers", "is_encoder_decoder", "tie_word_embeddings", "eos_token_id", "attention_bias",
    "partial_rotary_factor", "n_inner", "use_cache", "attn_logit_softcapping", "num_labels",
    "temperature", "top_k", "repetition_penalty", "max_new_tokens", "suppress_tokens",
    "stop_strings", "num_beams",
]  # fmt: skip


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One sound folder of each kind."""
    made = []
    for name, special in FOLDERS.items():
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(name)
        config = getattr(transformers, f"{name}Config")(**(SIZES | special))
        model = AutoModelForCausalLM.from_config(config)
        model.save_pretrained(folder, max_shard_size="30KB" if name == "Qwen2" else "1GB")
        words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<eos>"))
        words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(folder)
        made.append(folder)
    return made


@pytest.fixture(scope="module")
def gguf_base(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound GGUF file of a Llama."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES))
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, name in (
        ("context_length", "max_position_embeddings"),
        ("block_count", "num_hidden_layers"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("vocab_size", "vocab_size"),
    ):
        writer.add_uint32(f"llama.{key}", SIZES[name])
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*WORDS[:-1], "Ġ", "ab", *(f"w{i}" for i in range(63 - len(WORDS)))])
    writer.add_token_types([3, 3] + [1] * 62)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.numpy(force=True))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys, at any depth."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def change_count(content: bytes, rng: random.Random, reach: int) -> bytes:
    """Overwrite what looks like a count or a length: seven zeros after a byte of something."""
    found = [i for i in range(reach) if content[i] and content[i + 1 : i + 8] == bytes(7)]
    place = rng.choice(found)
    number = rng.choice([0, 1, content[place] + 1, 2**16, 2**20, 2**32, 2**40, 2**63, 2**64 - 1])
    return content[:place] + struct.pack("<Q", number) + content[place + 8 :]


def change_json(content: bytes, rng: random.Random) -> bytes:
    """Change, remove or add one value somewhere."""
    value = json.loads(content)
    known = list(places(value)) or [(value, "x")]
    sizes = [(parent, key) for parent, key in known if isinstance(parent[key], int)]
    container, key = rng.choice(rng.choice([known, sizes or known]))
    what = rng.random()
    if what < 0.1 and isinstance(container, dict):
        container.pop(key, None)
    elif what < 0.4 and isinstance(value, dict):
        value[rng.choice(KEYS)] = rng.choice(HOSTILE)
    elif what < 0.5 and isinstance(value, dict):
        value["rope_parameters"] = {
            "rope_type": rng.choice(ROPE_TYPES),
            "rope_theta": rng.choice([1e4, 1e4, rng.choice(HOSTILE)]),
            "factor": rng.choice([2.0, rng.choice(HOSTILE)]),
            "original_max_position_embeddings": rng.choice([32, rng.choice(HOSTILE)]),
        }
    else:
        container[key] = rng.choice(rng.choice([HOSTILE, [0, -1, 10**9, 10**12]]))
    return json.dumps(value).encode()


def change_bytes(content: bytes, rng: random.Random, reach: int | None = None) -> bytes:
    """Flip, overwrite, remove or add some bytes, or cut the end off; within the first `reach` bytes."""
    if not content:
        return b"\0"
    place = rng.randrange(min(reach or len(content), len(content)))
    how = rng.randrange(6)
    if how == 0:
        return content[:place]
    if how == 1:
        return content[:place] + content[place + rng.randrange(1, 9) :]
    if how == 2:
        return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:]
    number = rng.choice([0, 1, 2**16, 2**20, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
    new = struct.pack("<Q", number) if how < 5 else bytes([content[place] ^ (1 << rng.randrange(8))])
    return content[:place] + new + content[place + len(new) :]


def change_tensors(content: bytes, rng: random.Random) -> bytes:
    """Change what the header of a safetensors file says."""
    (length,) = struct.unpack_from("<Q", content)
    header = change_json(content[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def spoil(folder: Path, rng: random.Random) -> str:
    """Put a fault into one file of a folder. Returns what was done."""
    path = rng.choice(sorted(each for each in folder.iterdir() if each.is_file()))
    if rng.random() < 0.5:
        path = folder / "config.json"
    if not path.is_file():
        return "nothing"
    content = path.read_bytes()
    how = rng.random()
    if how < 0.03:
        path.unlink()
        path.mkdir()
        return f"{path.name} is a folder"
    if how < 0.25:
        path.write_bytes(change_bytes(content, rng, 400))
        return f"bytes of {path.name}"
    try:
        change = change_json if path.suffix == ".json" else change_tensors
        path.write_bytes(change(content, rng))
    except (ValueError, struct.error, RecursionError):  # spoiled before
        path.write_bytes(change_bytes(content, rng))
    return f"values of {path.name}"


def peak_memory() -> int:
    """The most bytes that this process has held since the last call to `forget_peak`, or ever."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forget_peak() -> None:
    """Start anew to look for the largest memory, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def load_and_run(model: Path) -> str:
    """Load a model and let it generate. Returns the outcome; anything but a typed error is raised."""
    try:
        llm = LLM(
            str(model), device="cpu", num_blocks=8, block_size=4, max_num_seqs=4, max_num_batched_tokens=64
        )
    except MinipagedError as error:
        assert "\n" not in str(error)
        return type(error).__name__
    greedy = SamplingParams(temperature=0, max_tokens=3)
    for params in (greedy, None):
        try:
            (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
        except MinipagedError as error:
            return f"{type(error).__name__} when it runs"
        assert output.finished and output.outputs[0].finish_reason in ("stop", "length", "capacity")
    return "runs"


def try_all(prepare: Callable[[int], tuple[Path, str]]) -> Counter[str]:
    """Every case in turn, in this process. Returns how many ended in which way."""
    outcomes: Counter[str] = Counter()
    faults = []
    for case in range(TIMES):
        model, what = prepare(case)
        forget_peak()
        faulthandler.dump_traceback_later(
            20 * MOST_SECONDS, exit=True, file=sys.__stderr__
        )  # what hangs in native code
        start, before = time.perf_counter(), peak_memory()
        try:
            outcome = load_and_run(model)
        except BaseException as error:  # a panic in Rust is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = f"{type(error).__name__}: {error}"
            faults.append(f"case {case} ({what}): {outcome}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        seconds, growth = time.perf_counter() - start, peak_memory() - before
        if seconds > MOST_SECONDS or growth > MOST_GROWTH:
            faults.append(f"case {case} ({what}): {outcome}, {seconds:.1f} s, {growth >> 20} MiB more")
        outcomes[outcome] += 1
    assert not faults, "\n".join(faults)
    return outcomes


def test_folders_with_faults(bases: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_and_run(bases[0])  # what the first load imports and compiles doesn't count

    def prepare(case: int) -> tuple[Path, str]:
        rng = random.Random(case)
        folder = tmp_path / str(case)
        base = bases[case % len(bases)]
        shutil.rmtree(tmp_path / str(case - 1), ignore_errors=True)
        shutil.copytree(base, folder)
        done = [spoil(folder, rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        return folder, f"{base.name}, {', '.join(done)}"

    outcomes = try_all(prepare)
    if UNDER_FUZZ:
        with capsys.disabled():
            print(f"\n{TIMES} model folders: {dict(outcomes)}")


def test_gguf_files_with_faults(gguf_base: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_base)
    assert load_and_run(path) == "runs"
    header = gguf_base.index(b"output_norm.weight") + 100

    def prepare(case: int) -> tuple[Path, str]:
        rng = random.Random(case)
        content = gguf_base
        for _ in range(rng.choice([1, 1, 2])):
            change = rng.choice([change_bytes, change_count])
            content = change(content, rng, min(header, len(content) - 8))
        path.write_bytes(content)
        return path, "bytes of the header"

    outcomes = try_all(prepare)
    if UNDER_FUZZ:
        with capsys.disabled():
            print(f"\n{TIMES} GGUF files: {dict(outcomes)}")
