"""What a channel expects, from its own words and its adapter's."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import RulesInvalid
from antiphon.core.rules import Adapter, Expectation
from antiphon.core.words import plainly, shown
from antiphon.guards.silence import CLOCKS, HANDLERS, Within
from antiphon.orchestration.adapters import ACKS, RUNS

FIELDS = Expectation.__struct_fields__


def expectations_for(kind: type[Adapter], entries: Iterable[object]) -> list[Within]:
    """What a channel expects: its own words, and the adapter's for every name it does not mention."""
    given = [_expectation(entry) for entry in entries]
    named = {expectation.name for expectation in given}
    everything = {expectation.name for expectation in (*given, *kind.expectations)}
    common = [] if ACKS.name in everything else [ACKS]
    if everything.isdisjoint({RUNS.name, "reply_within"}):
        common.append(RUNS)
    defaults = [known(expectation) for expectation in kind.expectations if expectation.name not in named]
    watched = [
        *(Within(expectation, is_default=True) for expectation in defaults),
        *(Within(expectation) for expectation in given),
        *(Within(expectation, is_default=True) for expectation in common),
    ]
    return [within for within in watched if within.expectation.seconds > 0]


def known(wanted: Expectation) -> Expectation:
    """The expectation, if the hub can watch it; `RulesInvalid` if its name, time or handler means nothing."""
    if wanted.name not in CLOCKS:
        raise RulesInvalid(f"no expectation is called {shown(wanted.name)}; there are: {', '.join(CLOCKS)}")
    if wanted.handler not in HANDLERS:
        raise RulesInvalid(f"no handler is called {shown(wanted.handler)}; there are: {', '.join(HANDLERS)}")
    if not 0 <= wanted.seconds < inf:
        raise RulesInvalid(f"{wanted.name} is given {shown(wanted.seconds)} seconds; 0 switches it off")
    return wanted


def _expectation(entry: object) -> Expectation:
    unknown = [field for field in entry if field not in FIELDS] if isinstance(entry, dict) else []
    if unknown:
        raise RulesInvalid(f"an expectation has no field {shown(unknown[0])}; it has: {', '.join(FIELDS)}")
    try:
        return known(as_type(entry, Expectation))
    except Malformed as error:
        raise RulesInvalid(f"expectation {shown(entry)}: {plainly(str(error))}") from error
