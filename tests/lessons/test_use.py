"""`minipaged generate --use`: a learner's code serves a tiny model, and a wrong one is told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from solutions import COURSE, Solution, solutions

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.cli.main import main
from minipaged.course import learner
from minipaged.course.learner import Learner
from minipaged.engine.parts import REFERENCE
from minipaged.errors import LearnerError
from minipaged.reference import allocator, block_table, copy_on_write, prefix_cache

LESSONS = Path(__file__).parents[2] / "lessons"
RIGHT = (
    "from minipaged.reference.allocator import BlockAllocator as Right\n\n\nclass BlockAllocator(Right):\n"
)
# Two begin alike, over two full blocks; with n = 3 a prompt's blocks are shared, and copied when written to.
PROMPTS = [[5, 9, 11, 7, 8, 30, 31, 32, 33, 34], [5, 9, 11, 7, 8, 30, 31, 32, 40], [99, 98, 97]]
PARAMS = SamplingParams(n=3, temperature=1.0, max_tokens=9, seed=1, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama, whose tokenizer knows a hundred words."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).save_pretrained(folder)
    words = tokenizers.models.WordLevel({f"w{i}": i for i in range(128)}, unk_token="w0")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[list[int]]]:
    """What the library's own parts generate."""
    return tokens(LLM(str(model), dtype="float64", block_size=4, num_blocks=24))


def tokens(llm: LLM) -> list[list[list[int]]]:
    """The samples of a first request, of two that may find its blocks, and the beams of a search."""
    first = llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)
    others = llm.generate(PROMPTS[1:], PARAMS, use_tqdm=False)
    beams = llm.beam_search(PROMPTS[2], BeamSearchParams(beam_width=3, max_tokens=6), use_tqdm=False)
    return [[each.token_ids for each in output.outputs] for output in [*first, *others, *beams]]


def serve(model: Path, *files: Path) -> list[list[list[int]]]:
    """The same through the parts in `files`, as the command line sets it up."""
    own = Learner.load(files)
    with own.guard():
        return tokens(
            LLM(
                str(model),
                dtype="float64",
                block_size=4,
                num_blocks=24,
                parts=own.parts,
                block_manager_class=own.block_manager_class,
                enable_prefix_caching=own.can_cache,
                check_invariants=True,
            )
        )


def written(tmp_path: Path, text: str, name: str = "mine.py") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def alone(module: object) -> str:
    """A library file as a learner might have written it, from outside the package; its errors are ours."""
    text = Path(str(getattr(module, "__file__", ""))).read_text()
    text = text.replace("from .", "from minipaged.reference.")
    return f"{text}\n\nfrom minipaged.reference.allocator import OutOfBlocksError\n"


def without_retain_and_release(text: str) -> str:
    """The text of an allocator without what lesson 3 leaves out."""
    return text[: text.index("    def retain")] + text[text.index("    def _checked") :]


def test_right_parts_of_several_files_generate_the_same_tokens(
    model: Path, expected: list[list[list[int]]], tmp_path: Path
) -> None:
    files = [
        written(tmp_path, alone(module), f"{name}.py")
        for module, name in (
            (allocator, "BlockAllocator"),
            (block_table, "BlockTable"),
            (copy_on_write, "copy_on_write"),
            (prefix_cache, "PrefixCache"),
        )
    ]
    own = Learner.load(files)
    assert own.can_cache and set(own.sources) == {path.stem for path in files}
    for name in ("allocator_class", "block_table_class", "prefix_cache_class", "copy_on_write"):
        assert getattr(own.parts, name) is not getattr(REFERENCE, name)
    assert own.parts.swap_in is REFERENCE.swap_in
    assert serve(model, *files) == expected


