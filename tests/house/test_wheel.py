"""What is built is what was meant: two mapped folders inside the package, nothing at the top level."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "minipaged": "minipaged",
    "minipaged/cli": "minipaged/cli",
    "minipaged/terminal": "minipaged/terminal",
    "minipaged/simulator": "minipaged/simulator",
    "minipaged/course": "minipaged/course",
    "minipaged/engine": "minipaged/engine",
    "minipaged/models": "minipaged/models",
    "minipaged/view": "minipaged/view",
    "minipaged/reference": "reference",
    "minipaged/kernels": "kernels",
    "minipaged/lessons": "lessons",
}
REFERENCE_MODULES = sorted(
    f"minipaged.reference.{path.stem}" for path in ROOT.glob("reference/*.py") if path.stem != "__init__"
)


def run(*command: str, cwd: Path, path: Path | None = None) -> str:
    """Standard output of a Python run with `command`, on a `PYTHONPATH` of `path` alone."""
    environment = {"PYTHONPATH": str(path)} if path else None
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build_wheel(source: Path, output: Path) -> Path:
    """Build a wheel from a folder or an sdist, with the setuptools that is installed and without an index."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    run("-m", "pip", "wheel", *options, "--wheel-dir", str(output), str(source), cwd=output.parent)
    (wheel,) = output.glob("*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, less what builds and tests left in it: a build writes beside its source."""
    leftovers = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site")
    copy = tmp_path_factory.mktemp("checkout") / "copy"
    return Path(shutil.copytree(ROOT, copy, symlinks=True, ignore=leftovers))


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return build_wheel(tree, tree.parent / "wheel")


@pytest.fixture(scope="module")
def sdist(tree: Path) -> Path:
    output = tree.parent / "sdist"
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run("-c", code, str(output), cwd=tree)
    (archive,) = output.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """A folder with nothing but the installed wheel."""
    target = wheel.parent.parent / "installed"
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    run("-m", "pip", "install", *options, str(wheel), cwd=target.parent)
    return target


def test_the_wheel_holds_every_source_file_and_nothing_else(tree: Path, wheel: Path) -> None:
    expected = {
        f"{package}/{path.name}"
        for package, folder in PACKAGES.items()
        for path in tree.glob(f"{folder}/*.py")
    }
    lessons = [path for path in tree.glob("lessons/*/*") if path.suffix in (".py", ".md", ".start")]
    expected |= {f"minipaged/{path.relative_to(tree)}" for path in lessons}
    expected |= {f"minipaged/view/{path.name}" for path in tree.glob("minipaged/view/*")}
    expected |= {"minipaged/lessons/manifest.toml", "minipaged/lessons/pytest.ini", "minipaged/py.typed"}
    files = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert files == expected


def test_the_wheel_carries_the_licence_and_the_command(wheel: Path) -> None:
    by_name = {name.partition(".dist-info/")[2]: name for name in contents(wheel)}
    archive = zipfile.ZipFile(wheel)
    assert archive.read(by_name["licenses/LICENSE"]).decode() == (ROOT / "LICENSE").read_text()
    assert "minipaged = minipaged.cli.main:main" in archive.read(by_name["entry_points.txt"]).decode()


def test_the_sdist_builds_the_same_wheel(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    assert contents(build_wheel(sdist, sdist.parent / "wheel")) == contents(wheel)


def test_the_reference_runs_from_the_installed_wheel_alone(installed: Path, tmp_path: Path) -> None:
    """-S leaves out site-packages, so neither an editable install nor torch is within reach."""
    code = f"""
import importlib, importlib.util
for name in {REFERENCE_MODULES}:
    print(importlib.import_module(name).__file__)
print(importlib.util.find_spec("minipaged.kernels.block_table").origin)
print(importlib.util.find_spec("reference"), importlib.util.find_spec("kernels"))
"""
    *origins, top_level = run("-S", "-c", code, cwd=tmp_path, path=installed).splitlines()
    assert len(origins) == len(REFERENCE_MODULES) + 1
    assert all(Path(origin).is_relative_to(installed) for origin in origins)
    assert top_level == "None None"


def test_the_lessons_are_copied_out_of_the_wheel_and_grade_themselves(
    installed: Path, tmp_path: Path
) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "minipaged", "lessons", "reset", "3"],
        cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 2 and "minipaged lessons copy" in refused.stderr
    run("-m", "minipaged", "lessons", "copy", "mine", cwd=tmp_path, path=installed)
    printed = run("-m", "pytest", "03_allocator", "--solutions", cwd=tmp_path / "mine", path=installed)
    assert "✓  3  The allocator" in printed


def test_the_command_says_where_the_benches_are(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "minipaged", "bench", "prefix"],
        cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("minipaged: error: bench runs from a clone")


@pytest.mark.parametrize("name", ["benchmarks", "reference", "kernels", "lessons"])
def test_no_installed_minipaged_answers_to_a_top_level_name(
    name: str, installed: Path, tmp_path: Path
) -> None:
    """As users run it: other packages in reach, ours beside them. A package called kernels may well exist."""
    code = f"from importlib.util import find_spec; print(find_spec({name!r}))"
    found = run("-c", code, cwd=tmp_path, path=installed)
    assert str(installed) not in found
    assert str(ROOT / name) not in found
