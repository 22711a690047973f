"""Checks that any adapter and any guard must pass. Each raises AssertionError with a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from msgspec.structs import replace

from antiphon.core.codec import Malformed, from_json, to_json
from antiphon.core.creation import opening_batch
from antiphon.core.envelope import Envelope, IdSource, Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, RESERVED_PREFIXES, ChannelCreated, FailedTurn, Seat
from antiphon.core.execution_events import EV_CALL_STARTED, CallStarted
from antiphon.core.guard import Deadline, Guard
from antiphon.core.ruleset import Adapter, AdapterTraits, Fold, Ruleset, SavedFold, restore_fold
from antiphon.core.state import Decision
from antiphon.core.step import Admitted, hub_draft, stamp_draft, step
from antiphon.core.text import describe_error
from antiphon.guards.named_guards import OPINIONS
from antiphon.guards.standard_guards import Membership
from antiphon.orchestration.adapters import SystemAdapter
from antiphon.orchestration.catalogue import check_adapter_class, make_ruleset

RULES_INSTANT = "2026-01-01T00:00:00.000000Z"
PLAYED_ROUNDS = 12
PLAYED_EVENTS: tuple[tuple[str, Json], ...] = (
    (EV_TEXT, {"text": "hello"}),
    (EV_PACKET, {"body": "done", "routing": {}, "context_updates": {"set": {"a": 1}, "delete": []}}),
    (EV_CONTEXT_SET, {"set": {"b": [1, None]}, "delete": ["a"]}),
    ("check.custom", {"anything": {"at": "all"}}),
)


def check_adapter(
    adapter: type[Adapter], knobs: Json | None = None, participants: Sequence[str] = ("ann", "ben")
) -> None:
    """Play channels of this type: decisions are valid, the same each time, and survive a snapshot."""
    try:
        check_adapter_class(adapter)
    except RulesInvalid as error:
        raise AssertionError(str(error)) from error
    seats = adapter.seats
    assert seats.least <= len(participants), f"{adapter.name} takes {seats.least} participants at least; give more"
    for guards in ((), (Membership(),)):
        with _fail_on_error(f"the adapter {adapter.name}"):
            _play_channel(make_ruleset(adapter(knobs or {}), guards), adapter.ordered, participants)


def check_guard(guard: Guard, participants: Sequence[str] = ("ann", "ben")) -> None:
    """Fold and ask a guard over all kinds of envelopes: it never fails, repeats itself, and survives a snapshot."""
    assert not isinstance(guard, type), f"{guard!r} is a class; give an instance of it"
    assert isinstance(getattr(guard, "name", None), str), f"{guard!r} needs a name"
    assert any(callable(getattr(guard, opinion, None)) for opinion in OPINIONS), (
        f"{guard.name} has no opinion; it needs one of: {', '.join(OPINIONS)}"
    )
    assert hasattr(guard, "evolve") == hasattr(guard, "memory"), (
        f"{guard.name} needs both evolve and memory, or neither"
    )
    with _fail_on_error(f"the guard {guard.name}"):
        _play_channel(make_ruleset(SystemAdapter({}), [guard]), False, participants)


@contextmanager
def _fail_on_error(who: str) -> Iterator[None]:
    """Inside, any error is a failed check."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{who} raised {describe_error(error)}") from error


def _play_channel(ruleset: Ruleset, ordered: bool, participants: Sequence[str]) -> None:
    created = ChannelCreated("check", participants[0], [Seat(name) for name in participants], ordered=ordered)
    begun = opening_batch(
        ruleset.begin("check"), created, participants, ruleset=ruleset, at=RULES_INSTANT, new_id=_numbered_ids()
    )
    fold = begun.fold
    _check_traits(ruleset.traits)
    for draft in _played_drafts(participants, ruleset.traits.reacts):
        outcome = step(fold, draft, ruleset=ruleset, at=RULES_INSTANT, new_id=_numbered_ids())
        if isinstance(outcome, Admitted):
            _check_snapshot(ruleset, outcome.fold)
            _check_deadline(ruleset, outcome.fold)
            _check_turns(outcome)
            _check_recovery(ruleset, outcome.fold, participants)
            _check_permission(ruleset, outcome.fold)
        again = step(fold, draft, ruleset=ruleset, at=RULES_INSTANT, new_id=_numbered_ids())
        assert outcome == again, f"asked twice about {draft!r}, it gave {outcome!r} and {again!r}"
        fold = outcome.fold if isinstance(outcome, Admitted) else fold


