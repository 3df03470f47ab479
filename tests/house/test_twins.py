"""Every concept stands twice under one name: reference/ and kernels/ are compared file by file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# What has no counterpart, and why. A file, or a file::name.
ONE_SIDED = {
    "reference/kv_cache_size.py": "host arithmetic",
    "reference/contiguous.py": "what paging replaces: the baseline",
    "reference/slot_allocator.py": "where contiguous pieces lie: the baseline",
    "reference/prefix_cache.py": "every engine keeps its prefix cache on the host",
    "reference/prefix_chain.py": "every engine hashes prefixes on the host",
    "reference/allocator.py::OutOfBlocksError": "a device can't raise: it says how many are missing",
    "kernels/allocator.py::Freed": "what a device says of a free, as tensors",
    "kernels/beam_search.py::Reordered": "what a device says of its beams, as tensors",
    "reference/attention.py::Partial": "in a kernel the running softmax is three registers, not an object",
    "reference/attention.py::visible_blocks": "a kernel finds its blocks in its loop over tiles",
    "reference/attention.py::fold_block": "a kernel does this in its loop over tiles",
    "reference/attention.py::merge_partials": "a kernel of its own does this, launched by decode_attention",
    "kernels/attention_cpu.py::attend": "decodes and prefills of a layer, on arrays that all layers share",
    "reference/block_table.py::BlockTable": "host bookkeeping of one sequence; a kernel takes a batch's rows",
    "reference/block_table.py::check_block_size": "an argument check that the host-side classes share",
    "reference/block_table.py::check_positive": "an argument check that the host-side classes share",
    "reference/block_table.py::num_blocks_for": "host arithmetic",
    "reference/copy_on_write.py::Allocator": "the protocol of a host-side argument",
    "reference/copy_on_write.py::SharingAllocator": "the protocol of a host-side argument",
    "reference/copy_on_write.py::copy_on_write": "the host decides what to copy; the kernel copies",
    "reference/copy_on_write.py::num_available_after": "the host counts what can be handed out",
    "kernels/block_table.py::launch_slot_mapping": "the launch alone: slot_mapping may index instead",
    "kernels/block_table.py::launch_write_kv": "the launch alone: write_kv may index instead",
    "reference/copy_on_write.py::independent_copies": "the host decides which copies share a launch",
    "reference/beam_search.py::counts_after": "a kernel counts with atomics, and looks afterwards",
    "reference/beam_search.py::copies_needed": "a kernel counts with atomics, and looks afterwards",
    "reference/beam_search.py::fork_beams": "a part of reorder_beams, which the engine uses alone",
    "reference/swap.py::swap_out": "the host decides what to move; the kernel moves",
    "reference/swap.py::swap_in": "the host decides what to move; the kernel moves",
    "kernels/swap.py::host_pool": "plain Python has no pinned memory",
    "kernels/copy_on_write.py::checked_pairs": "argument checks that copy and swap share",
    "kernels/copy_on_write.py::copy_pairs": "where torch or a launch is chosen, for copy and swap",
    "kernels/copy_on_write.py::as_words": "only a kernel cares how wide its loads are",
    "kernels/copy_on_write.py::launch_copy_blocks": "the launch alone: copy_blocks may index instead",
}

# Further twins in kernels/ of a file there, with the very same signatures. They may also have what only the
# reference has.
SECOND_TWINS = {"attention_cpu.py": "attention.py"}

# A kernel takes a batch where the reference takes one sequence.
PLURALS = {"block_table": "block_tables", "context_length": "context_lengths", "query": "queries"}


def files(folder: Path) -> set[str]:
    """The files of a folder that want a twin: a leading underscore makes one private, as it does a name."""
    return {path.name for path in folder.glob("*.py") if path.name[0] != "_"} - set(SECOND_TWINS)


def public(path: Path) -> dict[str, Definition]:
    """Functions and classes defined at the top of a file whose names don't start with an underscore."""
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, Definition)]
    return {node.name: node for node in nodes if not node.name.startswith("_")}


def parameters(node: Definition) -> list[str]:
    assert not isinstance(node, ast.ClassDef)
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def signature(node: Definition) -> str:
    assert not isinstance(node, ast.ClassDef)
    return f"({ast.unparse(node.args)}) -> {ast.unparse(node.returns) if node.returns else None}"


