"""Every argument is checked where it comes in, and the message names it, its value and what is allowed."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from minipaged.errors import InvalidRequestError, MinipagedError
from minipaged.sampling_params import BeamSearchParams, SamplingParams

NAN, INF = float("nan"), float("inf")
LONG_LIST = ["x"] * 17


def test_defaults():
    assert dataclasses.asdict(SamplingParams()) == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 16,
        "min_tokens": 0,
        "stop": (),
        "stop_token_ids": (),
        "ignore_eos": False,
        "seed": None,
        "logprobs": None,
        "cache_salt": None,
        "timeout": None,
        "priority": 0,
    }
    assert dataclasses.asdict(BeamSearchParams()) == {
        "beam_width": 4,
        "max_tokens": 16,
        "length_penalty": 1.0,
        "early_stopping": False,
        "ignore_eos": False,
        "priority": 0,
    }


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("n", 8, 8),
        ("temperature", 0, 0.0),
        ("temperature", 5e-324, 5e-324),
        ("temperature", np.float32(0.5), 0.5),
        ("top_p", 1e-9, 1e-9),
        ("top_p", 1, 1.0),
        ("top_k", -1, 0),
        ("top_k", np.int64(50), 50),
        ("top_k", 10**9, 10**9),
        ("min_p", 1, 1.0),
        ("repetition_penalty", 0.5, 0.5),
        ("presence_penalty", -2, -2.0),
        ("frequency_penalty", 2, 2.0),
        ("max_tokens", 1, 1),
        ("min_tokens", 16, 16),
        ("stop", "\n", ("\n",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", (), ()),
        ("stop", LONG_LIST[:16], ("x",) * 16),
        ("stop_token_ids", [0, np.int64(7)], (0, 7)),
        ("ignore_eos", True, True),
        ("seed", 0, 0),
        ("seed", -(2**63), -(2**63)),
        ("seed", 2**64 - 1, 2**64 - 1),
        ("logprobs", 0, 0),
        ("logprobs", 20, 20),
        ("cache_salt", "tenant", "tenant"),
        ("timeout", 1, 1.0),
    ],
)
def test_what_is_allowed(name, given, kept):
    value = getattr(SamplingParams(**{name: given}), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        *[("n", value, repr(value)) for value in (0, -1, 1.0, True, "2", None)],
        *[("temperature", value, repr(value)) for value in (-0.1, NAN, INF, "1", True, None)],
        ("temperature", 10**400, "got 1000"),  # an integer beyond any float
        *[("top_p", value, repr(value)) for value in (0, 0.0, 1.1, -0.5, NAN, "0.9", None, False)],
        *[("top_k", value, repr(value)) for value in (-2, 1.5, NAN, True, "5", None)],
        *[("min_p", value, repr(value)) for value in (-0.1, 1.1, NAN, None)],
        *[("repetition_penalty", value, repr(value)) for value in (0, -1, NAN, INF, None)],
        *[("presence_penalty", value, repr(value)) for value in (-2.1, 2.1, NAN, None)],
        *[("frequency_penalty", value, repr(value)) for value in (-2.1, 2.1, NAN, "0")],
        *[("max_tokens", value, repr(value)) for value in (0, -1, 1.5, True, None, "16")],
        *[("min_tokens", value, repr(value)) for value in (-1, 17, 0.5, False, None)],
        *[("stop", value, repr(value)) for value in ("", [""], ["a", ""], [1], 1, b"x", ["a", None])],
        ("stop", LONG_LIST, "at most 16"),
        ("stop", {"a": 1}, "{'a': 1}"),
        *[("stop_token_ids", value, repr(value)) for value in ([-1], [1.0], [True], ["1"], 2, "2", [None])],
        *[("ignore_eos", value, repr(value)) for value in (1, 0, None, "no")],
        *[("seed", value, repr(value)) for value in (1.0, True, "1", NAN)],
        ("seed", 2**64, "64 bits"),
        ("seed", -(2**63) - 1, "64 bits"),
        *[("logprobs", value, repr(value)) for value in (-1, 21, True, 1.0, "5")],
        *[("cache_salt", value, repr(value)) for value in ("", 1, b"x")],
        *[("timeout", value, repr(value)) for value in (0, -1, NAN, INF, "1", True)],
    ],
)
def test_what_is_refused(name, given, shown):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: given})
    message = str(caught.value)
    assert message.startswith(f"{name} must be ")
    assert ", got " in message
    assert shown in message
    assert "\n" not in message
    assert isinstance(caught.value, MinipagedError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *[("beam_width", value) for value in (0, -1, 2.0, True, None, "4")],
        *[("max_tokens", value) for value in (0, True, None)],
        *[("length_penalty", value) for value in (NAN, INF, "1", None, True)],
        *[("early_stopping", value) for value in (None, 1, "always")],
        *[("ignore_eos", value) for value in (None, 0)],
    ],
)
def test_what_beam_search_refuses(name, given):
    with pytest.raises(InvalidRequestError, match=f"^{name} must be .*, got "):
        BeamSearchParams(**{name: given})


def test_what_beam_search_allows():
    params = BeamSearchParams(
        beam_width=1, max_tokens=1, length_penalty=-1, early_stopping=True, ignore_eos=True
    )
    assert params.length_penalty == -1.0


def test_messages_name_the_bound_that_depends_on_another_argument():
    message = r"^min_tokens must be an integer from 0 to max_tokens \(4\), got 5$"
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(max_tokens=4, min_tokens=5)


def test_a_message_has_one_line_even_for_a_value_of_many():
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(temperature=np.zeros((9, 9)))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_parameters_do_not_change_and_can_be_copied():
    stop = ["a"]
    params = SamplingParams(stop=stop, stop_token_ids=[3])
    stop.append("b")
    assert params.stop == ("a",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 2.0
    copy = dataclasses.replace(params, seed=1)
    assert (copy.stop, copy.stop_token_ids, copy.seed) == (("a",), (3,), 1)
    assert hash(params) == hash(SamplingParams(stop="a", stop_token_ids=[3]))
    with pytest.raises(InvalidRequestError):
        dataclasses.replace(params, min_tokens=17)


def test_no_torch_is_needed():
    code = "import sys, minipaged.sampling_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
