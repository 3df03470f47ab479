"""`minipaged bench`: a name and options go to the clone's benchmarks/, which is no part of the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import BENCHES
from minipaged.cli import bench
from minipaged.cli import main as cli


def test_bench_alone_is_the_comparison_with_hugging_face(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--num-requests" in shown
    for name, (_, text) in BENCHES.items():
        assert f"minipaged bench {name}" in shown and text in shown


@pytest.mark.parametrize("name", BENCHES)
def test_each_bench_has_options_of_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: minipaged bench {name} " in shown
    assert "--output" in shown
    assert cli.main(["bench", name, "--nonsense", "3"]) == 2
    assert "unrecognized arguments: --nonsense 3" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing", "sharing", "Paper"])
def test_a_bench_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", name, "--output", "x.json"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"bench must be one of {', '.join(BENCHES)}, got {name!r}" in error


def test_other_commands_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--figures", "15"]) == 2
    assert capsys.readouterr().err == "minipaged: error: No such option: --figures\n"


def test_without_a_clone_one_line_says_where_the_benches_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in site-packages, where another distribution may have a folder called benchmarks."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    monkeypatch.setattr(bench, "CLONE", tmp_path)
    monkeypatch.delitem(bench.sys.modules, "benchmarks")
    assert cli.main(["bench", "paper", "--figures", "15"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("minipaged: error: bench runs from a clone") and error.count("\n") == 1
    assert "benchmarks" not in bench.sys.modules
