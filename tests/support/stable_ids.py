"""Ids of parametrized tests that are the same in every process, as a run in several processes needs them."""

from __future__ import annotations

import re

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def stable_repr(value: object) -> str:
    """The value as `repr` writes it, without addresses in memory."""
    return ADDRESS.sub("", repr(value))


def stable_str(value: object) -> str:
    """The value as `str` writes it, without addresses in memory, the elements of a set in order."""
    if isinstance(value, set):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return ADDRESS.sub("", str(value))
