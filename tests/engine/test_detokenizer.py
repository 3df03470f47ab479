"""Text token by token: no syllable lost, no text shown twice, no part of a stop string shown at all."""

import itertools
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from minipaged.engine.detokenizer import IncrementalDetokenizer
from minipaged.engine.stop_strings import StopMatcher
from minipaged.errors import InvalidRequestError
from minipaged.models.default_model import ensure_default_model

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, twice. It's 12:30!",
    "오늘은 삼겹살을 먹었다. 내일은 비가 온다고 한다.",
    "Family: 👩‍👩‍👧‍👦 and flags 🇰🇷 🙂🙂 done\n\tend",
    "naïve café, 日本語 и русский",
]
BYTE_LEVEL_ALPHABET = pre_tokenizers.ByteLevel.alphabet()


def _byte_char(byte: int) -> str:
    """How byte-level BPE writes a byte, asked of the tokenizers library."""
    if byte < 0x80:
        pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(chr(byte))
        return pieces[0][0]
    lead = 0xC2 if byte < 0xC0 else 0xC3  # U+0080 to U+00FF are C2 80 to C3 BF
    text = bytes([lead, byte if byte < 0xC0 else byte - 0x40]).decode()
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    if byte < 0xC0:
        return pieces[0][0][1]
    # A byte from C0 on: the lead byte of some character, or, beyond UTF-8, its own character in Latin-1.
    return chr(byte)


