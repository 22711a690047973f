"""What was spent lately: in the last minute by seconds, and in the last hour by minutes, with what calls have reserved.

Rule 1: an outcome counts in the second in which it is recorded, a reservation for as long as its call has none.
Rule 2: a reservation whose time is over counts in full in the second in which it ended, and leaves the windows with it.
Rule 3: time comes from what is recorded. Memory is bounded: sixty steps for each window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from antiphon.core.envelope import Envelope, Instant, add_seconds
from antiphon.guards.amounts import format_dollars
from antiphon.guards.counted_calls import (
    OUTCOME_TYPES,
    START_TYPES,
    CountedCall,
    CountedOutcome,
    counted_call,
    counted_outcome,
)
from antiphon.guards.recent_counts import SECOND_CHARS
from antiphon.guards.spending import MAX_OPEN_CALLS, OpenCall

STEPS = 60
"""Of how many steps a window consists."""
MINUTE, HOUR = 60, 3600
DEFAULT_RESERVATION_SECONDS = 600.0
RateUnit = Literal["micro", "tokens"]
WindowSteps = tuple[tuple[int, int, int], ...]
"""For each step in which anything was spent: its number, the millionths of a dollar, the tokens."""


class CostWindows(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was spent lately, by agent; under "" if agents are not told apart."""

    minute: dict[str, WindowSteps] = msgspec.field(default_factory=dict)
    hour: dict[str, WindowSteps] = msgspec.field(default_factory=dict)
    open: dict[str, OpenCall] = msgspec.field(default_factory=dict)
    """The calls without an outcome, by key."""
    last: CountedCall | None = None
    """The call that has started last: a denial is recorded right behind it."""


class Ceiling(NamedTuple):
    """How much of a unit may be spent within a window."""

    unit: RateUnit
    window: int
    """In seconds: `MINUTE` or `HOUR`."""
    most: int


class VelocityExcess(NamedTuple):
    """Which ceiling a call would exceed."""

    ceiling: Ceiling
    need: int
    spent: int
    reserved: int

    def describe(self) -> str:
        """For the person who reads it."""
        unit, window, most = self.ceiling
        within = "a minute" if window == MINUTE else "an hour"
        taken = self.spent + self.reserved
        if unit == "micro":
            amounts = f"{format_dollars(taken)} of {format_dollars(most)} are spent or reserved within {within}"
            return f"the call may cost {format_dollars(self.need)}, and {amounts}"
        return f"the call may use {self.need:,} tokens, and {taken:,} of {most:,} are used or reserved within {within}"


def fold_windows(windows: CostWindows, envelope: Envelope, *, by_agent: bool) -> CostWindows:
    """What was spent lately, after one more envelope."""
    if envelope.event_type in START_TYPES:
        call = counted_call(envelope)
        if call is None or call.kind != "model":
            return windows
        return _start_call(end_reservations(windows, envelope.created_at), call, envelope.created_at, by_agent=by_agent)
    outcome = counted_outcome(envelope) if envelope.event_type in OUTCOME_TYPES else None
    if outcome is None or outcome.key not in windows.open:
        return windows
    return _settle_call(end_reservations(windows, envelope.created_at), outcome, envelope.created_at)


def find_velocity_excess(
    ceilings: Sequence[Ceiling], windows: CostWindows, call: CountedCall, *, who: str, at: Instant
) -> VelocityExcess | None:
    """The first ceiling that this call would exceed at this instant; None if it exceeds none."""
    windows, now = end_reservations(windows, at), epoch_second(at)
    others = [entry for key, entry in windows.open.items() if entry.who == who and key != call.key]
    before = windows.open.get(call.key)
    if before is not None and call.micro <= before.micro and call.tokens <= before.tokens:
        return None  # started again after a crash: it has reserved that already
    for ceiling in ceilings:
        is_money = ceiling.unit == "micro"
        steps = (windows.minute if ceiling.window == MINUTE else windows.hour).get(who, ())
        width = ceiling.window // STEPS
        oldest = now // width - STEPS
        spent = sum((micro if is_money else tokens) for step, micro, tokens in steps if step > oldest)
        reserved = sum(entry.micro if is_money else entry.tokens for entry in others)
        need = call.micro if is_money else call.tokens
        if spent + reserved + need > ceiling.most:
            return VelocityExcess(ceiling, need, spent, reserved)
    return None


