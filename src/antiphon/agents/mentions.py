"""Whom a person addresses with `@name`.

Rule 1: only at the very beginning of what a person said, and only if a name stands there alone: at the end, or before
        a blank or a new line. Anything else, anywhere else, is plain text.
Rule 2: a name is a name of ours, letter for letter, whatever its case. What merely looks like one is none.
"""

from __future__ import annotations

import re

BLANKS = " \t\r\n"
MENTION = re.compile(r"@([A-Za-z0-9][A-Za-z0-9_-]{0,47})(?=[ \t\r\n]|\Z)", re.ASCII)


def mentioned(text: str) -> str | None:
    """The name that is addressed, in lower case; None if none is."""
    found = MENTION.match(text)
    return None if found is None else found.group(1).lower()
