"""What a server says of its tools, made safe for models and screens.

Rule 1: nothing is hidden. Characters that cannot be seen are removed: control characters, terminal sequences, marks of
        the direction of text, zero-width and tag characters.
Rule 2: everything has a limit. Descriptions are cut, and say so; a schema is never cut, so too large a one is an error.
Rule 3: the same text comes to the same result, wherever in an offer it stands: a reference still finds its definition.
"""

from __future__ import annotations

import re
import unicodedata
from typing import cast

from antiphon.core.codec import Malformed, check_json, to_json
from antiphon.core.events import Json

MAX_DESCRIPTION = 4 * 1024
"""How many bytes the description of a tool may have."""
MAX_PARAMETER_DESCRIPTION = 1024
"""How many bytes a description inside of a schema may have."""
MAX_SCHEMA = 64 * 1024
"""How many bytes the schema of a tool's parameters may have, once its descriptions are cut."""
MAX_INSTRUCTIONS = 16 * 1024
CUT_MARK = " … (cut)"

TERMINAL_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, and where the cursor goes
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"  # titles, links and the like
    "|\x1b[ -/]*[0-~]"
)
HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs"})
HIDDEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters of other categories that show nothing."""
SELECTORS = ((0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0000, 0xE0FFF))
"""Ranges of variation selectors and tags, in which any text can be hidden."""
LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")
DESCRIBING = frozenset({"description", "title", "$comment"})
NAMING = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""The keywords whose values are schemas by name."""


def cleaned(text: str, most: int | None = None) -> str:
    """The text without what cannot be seen, cut to so many bytes. Lines and tabs stay."""
    if not text.isprintable():
        plain = LINE_ENDS.sub("\n", TERMINAL_SEQUENCE.sub("", text))
        text = "".join(character for character in plain if character in "\n\t" or not _is_hidden(character))
    elif not text.isascii():
        text = "".join(character for character in text if not _is_hidden(character))
    return text if most is None else _cut(text, most)


def cleaned_schema(schema: Json) -> Json:
    """The schema with its texts cleaned and its descriptions cut; `Malformed` if it is no JSON, or too large."""
    check_json(schema)
    made = cast("Json", _schema(schema))
    size = len(to_json(made))
    if size > MAX_SCHEMA:
        raise Malformed("too_large", f"it has {size} bytes; the limit is {MAX_SCHEMA}")
    return made


def _schema(part: object, *, named: bool = False) -> object:
    """A schema, or if `named` a dict of schemas by names of the server's choice."""
    match part:
        case dict():
            return {cleaned(key): _keyword(key, value, named=named) for key, value in part.items()}
        case list():
            return [_schema(each) for each in part]
        case str():
            return cleaned(part)
        case _:
            return part


def _keyword(key: str, value: object, *, named: bool) -> object:
    if not named and key in DESCRIBING and isinstance(value, str):
        return cleaned(value, MAX_PARAMETER_DESCRIPTION)
    return _schema(value, named=not named and key in NAMING)


def _is_hidden(character: str) -> bool:
    number = ord(character)
    return (
        unicodedata.category(character) in HIDDEN_CATEGORIES
        or character in HIDDEN
        or any(first <= number <= last for first, last in SELECTORS)
    )


def _cut(text: str, most: int) -> str:
    data = text.encode()
    if len(data) <= most:
        return text
    return data[: most - len(CUT_MARK.encode())].decode(errors="ignore").rstrip() + CUT_MARK