def _byte_level(pieces: list[bytes]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose token i is exactly the bytes pieces[i]."""
    vocab = {"".join(_byte_char(byte) for byte in piece): i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE, trained, with special and plain added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=BYTE_LEVEL_ALPHABET,
        special_tokens=["<|end|>", "<|start|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken("안녕 세상", normalized=False), AddedToken("<think>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@pytest.fixture(scope="module")
def byte_fallback() -> PreTrainedTokenizerFast:
    """What LLaMA's tokenizer is: pieces with a mark for a space, bytes for what has no piece."""
    words = ["▁the", "▁a", "the", "a", "▁", "▁고기", "고기", "é", ".", "\n", "ing", "▁삼", "\ufffd"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="module")
def word_piece() -> PreTrainedTokenizerFast:
    """A tokenizer whose text of a token depends on its neighbours and that knows nothing of bytes."""
    vocab = {
        word: i
        for i, word in enumerate(
            ["[UNK]", "page", "##d", "cache", "##s", "삼", "##겹", ".", "\ufffd", "<0x41>"]
        )
    }
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _run(tokenizer, prompt, output) -> tuple[list[str], str]:
    """The delta of each token, and the one at the end."""
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    deltas = [detokenizer.add(token_id) for token_id in output]
    rest = detokenizer.flush()
    assert detokenizer.text == "".join(deltas) + rest
    return deltas, rest


# ------------------------------------------------------------------ characters


def test_a_syllable_comes_out_with_its_last_byte():
    pieces = ["EC82", "BCEA", "B2B9EC", "82B4", "F09F", "9982"]
    tokenizer = _byte_level([bytes.fromhex(piece) for piece in pieces])
    deltas, rest = _run(tokenizer, [], range(6))
    assert deltas == ["", "삼", "겹", "살", "", "🙂"]
    assert rest == ""


@pytest.mark.parametrize("kind", ["byte-level", "fallback"])
def test_a_replacement_character_of_the_model_is_kept_and_does_not_stall(kind, byte_fallback):
    if kind == "byte-level":
        tokenizer, output = _byte_level([b"A", "\ufffd".encode(), b"B"]), [0, 1, 2]
    else:
        pieces = ["<0x41>", "<0xEF>", "<0xBF>", "<0xBD>", "<0x42>"]
        tokenizer, output = byte_fallback, byte_fallback.convert_tokens_to_ids(pieces)
    deltas, rest = _run(tokenizer, [], output)
    assert [delta for delta in deltas if delta] == ["A", "\ufffd", "B"]
    assert deltas[-2:] == ["\ufffd", "B"] and rest == ""


def test_replacement_characters_without_end_are_given_out_as_they_come():
    tokenizer = _byte_level([b"\x80", "\ufffd".encode(), b"A"])
    deltas, _ = _run(tokenizer, [], [0, 1] * 50)
    assert deltas == ["\ufffd"] * 100


def test_a_piece_that_is_a_replacement_character_waits_for_three_tokens_at_most(byte_fallback):
    # Seen from outside it might be the start of a character of a tokenizer that is not understood.
    token_id = byte_fallback.convert_tokens_to_ids("\ufffd")
    a = byte_fallback.convert_tokens_to_ids("a")
    deltas, rest = _run(byte_fallback, [a], [a, token_id, a])
    assert "".join(deltas) + rest == "a\ufffda"
    deltas, rest = _run(byte_fallback, [a], [token_id] * 9)
    assert "".join(deltas) == "\ufffd" * 8 and rest == "\ufffd"


def test_a_cut_off_character_comes_with_the_flush():
    tokenizer = _byte_level([b"A", bytes.fromhex("EC82")])
    assert _run(tokenizer, [], [0, 1]) == (["A", ""], "\ufffd")
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    detokenizer.add(1)
    assert [detokenizer.flush(), detokenizer.flush()] == ["\ufffd", ""]


def test_emoji_joined_over_tokens_comes_out_whole_and_in_order():
    family = "👩‍👩‍👧‍👦"
    raw = family.encode()
    pieces = [bytes([byte]) for byte in sorted(set(raw))]
    deltas, rest = _run(_byte_level(pieces), [], [pieces.index(bytes([byte])) for byte in raw])
    assert "".join(deltas) == family and rest == ""
    assert [delta for delta in deltas if delta] == list(family)


def test_a_prompt_that_ends_inside_a_character():
    pieces = [b"Hello ", bytes.fromhex("EC82"), bytes.fromhex("BC"), b"A", bytes.fromhex("EC")]
    tokenizer = _byte_level(pieces)
    # Completed by the output: it is the output's. Not completed: its U+FFFD is the prompt's.
    assert _run(tokenizer, [0, 1], [2, 3]) == (["삼", "A"], "")
    assert _run(tokenizer, [0, 1], [3, 3]) == (["A", "A"], "")
    assert _run(tokenizer, [0, 1], [4, 3]) == (["", "\ufffdA"], "")
    assert _run(tokenizer, [0, 1], []) == ([], "")
    assert _run(tokenizer, [0, 4], [4]) == ([""], "\ufffd")


def test_a_prompt_that_ends_inside_a_character_of_fallback_bytes(byte_fallback):
    ids = byte_fallback.convert_tokens_to_ids
    prompt = [1, *ids(["▁the", "<0xEC>", "<0x82>"])]
    assert _run(byte_fallback, prompt, ids(["<0xBC>", "▁a"])) == (["삼", " a"], "")
    assert _run(byte_fallback, prompt, ids(["▁a"])) == ([" a"], "")
    assert _run(byte_fallback, prompt, []) == ([], "")


# ------------------------------------------------------------------ spaces, special tokens


def test_the_space_of_the_first_token_depends_on_the_prompt(byte_fallback):
    ids = byte_fallback.convert_tokens_to_ids
    output = ids(["▁the", "▁a", "ing"])
    assert _run(byte_fallback, [1], output)[0] == ["the", " a", "ing"]
    assert _run(byte_fallback, [1, *ids(["▁a"])], output)[0] == [" the", " a", "ing"]
    assert _run(byte_fallback, [1, *ids(["▁a"]), 2], output)[0] == [" the", " a", "ing"]
    assert _run(byte_fallback, [1, *ids(["<0x0A>"])], output)[0] == [" the", " a", "ing"]
    assert _run(byte_fallback, [1], ids(["<0x0A>", "▁the"]))[0] == ["\n", " the"]


def test_special_tokens_are_skipped(byte_level):
    start, end = byte_level.convert_tokens_to_ids(["<|start|>", "<|end|>"])
    output = [start, *byte_level("Hi", add_special_tokens=False).input_ids, end]
    assert "".join(_run(byte_level, [], output)[0]) == "Hi"


def test_a_special_token_between_two_halves_of_a_character(byte_fallback):
    ids = byte_fallback.convert_tokens_to_ids
    output = ids(["<0xEC>", "</s>", "<0x82>", "<0xBC>"])
    assert byte_fallback.decode(output, skip_special_tokens=True) == "삼"
    assert _run(byte_fallback, [], output) == (["", "", "", "삼"], "")


def test_token_ids_beyond_the_tokenizer_have_no_text(byte_level):
    assert _run(byte_level, [], [len(byte_level) + 5, 10_000]) == (["", ""], "")


def test_a_tokenizer_that_puts_spaces_between_tokens(word_piece):
    output = [1, 2, 3, 4, 5, 6, 7]
    deltas, rest = _run(word_piece, [3], output)
    assert "".join(deltas) + rest == word_piece.decode([3, *output])[len("cache") :]
    assert deltas == [" page", "d", " cache", "s", " 삼", "겹", " ."]


def test_a_piece_that_only_looks_like_a_byte(word_piece):
    piece = word_piece.convert_tokens_to_ids("<0x41>")
    assert _run(word_piece, [3], [piece, piece]) == ([" <0x41>", " <0x41>"], "")


def test_without_a_tokenizer_text_is_empty():
    assert _run(None, [1, 2], [3, 4]) == (["", ""], "")
    with pytest.raises(InvalidRequestError, match=r"stop=\['x'\].*no tokenizer"):
        IncrementalDetokenizer(None, [1], ["x"])


# ------------------------------------------------------------------ any tokens at all


def _fallback_reference(tokenizer, token_ids) -> str:
    """Decode where each run of bytes keeps its whole characters and has U+FFFD for each other byte."""
    text = ""
    pieces = [p for p in tokenizer.convert_ids_to_tokens(token_ids) if p not in ("<unk>", "<s>", "</s>")]
    for is_byte, run in itertools.groupby(pieces, key=lambda piece: piece.startswith("<0x")):
        if not is_byte:
            text += "".join(run).replace("▁", " ")
            continue
        data = bytes(int(piece[3:5], 16) for piece in run)
        while data:
            length = next((n for n in (1, 2, 3, 4) if _is_text(data[:n])), None)
            text += data[:length].decode() if length else "\ufffd"
            data = data[length or 1 :]
    return text.removeprefix(" ")


def _is_text(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_byte_level_tokens_give_what_decode_gives(byte_level, data):
    token_ids = st.integers(0, len(byte_level) - 1)
    prompt = byte_level(data.draw(st.sampled_from(["", "삼겹 ", "the", "🙂"]))).input_ids
    output = data.draw(st.lists(token_ids, max_size=30))
    deltas, rest = _run(byte_level, prompt, output)
    whole = byte_level.decode([*prompt, *output], skip_special_tokens=True)
    assert byte_level.decode(prompt) + "".join(deltas) + rest == whole


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_fallback_tokens_give_what_decode_gives(byte_fallback, data):
    # Bytes of few values, so that whole characters come up; a byte 0x20 never stands for a space in practice.
    few = [3 + byte for byte in (0xEC, 0x82, 0xBC, 0xF0, 0x9F, 0x99, 0x0A, 0x41)]
    token_ids = st.one_of(st.sampled_from([1, 2, *few]), st.integers(259, len(byte_fallback) - 1))
    prompt = [1, *data.draw(st.sampled_from([[], [259], [260, 2], [263]]))]
    output = data.draw(st.lists(token_ids, max_size=30))
    deltas, rest = _run(byte_fallback, prompt, output)
    before = _fallback_reference(byte_fallback, prompt)
    after = _fallback_reference(byte_fallback, [*prompt, *output])
    assert before + "".join(deltas) + rest == after
    if "\ufffd" not in after:
        assert after == byte_fallback.decode([*prompt, *output], skip_special_tokens=True)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=40))
