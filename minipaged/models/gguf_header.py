"""Read the header of a GGUF file, and believe none of its sizes before they are compared with the file's own.

A header of 100 bytes can claim an array of 2**40 entries, and a reader that trusts it fills the memory. So
every count is checked before anything is read by it.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 4  # ggml's own limit
# Readers make an object per entry. The largest vocabularies come to 1.3 million entries with their merges.
_MOST_ENTRIES = 1 << 21
_MOST_ITEMS = 1 << 16  # metadata keys, and tensors
_LENGTH = 8  # bytes of a count


@dataclass(frozen=True)
class GGUFHeader:
    """What a file says of itself: its metadata, and the name and shape of each tensor."""

    metadata: dict[str, Any]  # arrays of strings as their number of entries
    shapes: dict[str, tuple[int, ...]]

    @property
    def num_values(self) -> int:
        """Values of all tensors together."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def read_header(path: Path) -> GGUFHeader:
    """Read and check a file's header. Raises ValueError for what can't be true of a file of this size."""
    with path.open("rb") as file:
        if path.stat().st_size < len(_MAGIC):
            raise ValueError("the file is too short")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _HeaderReader(data).header()
            except struct.error:
                raise ValueError("the file ends within its header") from None


class _HeaderReader:
    """Reads a file's header once, from front to back."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.entries = 0  # of all arrays so far

    def header(self) -> GGUFHeader:
        if self._bytes(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}; 2 and 3 are handled")
        num_tensors, num_keys = self._scalar("Q"), self._scalar("Q")
        self._check_count("tensors", num_tensors, _LENGTH + 4 + 4 + _LENGTH)
        self._check_count("metadata keys", num_keys, _LENGTH + 4 + 1)
        if max(num_tensors, num_keys) > _MOST_ITEMS:
            raise ValueError(f"it has {num_tensors} tensors and {num_keys} metadata keys")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise ValueError(f"the key {key!r} is there twice")
            metadata[key] = self._value(self._scalar("I"))
        shapes: dict[str, tuple[int, ...]] = {}
        extents = [self._tensor(shapes) for _ in range(num_tensors)]
        self._check_extents(metadata, extents)
        return GGUFHeader(metadata, shapes)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"it has a metadata value of the unknown type {kind}")
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind != _STRING and kind not in _SCALARS:
            raise ValueError(f"it has an array of the type {kind}, which is not handled")
        size = _LENGTH if kind == _STRING else struct.calcsize(_SCALARS[kind])
        self._check_count("entries of an array", count, size)
        self.entries += count
        if self.entries > _MOST_ENTRIES:
            raise ValueError(f"its arrays have more than {_MOST_ENTRIES} entries")
        if kind != _STRING:
            return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self._bytes(count * size)))
        for _ in range(count):
            self._bytes(self._scalar("Q"))
        return count

    def _tensor(self, shapes: dict[str, tuple[int, ...]]) -> tuple[int, int]:
        """Note a tensor's shape. Returns where its data begins, after the header, and its size in bytes."""
        name, num_dimensions = self._string(), self._scalar("I")
        if name in shapes:
            raise ValueError(f"the tensor {name!r} is there twice")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {num_dimensions} dimensions")
        shape = tuple(self._scalar("Q") for _ in range(num_dimensions))
        shapes[name] = tuple(reversed(shape))  # the fastest-moving dimension comes first in the file
        kind = GGMLQuantizationType(self._scalar("I"))
        values_per_block, bytes_per_block = GGML_QUANT_SIZES[kind]
        if shape and shape[0] % values_per_block:
            raise ValueError(f"the tensor {name!r} has rows of {shape[0]} values, of the type {kind.name}")
        return self._scalar("Q"), math.prod(shape) // values_per_block * bytes_per_block

    def _check_extents(self, metadata: dict[str, Any], extents: list[tuple[int, int]]) -> None:
        """The data of all tensors lies in the file, and no two of them share bytes."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment = {alignment!r} is not a power of two")
        begin = -(-self.position // alignment) * alignment
        end = 0
        for offset, size in sorted(extents):
            if offset < end:
                raise ValueError("its tensors overlap")
            end = offset + size
        if begin + end > len(self.data):
            raise ValueError(f"its tensors need {begin + end} bytes, the file has {len(self.data)}")

    def _check_count(self, what: str, count: int, size: int) -> None:
        """Raise unless `count` items of at least `size` bytes can follow."""
        left = len(self.data) - self.position
        if count * size > left:
            raise ValueError(f"it claims {count} {what}, and only {left} bytes follow")

    def _string(self) -> str:
        return self._bytes(self._scalar("Q")).decode()

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.position)
        self.position += struct.calcsize(code)
        return value

    def _bytes(self, size: int) -> bytes:
        self._check_count("bytes", size, 1)
        self.position += size
        return self.data[self.position - size : self.position]
