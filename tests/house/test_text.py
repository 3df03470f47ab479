"""The repository speaks of the project alone: nothing of the machine it was written on, no large files."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written so that this file doesn't match itself.
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:wor[k]|roo[t]|tm[p]/\w|var/tm[p]|hom[e]/\w)"),
    "the host of a package registry": re.compile(
        r"pyp[i]\.org|pythonhoste[d]\.org|npmj[s]\.|(?:deb|security)\.debia[n]\.org|download\.pytorc[h]\.org"
    ),
}


def repository_files() -> list[Path]:
    """Every file that git tracks or would add, links and deleted files left out."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def foreign(text: str) -> list[str]:
    """What a text says that belongs to a machine or a workplace."""
    return [f"{kind}: {match[0]}" for kind, pattern in FOREIGN.items() for match in pattern.finditer(text)]


def test_the_text_names_no_machine_and_no_registry() -> None:
    found = {}
    for path in repository_files():
        content = path.read_bytes()
        if b"\0" not in content:
            found[str(path.relative_to(ROOT))] = foreign(content.decode())
    assert found
    assert not {name: words for name, words in found.items() if words}


def test_no_file_is_over_one_megabyte() -> None:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in repository_files()}
    assert sizes
    assert not {name: size for name, size in sizes.items() if size > 1_000_000}


@pytest.mark.parametrize(
    ("text", "is_foreign"),
    [
        ("see /wor" + "k/main", True),
        ("cd '/tm" + "p/abc'", True),
        ("/hom" + "e/ann/x", True),
        ("https://pyp" + "i.org/simple", True),
        ("lessons/wor" + "k/ and ~/tm" + "p/x", False),
        ("/dev/kfd, /proc/driver/nvidia, /usr/local/cuda", False),
        ("the paper at arxiv.org, PyPI", False),
    ],
)
def test_foreign_text_is_found(text: str, is_foreign: bool) -> None:
    assert bool(foreign(text)) == is_foreign