def test_any_text_survives_fallback(byte_fallback, text):
    output = byte_fallback(text, add_special_tokens=False).input_ids
    whole = byte_fallback.decode(output, skip_special_tokens=True)
    deltas, rest = _run(byte_fallback, [1], output)
    assert "".join(deltas) + rest == whole


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=3), st.integers(0, 20))
def test_any_split_of_a_text_into_prompt_and_output(byte_level, sentences, at):
    token_ids = byte_level(" ".join(sentences)).input_ids
    prompt, output = token_ids[:at], token_ids[at:]
    deltas, rest = _run(byte_level, prompt, output)
    shown = byte_level.decode(prompt).rstrip("\ufffd")
    assert shown + "".join(deltas) + rest == " ".join(sentences)


@pytest.mark.model
def test_the_real_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(ensure_default_model())
    text = " ".join(SENTENCES) + "  def f(x):\n\treturn 삼겹살🙂"
    token_ids = tokenizer(text).input_ids
    for at in range(0, len(token_ids), 5):
        deltas, rest = _run(tokenizer, token_ids[:at], token_ids[at:])
        assert tokenizer.decode(token_ids[:at]).rstrip("\ufffd") + "".join(deltas) + rest == text
    draw = random.Random(0)
    for _ in range(50):
        output = [draw.randrange(len(tokenizer)) for _ in range(40)]
        deltas, rest = _run(tokenizer, [], output)
        assert "".join(deltas) + rest == tokenizer.decode(output, skip_special_tokens=True)