def find_one_sided(root: Path) -> set[str]:
    """All that has no counterpart, written as the keys of ONE_SIDED."""
    reference, kernels = root / "reference", root / "kernels"
    lonely = files(reference) ^ files(kernels)
    found = {f"{side.name}/{name}" for side in (reference, kernels) for name in files(side) & lonely}
    twins = [(reference / name, kernels / name) for name in files(reference) & files(kernels)]
    twins += [(kernels / first, kernels / second) for second, first in SECOND_TWINS.items()]
    for one, other in twins:
        for here, there in ((one, other), (other, one)):
            names = set(public(here)) - set(public(there))
            if here.name in SECOND_TWINS:
                names -= set(public(reference / there.name))
            found |= {f"{here.parent.name}/{here.name}::{name}" for name in names}
    return found


def shared_functions(root: Path) -> dict[str, tuple[Definition, Definition]]:
    """The functions that reference/ and kernels/ both have, by file::name."""
    pairs = {}
    for file in sorted(files(root / "reference") & files(root / "kernels")):
        reference, kernel = public(root / "reference" / file), public(root / "kernels" / file)
        for name in sorted(set(reference) & set(kernel)):
            if not isinstance(reference[name], ast.ClassDef):
                pairs[f"{file}::{name}"] = (reference[name], kernel[name])
    return pairs


def misordered(reference: Definition, kernel: Definition) -> str | None:
    """Say so where the reference's parameters aren't all in the kernel's signature, in the same order."""
    theirs = parameters(kernel)
    wanted = [name if name in theirs else PLURALS.get(name, name) for name in parameters(reference)]
    got = [name for name in theirs if name in wanted]
    return None if got == wanted else f"the kernel has {got} where the reference has {wanted}"


def test_whatever_has_no_counterpart_is_listed_with_a_reason() -> None:
    unlisted = sorted(find_one_sided(ROOT) - set(ONE_SIDED))
    assert not unlisted, f"no counterpart of that name: {unlisted}; write it, or say why not in ONE_SIDED"


def test_the_list_of_exceptions_is_not_stale() -> None:
    stale = sorted(set(ONE_SIDED) - find_one_sided(ROOT))
    assert not stale, f"these have a counterpart now, or are gone: {stale}; take them out of ONE_SIDED"


@pytest.mark.parametrize("name", shared_functions(ROOT))
def test_twins_take_their_arguments_in_the_same_order(name: str) -> None:
    assert misordered(*shared_functions(ROOT)[name]) is None


@pytest.mark.parametrize("second", SECOND_TWINS)
def test_a_second_twin_has_the_very_same_signatures(second: str) -> None:
    first = public(ROOT / "kernels" / SECOND_TWINS[second])
    other = public(ROOT / "kernels" / second)
    shared = set(first) & set(other)
    assert shared
    assert {n: signature(other[n]) for n in shared} == {n: signature(first[n]) for n in shared}


def write(root: Path, **sources: str) -> Path:
    """A small project: `reference_x="..."` becomes reference/x.py."""
    for name in ("reference/__init__", "kernels/__init__", "kernels/attention", "kernels/attention_cpu"):
        path = root / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (root / "reference" / "attention.py").touch()
    for name, source in sources.items():
        (root / f"{name.replace('_', '/', 1)}.py").write_text(source)
    return root


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"reference_a": "def f(): ...\ndef _g(): ...", "kernels_a": "import os\ndef f(): ..."}, set()),
        (
            {"reference_a": "def f(): ...", "kernels_a": "class g: ..."},
            {"reference/a.py::f", "kernels/a.py::g"},
        ),
        ({"reference_a": "def f(): ..."}, {"reference/a.py"}),
        ({"kernels_a": "def f(): ..."}, {"kernels/a.py"}),
        (
            {"reference_attention": "def f(): ...", "kernels_attention": "def f(): ..."},
            {"kernels/attention.py::f"},
        ),
    ],
)
def test_a_missing_counterpart_is_found(tmp_path: Path, sources: dict[str, str], found: set[str]) -> None:
    assert find_one_sided(write(tmp_path, **sources)) == found


@pytest.mark.parametrize(
    ("reference", "kernel", "agree"),
    [
        ("query, block_table, *, scale", "queries, block_tables, starts, *, scale, extra=None", True),
        ("keys, values", "values, keys", False),
        ("keys, values", "keys", False),
        ("block_table, positions", "positions, block_tables", False),
    ],
)
def test_another_order_of_arguments_is_found(
    tmp_path: Path, reference: str, kernel: str, agree: bool
) -> None:
    root = write(tmp_path, reference_a=f"def f({reference}): ...", kernels_a=f"def f({kernel}): ...")
    assert (misordered(*shared_functions(root)["a.py::f"]) is None) == agree
