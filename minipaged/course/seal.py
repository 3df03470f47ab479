"""Seal the grader's own functions before an exercise is imported, and find what it has replaced since.

The seal holds modules, functions, methods and classes of pytest, of the tests and of this package.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from types import ModuleType

PACKAGES = ("minipaged", "pytest", "_pytest", "pluggy", "json", "os")


class Sealed:
    """One name of the grader, and what it stands for."""

    __slots__ = ("_code", "_namespace", "_value", "name", "owner")

    def __init__(self, owner: str, namespace: Mapping[str, object], name: str, value: object) -> None:
        self.owner, self.name = owner, name
        self._namespace, self._value, self._code = namespace, value, getattr(value, "__code__", None)

    def has_changed(self) -> bool:
        """Whether the name stands for something else, or its function has other code."""
        value = self._namespace.get(self.name)
        return value is not self._value or getattr(value, "__code__", None) is not self._code


def seal(tests: ModuleType) -> list[Sealed]:
    """Return the modules, functions, methods and classes of the grader, each with its code."""
    modules = {name: m for name, m in sys.modules.items() if name.partition(".")[0] in PACKAGES}
    modules |= {tests.__name__: tests, "builtins": builtins}
    names = [Sealed("sys.modules", sys.modules, name, module) for name, module in modules.items()]
    for name, module in modules.items():
        for attribute, value in vars(module).items():
            if "<locals>" in getattr(value, "__qualname__", "<locals>"):
                continue  # no function or class, or one that pytest makes anew for each test
            names.append(Sealed(name, vars(module), attribute, value))
            if isinstance(value, type) and value.__module__ == name:
                names += [
                    Sealed(f"{name}.{attribute}", vars(value), member, method)
                    for member, method in vars(value).items()
                    if callable(method) or isinstance(method, property | classmethod | staticmethod)
                ]
    return names


def first_change(names: list[Sealed]) -> str:
    """Return the name of the first thing that isn't what it was; "" if nothing has changed."""
    changed = (f"{sealed.owner}.{sealed.name}" for sealed in names if sealed.has_changed())
    return next(changed, "")