def end_reservations(windows: CostWindows, at: Instant) -> CostWindows:
    """The windows at this instant: what was reserved until before it is spent."""
    ended = {key: entry for key, entry in windows.open.items() if entry.until <= at} if windows.open else {}
    if not ended:
        return windows
    for entry in ended.values():
        windows = _spent(windows, entry.who, epoch_second(entry.until), micro=entry.micro, tokens=entry.tokens)
    others = {key: entry for key, entry in windows.open.items() if key not in ended}
    return CostWindows(windows.minute, windows.hour, others, windows.last)


def epoch_second(at: Instant) -> int:
    """The seconds from 1970 to an instant; 0 for what is none."""
    is_plain = len(at) == len("2026-01-01T00:00:00.000000Z") and at[-1] == "Z"
    return _second_of(f"{at[:SECOND_CHARS]}Z" if is_plain else at)


@lru_cache(maxsize=1024)
def _second_of(second: str) -> int:
    try:
        return int(datetime.fromisoformat(second).timestamp())
    except ValueError:
        return 0


def _start_call(windows: CostWindows, call: CountedCall, at: Instant, *, by_agent: bool) -> CostWindows:
    until = call.until or add_seconds(at, DEFAULT_RESERVATION_SECONDS)
    again = call.key in windows.open
    entry = OpenCall(call.kind, call.agent if by_agent else "", call.micro, call.tokens, until, again=again)
    others = {**windows.open, call.key: entry}
    for key in list(others)[: max(0, len(others) - MAX_OPEN_CALLS)]:
        del others[key]
    return CostWindows(windows.minute, windows.hour, others, call)


def _settle_call(windows: CostWindows, outcome: CountedOutcome, at: Instant) -> CostWindows:
    entry = windows.open.get(outcome.key)
    if entry is None:  # its time was over before: it counts in full
        return windows
    others = {**windows.open}
    del others[outcome.key]
    settled = CostWindows(windows.minute, windows.hour, others, windows.last)
    lost = entry.again and not outcome.left  # it has left once, before a crash
    micro, tokens = (entry.micro, entry.tokens) if lost else (outcome.micro, outcome.tokens)
    return _spent(settled, entry.who, epoch_second(at), micro=micro, tokens=tokens)


def _spent(windows: CostWindows, who: str, second: int, *, micro: int, tokens: int) -> CostWindows:
    if not micro and not tokens:
        return windows
    minute = _with_step(windows.minute, who, (second, micro, tokens))
    hour = _with_step(windows.hour, who, (second // (HOUR // STEPS), micro, tokens))
    return CostWindows(minute, hour, windows.open, windows.last)


def _with_step(steps: Mapping[str, WindowSteps], who: str, added: tuple[int, int, int]) -> dict[str, WindowSteps]:
    """With something spent in a step. Steps that have left the window are dropped, and so are agents without any."""
    own = steps.get(who, ())
    place, micro, tokens = added
    if own and own[-1][0] == place and own[0][0] > place - STEPS and len(steps) == 1:  # nothing leaves the window
        last = own[-1]
        return {who: (*own[:-1], (place, last[1] + micro, last[2] + tokens))}
    newest = max(place, own[-1][0]) if own else place
    same = next((step for step in own if step[0] == place), (place, 0, 0))
    others = [step for step in own if step[0] != place and step[0] > newest - STEPS]
    mine = sorted([*others, (place, same[1] + micro, same[2] + tokens)])
    kept = {name: each for name, each in steps.items() if name != who and each[-1][0] > newest - STEPS}
    return {**kept, who: tuple(step for step in mine if step[0] > newest - STEPS)}
