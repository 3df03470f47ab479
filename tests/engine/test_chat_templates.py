"""Chat templates: the same texts as Hugging Face, and what is wrong with one is an error of one line."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from minipaged import LLM, SamplingParams
from minipaged.cli.main import main
from minipaged.errors import InvalidRequestError, MinipagedError, ModelNotSupportedError
from minipaged.models import chat_template
from minipaged.models.chat_template import render_chat

USER = {"role": "user", "content": "What is a block?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Sixteen slots."}
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role\n not supported') }}{% endif %}"
)
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3
)
ONE_CALL = "{{ 7 ** (7 ** 9) }}"  # which Python can't leave

# What templates of real models use, in short.
REAL = {
    "chatml": "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nHello<|im_end|>\n{% endif %}\n"
    "  {{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' + '\n' }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "tokens": "{{ bos_token }}{% if tools is none and documents is not defined %}x{% endif %}"
    "{% for m in messages %}[{{ loop.index0 }}]{{ m.content }}{{ eos_token }}{% endfor %}{{ unk_token }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{{ '<é>' | tojson }}{{ tools }}",
    "date": "{{ strftime_now('%Y-%m') }}{{ messages | length }}"
    "{{ messages | map(attribute='role') | join(', ') }}",
    "loops": "{% set ns = namespace(n=0, seen=[]) %}{% for m in messages %}{% if loop.index > 2 %}{% break %}"
    "{% endif %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endfor %}{{ dict(a=1) }}{{ 'abc'[1:] }}",
    "generation": "{% for m in messages %}{% generation %}{% set x = m.role %}{{ x }}"
    "{% endgeneration %}{{ x }}"
    "{% endfor %}{% macro twice(a) %}{{ a }}{{ a }}{% endmacro %}{{ twice(messages[-1].content) }}",
    "reasoning": "{% for m in messages %}{{ m.name | default('-') }}{{ m.thinking }}"
    "{{ m.reasoning_content }}{% endfor %}",
}
BROKEN = {
    "{% if %}": (ModelNotSupportedError, "chat template is broken: line 1: Expected an expression"),
    "a\n{% for %}": (ModelNotSupportedError, "chat template is broken: line 2"),
    "{{ no_such_function() }}": (InvalidRequestError, "fails on these messages: UndefinedError"),
    "{{ messages[7].content.x }}": (InvalidRequestError, "fails on these messages: UndefinedError"),
    "{{ 1 / 0 }}": (InvalidRequestError, "fails on these messages: ZeroDivisionError"),
    "{{ raise_exception('no\nsystem') }}": (InvalidRequestError, "refuses these messages: no system"),
    "{{ ''.__class__.__mro__ }}": (ModelNotSupportedError, "unsafe"),
    "{% set n = namespace(_x=1) %}": (ModelNotSupportedError, "'_x'"),
    ENDLESS: (ModelNotSupportedError, "did not end within 0.5 s"),
    ONE_CALL: (ModelNotSupportedError, "did not end within 0.5 s"),
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": (ModelNotSupportedError, "calls itself too often"),
    "{{ 'x' * 10**9 }}": (ModelNotSupportedError, "needs too much memory"),
    "{{ '%999999999d' % 5 }}": (ModelNotSupportedError, "needs too much memory"),
    "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}": (
        ModelNotSupportedError,
        "needs too much memory",
    ),
    "{% for i in range(9999) %}{{ 'xxxxxxxxx' }}{% endfor %}": (ModelNotSupportedError, "89991 characters"),
    "{{ 'é' * 40000 }}": (InvalidRequestError, "80000 bytes"),
    "{{ '\\ud800' }}": (InvalidRequestError, "no valid text"),
    "\udc80": (ModelNotSupportedError, "no valid text"),
    5: (ModelNotSupportedError, "must be a text, got 5"),
    "": (InvalidRequestError, "no chat template"),
}
LOOP: list[Any] = []
LOOP.append(LOOP)
WRONG = [
    (None, "messages must be a list of messages, got None"),
    (5, "messages must be a list of messages, got 5"),
    ("hello", "messages must be a list of messages, got 'hello'"),
    (USER, "messages must be a list of messages"),
    ([], "messages is empty"),
    ([[]], "messages is empty"),
    (["hello"], "messages must be a list of messages, got 'hello'"),
    ([None], "messages must be a list of messages, got None"),
    ([USER, None], "a message needs a role and a content, got None"),
    ([[USER], [USER, 7]], "a message needs a role and a content, got 7"),
    ([[[USER]]], "a message needs a role and a content"),
    ([{"content": "x"}], "a message needs a role and a content"),
    ([{"role": "user"}], "a message needs a role and a content"),
    ([{"role": "user", "content": None}], "messages[0]: content must be a text, got None"),
    ([USER, {"role": "user", "content": ["x"]}], "messages[1]: content must be a text, got ['x']"),
    ([{"role": 3, "content": "x"}], "messages[0]: role must be a text, got 3"),
    ([{"role": "user", "content": "caf\udce9"}], "messages[0]: content is no valid text"),
    ([USER | {"name": "\ud800"}], "messages must hold texts and JSON values"),
    ([USER | {"extra": object()}], "messages must hold texts and JSON values"),
    ([USER | {"extra": LOOP}], "messages must hold texts and JSON values"),
    ([{"role": "user", "content": "x" * 70_000}], "70000 bytes"),
]


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> LLM:
    return LLM(str(tiny_chat_model), max_prompt_bytes=1 << 16)


@pytest.fixture
def use_template(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], LLM]:
    """A function that gives the model a template, and the command line the model."""

    def use(template: Any) -> LLM:
        if template in (ENDLESS, ONE_CALL):
            monkeypatch.setattr(chat_template, "TIME_LIMIT", 0.5)
        monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: llm)
        monkeypatch.setattr(llm.tokenizer, "chat_template", template)
        return llm

    return use


@pytest.mark.parametrize("name", REAL)
def test_a_text_is_that_of_hugging_face(name: str, tiny_chat_model: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_chat_model)
    tokenizer.chat_template = REAL[name]
    odd = {"role": "user", "content": "<b> \u2028 é 안녕 \x1b\r\n\t ", "name": None, "reasoning": "why"}
    for messages in ([USER], [SYSTEM, USER], [USER, ANSWER, USER, odd], (odd,)):
        expected = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        assert render_chat(tokenizer, messages, 1 << 20) == expected


@pytest.mark.parametrize("template", BROKEN, ids=range(len(BROKEN)))
def test_a_bad_template_is_one_line_of_error(template: Any, use_template: Callable[[Any], LLM]) -> None:
    kind, message = BROKEN[template]
    with pytest.raises(MinipagedError) as caught:
        use_template(template).chat([USER])
    assert type(caught.value) is kind and message in str(caught.value) and "\n" not in str(caught.value)


def test_after_a_template_that_never_ends_the_next_is_rendered(use_template: Callable[[Any], LLM]) -> None:
    """In a thread that is not the main one, where no signal arrives."""
    found: list[Any] = []

    def work() -> None:
        for template in (ENDLESS, "{{ messages[0].content }}"):
            start = time.monotonic()
            try:
                found.append(use_template(template).chat_token_ids([USER]))
            except ModelNotSupportedError as error:
                found.append(str(error))
            found.append(time.monotonic() - start < 5)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    error, in_time, text, in_time_too = found
    assert "did not end within 0.5 s" in error and in_time and in_time_too
    assert len(text) == len(USER["content"])


def test_a_process_that_has_grown_is_not_kept() -> None:
    """It would leave the templates of others less room."""
    chat_template._close_idle()
    for big, kept in (("{% set x = 'y' * 13 * 10**6 %}", 0), ("", 1)):
        tokenizer = SimpleNamespace(chat_template=f"{big}done", special_tokens_map={})
        assert render_chat(tokenizer, [USER], 1 << 20) == "done"
        assert len(chat_template._idle) == kept


def test_many_threads_each_get_their_own_text() -> None:
    texts: dict[int, set[str]] = {}

    def work(number: int) -> None:
        tokenizer = SimpleNamespace(
            chat_template=f"{number}: {{{{ messages[0].content }}}}", special_tokens_map={}
        )
        messages = [{"role": "user", "content": "x" * number}]
        texts[number] = {render_chat(tokenizer, messages, 1 << 20) for _ in range(20)}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {number: {f"{number}: " + "x" * number} for number in range(6)}


@pytest.mark.parametrize(("messages", "message"), WRONG, ids=range(len(WRONG)))
def test_messages_of_a_wrong_shape_are_refused(messages: Any, message: str, llm: LLM) -> None:
    before = llm.stats()
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat(messages, SamplingParams(max_tokens=1), use_tqdm=False)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert llm.stats() == before and not llm.engine.has_unfinished_requests()


@pytest.mark.parametrize("command", [["generate", "hi", "--system", "s"], ["chat", "--system", "s"]])
@pytest.mark.parametrize("template", [NO_SYSTEM, "{% if %}", ENDLESS])
def test_the_command_line_says_it_in_one_line(
    command: list[str], template: str, use_template: Callable[[Any], LLM], capsys: pytest.CaptureFixture[str]
) -> None:
    use_template(template)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("minipaged: error: the model's chat template ") and error.count("\n") == 1


def test_a_turn_that_is_refused_leaves_nothing_in_the_conversation(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(["one", "caf\udce9", "x" * 300, "two", ""])
    monkeypatch.setattr("builtins.input", lambda *_: next(said))
    monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: llm)
    asked: list[list[str]] = []
    ask = llm.chat_token_ids

    def watch(messages: Any) -> list[int]:
        asked.append([each["content"] for each in messages])
        return ask(messages)

    monkeypatch.setattr(llm, "chat_token_ids", watch)
    assert main(["chat", "--max-tokens", "1"]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2 and "no valid text" in error[0] and "tokens, at most 255 are allowed" in error[1]
    turns = asked[1:]  # the first call only looks whether the template will do
    assert [turn[-1] for turn in turns] == ["one", "caf\udce9", "x" * 300, "two"]
    assert [len(turn) for turn in turns] == [1, 3, 3, 3] and turns[3][0] == "one"
