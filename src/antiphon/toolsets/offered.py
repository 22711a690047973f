"""What a server offers, as tools: which of it, under which names, and of which class.

Rule 1: descriptions and schemas are the server's; a model reads them without what cannot be seen, and cut: `cleaning`.
Rule 2: a name that models take stays as it is. Any other is made fit, the same way every time, and equal to no other.
Rule 3: a call may be made twice only if the server says that this does no harm, or the person who uses it does.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from antiphon.agents.messages import ToolSpec
from antiphon.agents.tool import Tool, tool_from_schema
from antiphon.core.codec import Malformed
from antiphon.core.errors import UsageError
from antiphon.core.words import shown
from antiphon.toolsets.cleaning import MAX_DESCRIPTION, cleaned, cleaned_schema

if TYPE_CHECKING:
    import mcp_types

log = logging.getLogger("antiphon.mcp")

Repeatable = Literal["natural", "unsafe"]
"""What a second call does: the same again, or harm. There is no key that a server would know."""

LONGEST = 64
MARK = 8
STRANGE = re.compile(r"[^A-Za-z0-9_-]")

Calling = Callable[[str, dict[str, object]], Awaitable[str]]
"""Calls the server's tool of this name with these arguments."""


class Choice(msgspec.Struct, frozen=True):
    """Which of a server's tools are wanted, and how."""

    prefix: str = ""
    only: Sequence[str] | None = None
    without: Sequence[str] = ()
    idempotency: Repeatable | Mapping[str, Repeatable] | None = None

    @property
    def names(self) -> set[str]:
        """The tools it speaks of."""
        overridden = self.idempotency if isinstance(self.idempotency, Mapping) else ()
        return {*(self.only or ()), *self.without, *overridden}


def tools_of(offer: Iterable[mcp_types.Tool], choice: Choice, *, call: Calling, label: str) -> tuple[Tool, ...]:
    """The tools that are chosen from an offer; `UsageError` if something is chosen that is not offered."""
    offered: dict[str, mcp_types.Tool] = {}
    for each in offer:
        if each.name in offered:
            log.warning("%s offers two tools called %r; the first is used", label, each.name)
        offered.setdefault(each.name, each)
    strange = sorted(choice.names - offered.keys())
    if strange:
        known = ", ".join(offered) or "none"
        raise UsageError(f"{label} has no tool {shown(strange[0])}; there are: {known}")
    chosen = [each for each in offered.values() if _is_chosen(each.name, choice)]
    names = fit_names([each.name for each in chosen], choice.prefix)
    specs = {each.name: _spec(each, names[each.name], label) for each in chosen}
    return tuple(_tool(each, specs[each.name], choice, call=call, label=label) for each in chosen)


def fit_names(names: Sequence[str], prefix: str = "") -> dict[str, str]:
    """What models call each of these tools. It depends on the names alone, not on their order."""
    whole = {name: f"{prefix}_{name}" if prefix else name for name in names}
    plain = {name: STRANGE.sub("_", text) for name, text in whole.items()}
    count = Counter(plain.values())
    fit = {
        name: text
        for name, text in plain.items()
        if 0 < len(text) <= LONGEST and (text == whole[name] or count[text] == 1)
    }
    taken = set(fit.values())
    for name in sorted(whole.keys() - fit.keys()):
        fit[name] = _marked(plain[name], whole[name], taken)
        taken.add(fit[name])
    return fit


def _marked(plain: str, whole: str, taken: set[str]) -> str:
    """The name with a mark that tells it from others that look like it."""
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    marks = (digest[start : start + MARK] for start in range(len(digest) - MARK))
    candidates = (f"{(plain or 'tool')[: LONGEST - MARK - 1]}_{mark}" for mark in marks)
    return next(each for each in candidates if each not in taken)


def _is_chosen(name: str, choice: Choice) -> bool:
    return (choice.only is None or name in choice.only) and name not in choice.without


def _class(offered: mcp_types.Tool, choice: Choice) -> Repeatable:
    given = choice.idempotency
    override = given.get(offered.name) if isinstance(given, Mapping) else given
    if override is not None:
        return override
    hints = offered.annotations
    harmless = hints is not None and (hints.read_only_hint is True or hints.idempotent_hint is True)
    return "natural" if harmless else "unsafe"


def _spec(offered: mcp_types.Tool, name: str, label: str) -> ToolSpec:
    """The tool as a model is told of it; `UsageError` if its schema is too large, or cannot be sent."""
    description = cleaned(offered.description or offered.title or "", MAX_DESCRIPTION)
    try:
        return ToolSpec(name, description, cleaned_schema(offered.input_schema))
    except Malformed as error:
        advice = f"leave the tool out with without=[{shown(offered.name)}]"
        raise UsageError(f"{label}: the schema of its tool {shown(offered.name)}: {error}; {advice}") from error


def _tool(offered: mcp_types.Tool, spec: ToolSpec, choice: Choice, *, call: Calling, label: str) -> Tool:
    async def called(**arguments: object) -> str:
        return await call(offered.name, arguments)

    # The server is timed where it is asked: a call that takes too long is an answer to the model, not a doubt.
    return tool_from_schema(called, spec, idempotency=_class(offered, choice), timeout=None, source=label)
