"""What a docstring says of a function and of its parameters.

Rule 1: two ways of writing are read: a Google `Args:` section, and Sphinx `:param name:` lines.
Rule 2: the description is what stands before the first section or field of either kind.
Rule 3: nothing here can fail. What is not understood describes nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from antiphon.core.words import storable

ARGS = r"(Args|Arguments|Parameters|Params):\s*\Z"
SECTION = r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises):\s*\Z"
FIELD = r":(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b[^:]*:"
PARAM = r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)"
ENTRY = r"(?P<name>\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)"


class Doc(NamedTuple):
    """A docstring, read."""

    description: str
    parameters: dict[str, str]


def read(docstring: str | None) -> Doc:
    """What the docstring says; nothing, of a function without one."""
    lines = inspect.cleandoc(storable(docstring or "")).splitlines()
    end = next((at for at, line in enumerate(lines) if re.match(SECTION, line) or re.match(FIELD, line)), len(lines))
    return Doc("\n".join(lines[:end]).strip(), dict(_parameters(lines[end:])))


def _parameters(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, line in enumerate(lines):
        if re.match(ARGS, line):
            yield from _entries(lines[at + 1 :])
        elif found := re.match(PARAM, line):
            yield found["name"], _joined([found["text"], *_deeper(lines[at + 1 :], 0)])


def _entries(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The entries of an `Args:` section. All begin as far in as the first; what is further in goes on."""
    section = _deeper(lines, 0)
    inset = next((_inset(line) for line in section if line), 0)
    for at, line in enumerate(section):
        found = re.match(ENTRY, line.strip()) if _inset(line) == inset else None
        if found:
            yield found["name"], _joined([found["text"], *_deeper(section[at + 1 :], inset)])


def _deeper(lines: Iterable[str], inset: int) -> list[str]:
    """The lines up to the first one that is not further in than this."""
    found: list[str] = []
    for line in lines:
        if line and _inset(line) <= inset:
            break
        found.append(line)
    return found


def _inset(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Iterable[str]) -> str:
    return " ".join(word for line in lines for word in line.split())