def _numbered_ids() -> IdSource:
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


def _played_drafts(participants: Sequence[str], reacts: frozenset[str]) -> Iterator[Envelope]:
    own: list[tuple[str, Json]] = [(kind, {}) for kind in sorted(reacts) if not kind.startswith(RESERVED_PREFIXES)]
    for number in range(PLAYED_ROUNDS):
        for speaker in participants:
            event_type, data = [*PLAYED_EVENTS, *own][number % (len(PLAYED_EVENTS) + len(own))]
            yield Envelope(channel_id="check", sender_id=speaker, event_type=event_type, event_data=data)


def _check_traits(traits: AdapterTraits) -> None:
    tools = traits.routing_tools
    assert tools is None or isinstance(tools, frozenset), f"routing_tools is {tools!r}; give a frozenset, or None"
    for participants in (2, 3):
        view = traits.view(participants)
        assert callable(getattr(view, "project", None)), f"view({participants}) is {view!r}; give a view"


def _check_recovery(ruleset: Ruleset, fold: Fold, participants: Sequence[str]) -> None:
    """What follows from a failed turn is a decision, the same each time."""
    for speaker in participants:
        failed = FailedTurn(f"{fold.state.sequence}/{speaker}", speaker, "model_error")
        decision, again = ruleset.recover(fold, failed), ruleset.recover(fold, failed)
        assert isinstance(decision, Decision), f"recover returned {decision!r}; return Assign, Wait or Close"
        assert decision == again, f"asked twice about a failed turn, it gave {decision!r} and {again!r}"


def _check_permission(ruleset: Ruleset, fold: Fold) -> None:
    """What a guard says of a call is a permission, the same each time."""
    asked: tuple[tuple[str, Json | None], ...] = (("model", None), ("search", {"query": "tides"}))
    for name, args in asked:
        call = CallStarted("9/ann", 0, name, "0" * 64, args)
        draft = stamp_draft(
            hub_draft(EV_CALL_STARTED, data_of(call)), fold.state, at=RULES_INSTANT, new_id=_numbered_ids()
        )
        permission, again = ruleset.calls.permit(fold, draft), ruleset.calls.permit(fold, draft)
        assert permission == again, f"asked twice about {draft!r}, it gave {permission!r} and {again!r}"


def _check_turns(outcome: Admitted) -> None:
    reason = outcome.fold.state.close_reason
    assert not reason.startswith("unknown_speaker:"), f"the turn went to somebody who is not in the channel: {reason}"
    assert reason != "nobody_is_next", "the turn was given to nobody; wait, or close"


def _check_deadline(ruleset: Ruleset, fold: Fold) -> None:
    due, again = _plain_deadline(ruleset.due(fold)), _plain_deadline(ruleset.due(fold))
    assert due == again, f"asked twice when it is due, it said {due!r} and {again!r}"


def _plain_deadline(deadline: Deadline | None) -> Deadline | None:
    """A deadline with its draft made, so that it can be compared."""
    return None if deadline is None else replace(deadline, draft=deadline.make_draft())


def _check_snapshot(ruleset: Ruleset, fold: Fold) -> None:
    try:
        restored = restore_fold(ruleset, from_json(to_json(fold), SavedFold))
    except (Malformed, TypeError) as error:
        raise AssertionError(f"its memory is not plain data: {error}") from error
    assert restored == fold, f"a snapshot reads back as {restored!r}, not {fold!r}"
