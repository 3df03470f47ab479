"""What `make docs` makes again: recordings and figures whose sources have changed, and nothing else."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parents[2] / "docs" / "_build"


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """docs/_build/outputs.py as a module that takes an empty folder for the repository."""
    monkeypatch.syspath_prepend(str(BUILD))
    spec = spec_from_file_location("fresh_outputs", BUILD / "outputs.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "benchmarks" / "results")
    return module


def test_what_is_made_is_fresh_until_a_file_that_was_loaded_changes(
    outputs: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("docs/_build/draw.py", "reference/used.py", "lessons/unused.py", "benchmarks/results/cpu.json")
    script, used, unused, result = paths = [tmp_path / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    loaded = ModuleType("used")
    loaded.__file__ = str(used)
    monkeypatch.setitem(sys.modules, "used", loaded)

    folder = tmp_path / "made"
    folder.mkdir()
    assert not outputs.is_fresh(folder, str(script)), "nothing is made yet"
    outputs.made(folder, str(script))
    assert outputs.is_fresh(folder, str(script))
    unused.write_text("2")
    assert outputs.is_fresh(folder, str(script))
    for path in (script, used, result):
        path.write_text("2")
        assert not outputs.is_fresh(folder, str(script)), path
        path.write_text("1")
    used.unlink()
    assert not outputs.is_fresh(folder, str(script)), "a file that is gone"


def test_a_script_that_has_nothing_to_make_says_so_and_ends(
    outputs: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for fresh, said in ((True, "nothing has changed"), (False, "to be made")):
        monkeypatch.setattr(outputs, "is_fresh", lambda *_, fresh=fresh: fresh)
        ended = False
        try:
            outputs.leave_if_fresh("figures", tmp_path, "draw.py")
        except SystemExit as end:
            ended = end.code is None
        assert ended is fresh
        assert said in capsys.readouterr().out
