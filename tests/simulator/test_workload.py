"""Lengths and arrivals: means of the paper, traces that stay the same, and files read line by line."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import pytest

from minipaged.errors import InvalidConfigError
from minipaged.simulator.workload import WORKLOADS, Lengths, Traffic, draw_lengths, poisson, read_lengths

NUM_DRAWN = 40_000


def drawn(name: str, count: int, max_model_len: int = 2048, seed: int = 0) -> list[Lengths]:
    """The first requests of a workload."""
    return list(islice(draw_lengths(WORKLOADS[name], max_model_len, seed), count))


@pytest.mark.parametrize(("name", "prompt", "output"), [("sharegpt", 161.3, 338.0), ("alpaca", 19.3, 58.5)])
def test_drawn_lengths_have_the_papers_means(name: str, prompt: float, output: float) -> None:
    """The standard deviation is about the mean, so 40,000 draws are within 0.5 % of it, and 2 % are far."""
    lengths = drawn(name, NUM_DRAWN)
    assert sum(each.prompt for each in lengths) / NUM_DRAWN == pytest.approx(prompt, rel=0.02)
    assert sum(each.output for each in lengths) / NUM_DRAWN == pytest.approx(output, rel=0.02)
    assert all(each.prefix == 0 and each.group == "" for each in lengths)


def test_answers_of_sharegpt_are_as_spread_as_figure_2_says() -> None:
    """A running request has E[o^2] / E[o] / 2 tokens to come: 13.3 of the 91.1 % that pieces are."""
    outputs = [each.output for each in drawn("sharegpt", NUM_DRAWN)]
    to_come = sum(output**2 for output in outputs) / sum(outputs) / 2
    assert to_come == pytest.approx(2048 * 13.3 / 91.1, rel=0.03)


@pytest.mark.parametrize("max_model_len", [40, 2048])
def test_drawn_lengths_keep_within_the_limit(max_model_len: int) -> None:
    for each in drawn("alpaca", 30, max_model_len):
        assert each.prompt >= 1
        assert each.output >= 1
        assert each.prompt + each.output <= max_model_len


def test_the_same_seed_draws_the_same_lengths() -> None:
    assert drawn("sharegpt", 50) == drawn("sharegpt", 50)
    assert drawn("sharegpt", 50) != drawn("sharegpt", 50, seed=1)
    assert len(set(drawn("sharegpt", 50))) > 40


def test_arrivals_come_at_their_rate() -> None:
    """The gaps of a Poisson process have the same mean and standard deviation, 1 / rate."""
    arrivals = [now for now, _ in poisson([Lengths(1, 1)] * NUM_DRAWN, 4.0)]
    gaps = [after - before for before, after in pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert min(gaps) >= 0
    assert mean == pytest.approx(0.25, rel=0.02)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.25, rel=0.03)


def test_another_rate_stretches_the_same_trace() -> None:
    lengths = drawn("alpaca", 100)
    slow, fast = list(poisson(lengths, 0.5)), list(poisson(lengths, 4.0))
    assert [each for _, each in slow] == [each for _, each in fast] == lengths
    assert [now for now, _ in slow] == pytest.approx([8 * now for now, _ in fast])
    assert list(poisson(lengths, 0.5)) == slow
    assert list(poisson(lengths, 0.5, seed=1)) != slow


def test_a_trace_has_as_many_requests_as_come_in_its_minutes() -> None:
    """At half a request a second 5 minutes bring 150; and a hundred come in any case."""
    trace = Traffic("alpaca", 5, 2048)
    assert [len(trace.requests(rate)) for rate in (0.5, 4.0, 0.1, 0.01)] == [150, 1200, 100, 100]
    assert trace.requests(0.5) == trace.draw(150) == drawn("alpaca", 150)
    assert trace.requests(4.0)[:150] == trace.requests(0.5)
    assert not trace.shares_prefixes


def test_a_trace_of_a_file_is_drawn_from_it_and_stays_the_same(tmp_path: Path) -> None:
    few = [Lengths(1, 2), Lengths(3, 4), Lengths(5, 6, 2, "a")]
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(json.dumps(each._asdict()) for each in few), encoding="utf-8")
    trace = Traffic(str(path), 1, 20)
    assert set(trace.draw(50)) == set(few)
    assert trace.draw(50) == Traffic(str(path), 1, 20).draw(50)
    assert len(trace.requests(2.0)) == 120
    assert trace.shares_prefixes
    with pytest.raises(InvalidConfigError, match=r"line 3: 5 \+ 6 tokens are more than max_model_len=10"):
        Traffic(str(path), 1, 10)
    with pytest.raises(InvalidConfigError, match="workload='no-such-file' can't be read"):
        Traffic("no-such-file", 1, 10)


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    lines = [
        '{"prompt": 161, "output": 338}',
        "",
        '{"output": 1, "prompt": 99}',
        '{"prompt": 90, "output": 5, "prefix": 80, "group": "system"}',
        '{"prompt": 90, "output": 5, "prefix": 90, "group": 7}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_lengths(path, 499) == [
        Lengths(161, 338),
        Lengths(99, 1),
        Lengths(90, 5, 80, "system"),
        Lengths(90, 5, 90, "7"),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nope", "is no JSON"),
        ("[161, 338]", 'must be an object with "prompt" and "output"'),
        ("7", "must be an object"),
        ('{"prompt": 161}', r"must be an object .* got \{"),
        ('{"prompt": 161, "output": 338, "prefx": 80}', "must be an object"),
        ('{"prompt": 0, "output": 338}', "prompt must be an integer of 1 or more, got 0"),
        ('{"prompt": 161, "output": 0}', "output must be an integer of 1 or more, got 0"),
        ('{"prompt": 161, "output": -3}', "output must be an integer of 1 or more, got -3"),
        ('{"prompt": 161.0, "output": 338}', "prompt must be an integer of 1 or more, got 161.0"),
        ('{"prompt": "161", "output": 338}', "prompt must be an integer of 1 or more, got '161'"),
        ('{"prompt": true, "output": 338}', "prompt must be an integer of 1 or more, got True"),
        ('{"prompt": null, "output": 338}', "prompt must be an integer of 1 or more, got None"),
        ('{"prompt": 161, "output": 338, "prefix": -1}', "prefix must be an integer of 0 or more, got -1"),
        ('{"prompt": 161, "output": 338, "prefix": 162}', "prefix=162 is more than prompt=161"),
        ('{"prompt": 161, "output": 340}', r"161 \+ 340 tokens are more than max_model_len=500"),
        ('{"prompt": NaN, "output": 340}', "prompt must be an integer of 1 or more, got nan"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text(
        f'{{"prompt": 1, "output": 2}}\n\n{line}\n{{"prompt": 3, "output": 4}}\n', encoding="utf-8"
    )
    with pytest.raises(InvalidConfigError, match=rf"lengths\.jsonl, line 3:? .*{message}"):
        read_lengths(path, 500)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"workload='.*none\.jsonl' can't be read"):
        read_lengths(tmp_path / "none.jsonl", 500)
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": 1, "output": 2, "group": "\xe9"}')
    with pytest.raises(InvalidConfigError, match=r"workload='.*latin\.jsonl' can't be read"):
        read_lengths(tmp_path / "latin.jsonl", 500)
    (tmp_path / "empty.jsonl").write_text("\n \n", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"workload='.*empty\.jsonl' has no lines"):
        read_lengths(tmp_path / "empty.jsonl", 500)


def test_a_written_trace_is_read_back(tmp_path: Path) -> None:
    lengths = drawn("alpaca", 20)
    path = tmp_path / "lengths.jsonl"
    path.write_text("\n".join(json.dumps(each._asdict()) for each in lengths), encoding="utf-8")
    assert read_lengths(path, 2048) == lengths


@pytest.mark.parametrize("max_model_len", [1, 2])
def test_a_limit_that_no_request_keeps_is_refused(max_model_len: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"max_model_len={max_model_len} is too short"):
        next(draw_lengths(WORKLOADS["alpaca"], max_model_len))


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    path.write_text('{"prompt": 3, "output": 2}\r\n', encoding="utf-8-sig")
    assert read_lengths(path, 100) == [Lengths(3, 2)]
