"""Checks that any adapter and any guard must pass. Each raises AssertionError with a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from antiphon.core.codec import Malformed, from_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid
from antiphon.core.events import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, Created, Json, Seat
from antiphon.core.guard import Guard, Judges, Remembers, Reviews, Watches
from antiphon.core.ids import IdSource
from antiphon.core.laws import Fold, Laws, SavedFold
from antiphon.core.opening import opening
from antiphon.core.rules import Adapter
from antiphon.core.step import Admitted, step
from antiphon.core.words import told
from antiphon.guards.membership import Membership
from antiphon.orchestration.adapters import Quiet
from antiphon.orchestration.shape import check_shape

AT = "2026-01-01T00:00:00.000000Z"
ROUNDS = 12
OPINIONS = (Remembers, Judges, Reviews, Watches)
SAYINGS: tuple[tuple[str, Json], ...] = (
    (EV_TEXT, {"text": "hello"}),
    (EV_PACKET, {"body": "done", "routing": {}, "context_updates": {"set": {"a": 1}, "delete": []}}),
    (EV_CONTEXT_SET, {"set": {"b": [1, None]}, "delete": ["a"]}),
    ("check.custom", {"anything": {"at": "all"}}),
)


def check_adapter(
    adapter: type[Adapter], knobs: Json | None = None, participants: Sequence[str] = ("ann", "ben")
) -> None:
    """Play channels of this type: decisions are ours, the same each time, and outlive a snapshot."""
    try:
        check_shape(adapter)
    except RulesInvalid as error:
        raise AssertionError(str(error)) from error
    seats = adapter.seats
    assert seats.least <= len(participants), f"{adapter.name} takes {seats.least} participants at least; give more"
    for guards in ((), (Membership(),)):
        with _raising_nothing(f"the adapter {adapter.name}"):
            _play(Laws(adapter(knobs or {}), guards), adapter.ordered, participants)


def check_guard(guard: Guard, participants: Sequence[str] = ("ann", "ben")) -> None:
    """Fold and ask a guard over all kinds of envelopes: it never fails, repeats itself, and outlives a snapshot."""
    assert not isinstance(guard, type), f"{guard!r} is a class; give an instance of it"
    assert isinstance(getattr(guard, "name", None), str), f"{guard!r} needs a name"
    assert isinstance(guard, OPINIONS), (
        f"{guard.name} has no opinion; it needs judge, review, due, or evolve and memory"
    )
    assert hasattr(guard, "evolve") == hasattr(guard, "memory"), (
        f"{guard.name} needs both evolve and memory, or neither"
    )
    with _raising_nothing(f"the guard {guard.name}"):
        _play(Laws(Quiet({}), [guard]), False, participants)


@contextmanager
def _raising_nothing(who: str) -> Iterator[None]:
    """Whatever is raised inside is a failed check."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{who} raised {told(error)}") from error


def _play(laws: Laws, ordered: bool, participants: Sequence[str]) -> None:
    created = Created("check", participants[0], [Seat(name) for name in participants], ordered=ordered)
    begun = opening(laws.begin("check"), created, participants, laws=laws, at=AT, new_id=_numbered())
    fold = begun.fold
    for draft in _drafts(participants):
        outcome = step(fold, draft, laws=laws, at=AT, new_id=_numbered())
        if isinstance(outcome, Admitted):
            _check_snapshot(laws, outcome.fold)
            _check_deadline(laws, outcome.fold)
            _check_turns(outcome)
        again = step(fold, draft, laws=laws, at=AT, new_id=_numbered())
        assert outcome == again, f"asked twice about {draft!r}, it gave {outcome!r} and {again!r}"
        fold = outcome.fold if isinstance(outcome, Admitted) else fold


def _numbered() -> IdSource:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


def _drafts(participants: Sequence[str]) -> Iterator[Envelope]:
    for number in range(ROUNDS):
        for speaker in participants:
            event_type, data = SAYINGS[number % len(SAYINGS)]
            yield Envelope(channel_id="check", sender_id=speaker, event_type=event_type, event_data=data)


def _check_turns(outcome: Admitted) -> None:
    reason = outcome.fold.state.close_reason
    assert not reason.startswith("unknown_speaker:"), f"the turn went to somebody who is not in the channel: {reason}"
    assert reason != "nobody_is_next", "the turn was given to nobody; wait, or close"


def _check_deadline(laws: Laws, fold: Fold) -> None:
    due, again = laws.due(fold), laws.due(fold)
    assert due == again, f"asked twice when it is due, it said {due!r} and {again!r}"


def _check_snapshot(laws: Laws, fold: Fold) -> None:
    try:
        restored = laws.restore(from_json(laws.save(fold), SavedFold))
    except (Malformed, TypeError) as error:
        raise AssertionError(f"its memory is not plain data: {error}") from error
    assert restored == fold, f"a snapshot reads back as {restored!r}, not {fold!r}"
