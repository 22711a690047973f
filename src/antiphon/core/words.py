"""How a value is shown to the person who gave it."""

from __future__ import annotations

LONGEST = 60


def shown(value: object) -> str:
    """The value as it would be written in a program, cut short. Anything at all can be shown."""
    if isinstance(value, int) and not -(10**18) < value < 10**18:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # a value that cannot even be shown is bad input like any other
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