def test_an_allocator_without_retain_and_release_serves_without_prefix_caching(
    model: Path, expected: list[list[list[int]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As lesson 3 has it: `retain`, `release`, `can_reuse` and `num_cached` are left out."""
    own = without_retain_and_release(alone(allocator)).replace("self._retained: set[int]", "self._kept")
    path = written(tmp_path, own.replace("in self._retained", "in self._kept"))
    assert serve(model, path) == expected
    arguments = ["--model", str(model), "--block-size", "4", "--num-blocks", "20", "--max-tokens", "5"]
    assert main(["generate", "w5 w6 w7 w8 w9", "w5 w6 w7 w8 w10", *arguments, "--use", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"BlockAllocator is that of {path}" in printed
    assert printed.count("Prefix caching is off") == 1
    assert "4 of them found in the cache" not in printed


def test_with_retain_and_release_the_prefix_cache_is_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = "    def retain(self, block):\n        super().retain(block)\n\n"
    own += "    def release(self, block):\n        super().release(block)\n"
    path = written(tmp_path, RIGHT + own)
    arguments = ["--model", str(model), "--block-size", "4", "--num-blocks", "20", "--max-tokens", "5"]
    assert main(["generate", "w5 w6 w7 w8 w9", "w5 w6 w7 w8 w10", *arguments, "--use", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "Prefix caching is off" not in printed
    assert "4 of them found in the cache" in printed


HARMFUL = {
    "in_use_counts_users": r"num_in_use is \d+, and tables name \d+ blocks",
    "in_use_falls_with_each_use": r"num_in_use is \d+, and tables name \d+ blocks",
    "in_use_only_rises": r"num_in_use is \d+, and tables name \d+ blocks",
    "ignores_counts": r"free\(.*count of block \d+ went from 3 to 0, it must be 2",
    "none_for_nothing": r"free\(\[\]\) returned None: a list",
    "nothing_is_an_error": r"in share: ValueError: no blocks",
    "shares_a_set": r"share\(\[(\d+), \1, \1\]\): the count of block \1 went from 1 to 2, it must be 4",
    "shares_different_blocks": r"in share: ValueError: named twice",
}


@pytest.mark.parametrize("wrong", solutions("wrong", COURSE.find("3")), ids=lambda each: each.name)
def test_wrong_allocators_of_the_lesson_are_caught_or_harmless(
    model: Path, expected: list[list[list[int]]], wrong: Solution, tmp_path: Path
) -> None:
    """Few do harm: the engine asks for what it can get, and frees what it has."""
    path = wrong.write(tmp_path)
    path.write_text(without_retain_and_release(path.read_text()))
    if wrong.name not in HARMFUL:
        assert serve(model, path) == expected
        return
    with pytest.raises(LearnerError, match=rf"{path.name}.*{HARMFUL[wrong.name]}"):
        serve(model, path)


WRONG = {
    "hands out twice": (
        "    def allocate(self, num_blocks=1):\n"
        "        taken = self._free[-num_blocks:] if num_blocks else []\n"
        "        for block in taken:\n"
        "            self._counts[block] = 1\n"
        "        return taken\n",
        r"mine.py: block 0 is on the free stack while a table names it",
    ),
    "always the same": (
        "    def allocate(self, num_blocks=1):\n"
        "        taken = super().allocate(num_blocks)\n"
        "        return [taken[0]] * num_blocks if taken else []\n",
        r"allocate\(3\) with 24 free blocks returned \[0, 0, 0\]: block 0 is handed out twice",
    ),
    "too few": (
        "    def allocate(self, num_blocks=1):\n        return super().allocate(max(num_blocks - 1, 0))\n",
        r"allocate\(3\) with 24 free blocks returned \[0, 1\]: too few, 3 were asked for",
    ),
    "too many": (
        "    def allocate(self, num_blocks=1):\n        return super().allocate(num_blocks + 1)\n",
        r"too many, 3 were asked for",
    ),
    "nothing": (
        "    def allocate(self, num_blocks=1):\n        super().allocate(num_blocks)\n",
        r"returned None: it must be a list",
    ),
    "no such block": (
        "    def allocate(self, num_blocks=1):\n"
        "        return [block + 1000 for block in super().allocate(num_blocks)]\n",
        r"the pool has blocks 0 to 23",
    ),
    "not counted": (
        "    def allocate(self, num_blocks=1):\n"
        "        taken = super().allocate(num_blocks)\n"
        "        for block in taken:\n"
        "            self._counts[block] = 0\n"
        "        return taken\n",
        r"the count of block 0 is 0, it has one user now",
    ),
    "refuses": (
        "    def allocate(self, num_blocks=1):\n"
        "        from minipaged.reference.allocator import OutOfBlocksError\n"
        "        raise OutOfBlocksError(num_blocks, 0)\n",
        r"allocate\(3\) with 24 free blocks raised OutOfBlocksError",
    ),
    "never frees": (
        "    def free(self, blocks):\n        return []\n",
        r"mine.py: free\(.*: the count of block \d went from \d to (\d), it must be (?!\1)\d",
    ),
    "loses what is freed": (
        "    def free(self, blocks):\n"
        "        before = list(self._free)\n"
        "        unused = super().free(blocks)\n"
        "        self._free = before\n"
        "        return unused\n",
        r"a block is lost",
    ),
    "frees twice": (
        "    def free(self, blocks):\n"
        "        unused = super().free(blocks)\n"
        "        self._free += [block for block in unused if block not in self._retained]\n"
        "        return unused\n",
        r"block \d+ is on the free stack twice",
    ),
    "returns nothing": (
        "    def free(self, blocks):\n        super().free(blocks)\n",
        r"free\(.* returned None: a list",
    ),
    "shares nothing": (
        "    def share(self, blocks):\n        pass\n",
        r"share\(\[0, 1, 2\]\): the count of block 0 went from 1 to 1, it must be 2",
    ),
    "starts with nothing free": (
        "    def __init__(self, n):\n        super().__init__(n)\n        self._free = []\n",
        r"a block is lost: of 24, 0 can be handed out, 0 are in use",
    ),
    "raises": (
        "    def allocate(self, num_blocks=1):\n        return [[].pop() for _ in range(num_blocks)]\n",
        r"mine.py:6, in \S+: IndexError: pop from empty list",
    ),
    "raises in free too": (
        "    def allocate(self, num_blocks=1):\n"
        "        raise KeyError('first')\n\n"
        "    def free(self, blocks):\n"
        "        raise KeyError('second')\n",
        r"mine.py:6, in allocate: KeyError: 'first'",
    ),
    "not written in what it calls": (
        "    def share(self, blocks):\n        self.helper()\n\n"
        "    def helper(self):\n        if True:\n            raise NotImplementedError\n",
        r"helper is not written yet: .*mine.py:10",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_allocator_is_told_by_kind(model: Path, tmp_path: Path, name: str) -> None:
    body, told = WRONG[name]
    with pytest.raises(LearnerError, match=told) as error:
        serve(model, written(tmp_path, RIGHT + body))
    assert "\n" not in str(error.value)


WRONG_TABLES = {
    "a block early": (
        "    def num_blocks_needed(self, n):\n"
        "        return (self.num_tokens + n) // self.block_size + 1 - len(self.blocks)\n\n"
        "    def append(self, n, new_blocks=()):\n"
        "        self.blocks.extend(new_blocks)\n"
        "        self.num_tokens += n\n",
        r"a block table has 4 blocks of 4 for 12 tokens: 3 are needed",
    ),
    "a fork that is the same list": (
        "    def fork(self):\n"
        "        table = type(self)(self.block_size)\n"
        "        table.blocks, table.num_tokens = self.blocks, self.num_tokens\n"
        "        return table\n",
        r"block|copy",
    ),
}


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_a_wrong_block_table_is_told_too(model: Path, tmp_path: Path, name: str) -> None:
    body, told = WRONG_TABLES[name]
    text = "from minipaged.reference.block_table import BlockTable as Right\n\n\nclass BlockTable(Right):\n"
    with pytest.raises(LearnerError, match=told):
        serve(model, written(tmp_path, text + body))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", r"left|copy_on_write returned None .* the count of block \d+ is 3"),
        ("return block_table[index], 7", r"returned \(\d+, 7\) and changed the entry from (\d+) to \1"),
        ("return right(block_table, index, allocator) and 5", r"copy_on_write|TypeError"),
    ],
)
def test_a_wrong_copy_on_write_is_told_too(model: Path, tmp_path: Path, body: str, told: str) -> None:
    text = "from minipaged.reference.copy_on_write import copy_on_write as right\n\n\n"
    text += f"def copy_on_write(block_table, index, allocator):\n    {body}\n"
    with pytest.raises(LearnerError, match=told):
        serve(model, written(tmp_path, text))


def test_a_loop_that_never_ends_is_broken_off(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "TIME_LIMIT", 1)
    body = (
        "    def allocate(self, num_blocks=1):\n"
        "        while num_blocks:\n"
        "            try:\n"
        "                pass\n"
        "            except Exception:\n"
        "                return []\n"
        "        return []\n"
    )
    with pytest.raises(LearnerError, match=r"mine.py:\d+, in allocate: no answer within 1 s: a loop"):
        serve(model, written(tmp_path, RIGHT + body))


def test_what_is_not_written_yet_is_named_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = LESSONS / "03_allocator" / "exercise.py"
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "raise NotImpl" in text)
    for name in (path, path.parent):  # a folder stands for its exercise
        assert main(["generate", "hello", "--use", str(name)]) == 2
        error = capsys.readouterr().err
        assert "allocate is not written yet" in error and f"03_allocator/exercise.py:{line}" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no such file: .*mine.py"),
        ("x = 1\n", "mine.py defines nothing that the engine uses: BlockAllocator, BlockTable"),
        ("from minipaged.reference.allocator import BlockAllocator\n", "defines nothing"),
        ("class BlockAllocator:\n    def x(self:\n", "mine.py:2 can't be imported: SyntaxError"),
        ("import no_such_thing\n", "mine.py:1 can't be imported: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "can't be imported: SystemExit"),
        ("BlockAllocator = 5\n", "BlockAllocator must be a class, got 5"),
        ("class copy_on_write: pass\n", "copy_on_write must be a function"),
    ],
)
def test_a_file_that_is_of_no_use_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "mine.py" if text is None else written(tmp_path, text)
    with pytest.raises(LearnerError, match=told):
        Learner.load([path])


def test_chat_takes_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--use", str(tmp_path / "mine.py")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_one_part_from_two_files_is_refused(tmp_path: Path) -> None:
    files = [written(tmp_path, RIGHT + "    pass\n", name) for name in ("a.py", "b.py")]
    with pytest.raises(LearnerError, match=r"BlockAllocator is in .*a.py and in .*b.py"):
        Learner.load(files)


def test_the_callers_own_mistakes_stay_theirs(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, RIGHT + "    pass\n")
    arguments = ["--model", str(model), "--num-blocks", "2", "--block-size", "2", "--use", str(path)]
    assert main(["generate", "w5 w6 w7 w8 w9", *arguments]) == 2
    assert "can never fit the pool" in capsys.readouterr().err


def test_a_block_manager_of_ones_own_serves_as_well(
    model: Path, expected: list[list[list[int]]], tmp_path: Path
) -> None:
    text = (
        "from minipaged.engine.block_manager import BlockManager as Right\n\n\nclass BlockManager(Right):\n"
    )
    assert serve(model, written(tmp_path, text + "    pass\n")) == expected
    lost = text + "    def free(self, sequence):\n        sequence.table = self.new_table()\n"
    with pytest.raises(LearnerError, match=r"block \d+ was not given up|a block is lost"):
        serve(model, written(tmp_path, lost))