# ------------------------------------------------------------------ stop strings


def _stop_run(pieces: list[str], stop, **options) -> tuple[list[str], str, str | None]:
    known = list(dict.fromkeys(pieces))
    tokenizer = _byte_level([piece.encode() for piece in known])
    detokenizer = IncrementalDetokenizer(tokenizer, [], stop, **options)
    deltas = [detokenizer.add(known.index(piece)) for piece in pieces]
    return deltas, detokenizer.flush(), detokenizer.stopped


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "found"),
    [
        (["ab", "cd", "ef"], ["bcde"], "a", "bcde"),
        (["ab", "cx"], ["bcde"], "abcx", None),
        (["ab", "cd"], ["bcde"], "abcd", None),  # held back to the end, then given out
        (["abcdefg"], ["ef", "cd"], "ab", "cd"),  # inside one token the earliest, not the first named
        (["a", "b", "c", "d"], ["d", "bc"], "a", "bc"),
        (["abcd"], ["cd", "bcd"], "a", "bcd"),  # complete at the same character: the longest
        (["abcde"], ["bcde", "cd"], "ab", "cd"),  # complete first, though it begins later
        (["a", "b", "c", "d", "e"], ["bcde", "cd"], "ab", "cd"),  # the same, whatever the tokens
        (["aa", "aab"], ["aab"], "aa", "aab"),  # a failed match hides the beginning of the next
        (["ab", "ab", "ac"], ["abac"], "ab", "abac"),
        (["stop"], ["stop"], "", "stop"),
        (["삼", "겹살", "끝"], ["살끝"], "삼겹", "살끝"),
        (["a\n", "\nb"], ["\n\n"], "a", "\n\n"),
    ],
)
def test_stop_strings(pieces, stop, text, found):
    deltas, rest, stopped = _stop_run(pieces, stop)
    assert "".join(deltas) + rest == text
    assert stopped == found


def test_no_delta_ever_holds_a_part_of_a_stop_string():
    assert _stop_run(["ab", "cd", "ef"], ["bcde"])[0] == ["a", "", ""]
    assert _stop_run(["ab", "cx"], ["bcde"])[0] == ["a", "bcx"]


def test_nothing_follows_a_stop_string():
    deltas, rest, stopped = _stop_run(["ab", "c", "d"], ["b"])
    assert (deltas, rest, stopped) == (["a", "", ""], "", "b")


def test_stop_strings_wait_for_min_tokens():
    assert _stop_run(["ab", "ab", "ab"], ["b"], min_tokens=3) == (["a", "ba", "ba"], "", "b")
    assert _stop_run(["ab", "ab", "cd"], ["bc"], min_tokens=3) == (["a", "ba", ""], "", "bc")
    assert _stop_run(["ab", "cd", "ef"], ["bc"], min_tokens=3) == (["a", "bcd", "ef"], "", None)


def test_a_stop_string_that_spans_bytes_of_a_character():
    raw = "겹🙂".encode()
    pieces = [bytes([byte]) for byte in sorted(set(raw))]
    detokenizer = IncrementalDetokenizer(_byte_level(pieces), [], ["🙂"])
    assert "".join(detokenizer.add(pieces.index(bytes([byte]))) for byte in raw) == "겹"
    assert detokenizer.stopped == "🙂"


letters = st.text("ab", min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(letters, min_size=1, max_size=4))
def test_any_text_is_cut_before_the_match_that_is_complete_first(parts, stop):
    text = "".join(parts)
    ends = [(text.find(string) + len(string), -len(string), string) for string in stop if string in text]
    expected = text if not ends else text[: min(ends)[0] + min(ends)[1]]
    matcher = StopMatcher(stop)
    emitted = ""
    for part in parts:
        emitted += matcher.feed(part)
        assert expected.startswith(emitted)
    emitted += matcher.flush()
    assert emitted == expected
    assert matcher.match == (min(ends)[2] if ends else None)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.text("abc", max_size=4), max_size=12), letters)
def test_text_is_given_out_as_soon_as_it_can_be(parts, stop):
    matcher = StopMatcher([stop])
    text, emitted = "", ""
    for part in parts:
        text += part
        emitted += matcher.feed(part)
        if matcher.match:
            break
        held = text[len(emitted) :]
        longest = max((n for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
        assert held == (stop[:longest] if longest else "")


# ------------------------------------------------------------------ cost


def _seconds(tokenizer, output, **options) -> list[float]:
    """CPU time of the first and of the last tenth of a long output."""
    detokenizer = IncrementalDetokenizer(tokenizer, output[:50], **options)
    tenth, times = len(output) // 10, []
    for part in range(10):
        start = time.process_time()
        for token_id in output[part * tenth : (part + 1) * tenth]:
            detokenizer.add(token_id)
        times.append(time.process_time() - start)
    return [min(times[:3]), min(times[-3:])]


@pytest.mark.parametrize("kind", ["byte-level", "fallback"])
def test_the_cost_of_a_token_does_not_grow(kind, byte_level, byte_fallback):
    tokenizer = byte_level if kind == "byte-level" else byte_fallback
    ids = tokenizer(SENTENCES[1] + SENTENCES[2], add_special_tokens=False).input_ids
    output = (ids * 20_000)[:20_000]
    early, late = _seconds(tokenizer, output, stop=["never this", "살을 not"])
    assert late < 3 * early + 0.01, (early, late)


def test_a_long_stop_string_costs_no_more_than_its_length():
    text = "ab" * 20_000
    matcher = StopMatcher(["ab" * 500 + "c"])
    start = time.process_time()
    emitted = "".join(matcher.feed(text[i : i + 4]) for i in range(0, len(text), 4)) + matcher.flush()
    assert emitted == text
    assert time.process_time() - start < 2
