"""How a channel begins: with invitations, or as a fork of another channel.

Rule 1: creation, invitations, answers, opening and first turn are one batch if no guest decides on its invitation.
Rule 2: a fork begins with a copy of another log up to some place: the same facts under ids of its own. What follows
        from the last of them is decided anew.
Rule 3: where the copy comes from is recorded behind it, and every clock counts from there.
Rule 4: no fork where a call is in flight: whether it took effect is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import replace

import msgspec

from antiphon.core.conversation_events import (
    EV_CONVERSATION_MOVED,
    EV_CONVERSATION_REFUSED,
    EV_CONVERSATION_UNROUTED,
    EV_REPLY_DELIVERED,
    EV_REPLY_UNDELIVERABLE,
)
from antiphon.core.envelope import HUB, OPERATORS, Envelope, IdSource, Instant, Json, derived_id, id_after
from antiphon.core.errors import UsageError
from antiphon.core.event_data import Deny, data_of
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_FORKED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_PREPARED,
    EV_EXPECTATION_MISSED,
    EV_GRAPH_WARNED,
    EV_RULE_FAILED,
    SPEECH_TYPES,
    ChannelCreated,
    ChannelForked,
)
from antiphon.core.execution_events import EV_TURN_RELEASED
from antiphon.core.guard import Later
from antiphon.core.ruleset import ChannelRoster, Checks, Finding, Fold, Ruleset
from antiphon.core.state import State
from antiphon.core.step import Admitted, hub_draft, journal_draft, record, record_all, step
from antiphon.core.turns import journal_of

MAX_LISTED_PARTICIPANTS = 32
"""Up to how many participants each invitation lists them. A longer list is recorded once, with the creation, and added
when a guest is shown its invitation: recorded in every one, the log of an opening would grow with its square."""
MAX_LISTED_WARNINGS = 50
"""How many are recorded in full; of the others their number."""


def opening_batch(
    fold: Fold, created: ChannelCreated, willing: Collection[str], *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted:
    """The first batch of a channel, with what a check of its rules warns of. `willing` accept every invitation."""
    guests = [seat.name for seat in created.participants if seat.name != created.creator]
    drafts = [
        hub_draft(EV_CHANNEL_CREATED, data_of(created), audience=[OPERATORS]),
        *_warning_drafts(adapter_findings(ruleset.adapter, created)),
        *(_invitation_draft(created, guest) for guest in guests),
    ]
    begun = record_all(fold, drafts, ruleset=ruleset, at=at, new_id=new_id)
    answers = [
        invitation_answer(invite, accepted=True)
        for invite in invitations_in(begun.batch)
        if guest_of(invite) in willing
    ]
    answered = record_all(begun.fold, answers, ruleset=ruleset, at=at, new_id=new_id)
    return Admitted((*begun.batch, *answered.batch), answered.fold)


def record_first_words(
    fold: Fold, words: Envelope, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted | Deny:
    """Record what the creator says first, with the opening. While guests have yet to accept it is prepared for then.

    Words that could not be said then are refused now: nothing but the invitations happens in between.
    """
    if fold.state.status == "invited":
        judged = ruleset.judge(_fold_once_opened(fold, ruleset=ruleset, at=at, new_id=new_id), words)
        if isinstance(judged, Deny):
            return judged
        prepared = hub_draft(EV_CHANNEL_PREPARED, words.event_data, audience=[OPERATORS])
        return record(fold, prepared, ruleset=ruleset, at=at, new_id=new_id)
    said = step(fold, words, ruleset=ruleset, at=at, new_id=new_id)
    assert not isinstance(said, Later), "no turn has begun that could be waited for"
    return said


def _fold_once_opened(fold: Fold, *, ruleset: Ruleset, at: Instant, new_id: IdSource) -> Fold:
    """The fold as it will be once every guest has accepted."""
    for guest in fold.state.awaiting:
        accepted = Envelope(sender_id=guest, event_type=EV_CHANNEL_INVITE_ACK)
        fold = record(fold, accepted, ruleset=ruleset, at=at, new_id=new_id).fold
    return fold


def adapter_findings(adapter: object, created: ChannelCreated) -> list[Finding]:
    """What is wrong with the rules of a channel that is about to be opened, as far as its adapter can tell."""
    if not isinstance(adapter, Checks):
        return []
    kinds = {seat.name: seat.kind for seat in created.participants}
    interjectors, writers, tier = (created.knobs.get(knob) for knob in ("interjectors", "writers", "tier"))
    people = frozenset(name for name, kind in kinds.items() if kind == "human")
    people |= frozenset(interjectors if isinstance(interjectors, list) else ())
    return adapter.check(
        ChannelRoster(
            kinds,
            people,
            writers if isinstance(writers, dict) else {},
            tier if isinstance(tier, str) else None,
            created.context_vars,
            people | {created.creator},
        )
    )


def _warning_drafts(findings: Iterable[Finding]) -> list[Envelope]:
    warned = [{"code": found.code, "message": found.message} for found in findings if found.level == "warning"]
    if not warned:
        return []
    data: Json = {"findings": warned[:MAX_LISTED_WARNINGS], "further": max(0, len(warned) - MAX_LISTED_WARNINGS)}
    return [hub_draft(EV_GRAPH_WARNED, data, audience=[OPERATORS])]


def _invitation_draft(created: ChannelCreated, guest: str) -> Envelope:
    """The invitation of one guest."""
    data: Json = {"type": created.type, "creator": created.creator}
    if len(created.participants) <= MAX_LISTED_PARTICIPANTS:
        data["participants"] = [seat.name for seat in created.participants]
    return hub_draft(EV_CHANNEL_INVITE, data, audience=[guest])


def invitation_answer(invite: Envelope, *, accepted: bool, reason: str = "") -> Envelope:
    """A guest's answer to its invitation."""
    data: Json = {} if accepted else {"reason": reason}
    event_type = EV_CHANNEL_INVITE_ACK if accepted else EV_CHANNEL_INVITE_REJECT
    return Envelope(sender_id=guest_of(invite), event_type=event_type, event_data=data, causation_id=invite.envelope_id)


def invitations_in(log: Iterable[Envelope]) -> list[Envelope]:
    """The invitations in this part of a log."""
    return [envelope for envelope in log if envelope.event_type == EV_CHANNEL_INVITE]


def guest_of(invite: Envelope) -> str:
    """Who is invited."""
    return invite.audience[0] if invite.audience else ""


ACTIVE_STATUS = "active"
COPIES_PER_SLICE = 100
"""How many envelopes are copied at once."""
MID_DECISION_TYPES = frozenset({EV_RULE_FAILED, EV_EXPECTATION_MISSED})
"""What stands before a decision that was made together with it."""
FACT_TYPES = frozenset({EV_CONVERSATION_MOVED, EV_CONVERSATION_REFUSED, EV_CONVERSATION_UNROUTED})
"""What may stand before such a decision, or alone."""
REFERENCE_FIELDS = {EV_CONVERSATION_UNROUTED: "message", EV_REPLY_DELIVERED: "reply", EV_REPLY_UNDELIVERABLE: "reply"}
"""The field of a fact that holds the id of another envelope of its channel, by event type."""


class LogCopy(msgspec.Struct, frozen=True):
    """A part of a log, copied for another channel: all but its last envelope are folded."""

    batch: list[Envelope]
    fold: Fold
    last: Envelope


def copy_log(
    channel_id: str, prefix: Sequence[Envelope], *, ruleset: Ruleset, new_id: IdSource
) -> Generator[None, None, LogCopy]:
    """Copy a part of a log for a new channel; the generator returns it.

    It yields every few envelopes, so that its caller can give way on the event loop.
    """
    fold, batch, ids = ruleset.begin(channel_id), list[Envelope](), dict[str, str]()
    for envelope in prefix[:-1]:
        copy = _copy_envelope(envelope, fold.state, ids, new_id=new_id)
        fold = ruleset.fold(fold, copy)
        batch.append(copy)
        if len(batch) % COPIES_PER_SLICE == 0:
            yield
    return LogCopy(batch, fold, _copy_envelope(prefix[-1], fold.state, ids, new_id=new_id))


def check_fork_position(prefix: Sequence[Envelope], state: State, following: Envelope | None = None) -> None:
    """`UsageError` unless a channel can go on from the end of this part of a log, which folds to this state."""
    at = len(prefix)
    if state.status == "invited":
        raise UsageError(f"at is {at}, before the channel was opened; fork behind its first turn.assigned")
    if state.status != ACTIVE_STATUS:
        raise UsageError(f"at is {at}, where the channel has ended ({state.close_reason}); fork before that")
    last = prefix[-1]
    # What a person asks for has no cause; what follows from the same cause at the same instant was decided with it.
    together = (
        following is not None
        and None not in (last.causation_id, following.causation_id)
        and (following.sender_id == HUB and following.created_at == last.created_at)
    )
    if last.event_type in MID_DECISION_TYPES or (last.event_type in FACT_TYPES and together):
        raise UsageError(f"at is {at}, in the middle of a decision; fork at what it followed from, or behind it")
    for turn in state.owed:
        calls = journal_of(prefix[turn.sequence :], turn.turn_id)
        index = next((index for index, entry in calls.items() if entry.in_flight), None)
        if index is not None or turn.doubts:
            raise UsageError(f"at is {at}, where call {index} of turn {turn.turn_id} is under way; fork elsewhere")
        if turn.suspended:
            raise UsageError(f"at is {at}, where turn {turn.turn_id} waits for a person; decide, or fork elsewhere")


def last_speech_sequence(prefix: Sequence[Envelope]) -> int:
    """Where the last thing was said, which the next speaker is to hear."""
    return next((each.sequence for each in reversed(prefix) if each.event_type in SPEECH_TYPES), 0)


def fork_batch(
    copy: LogCopy, provenance: ChannelForked, *, ruleset: Ruleset, at: Instant, new_id: IdSource
) -> Admitted:
    """The first batch of a fork: the copy, what follows from it, and where it comes from."""
    last = record(copy.fold, copy.last, ruleset=ruleset, at=copy.last.created_at or at, new_id=new_id)
    told = record(last.fold, hub_draft(EV_CHANNEL_FORKED, data_of(provenance)), ruleset=ruleset, at=at, new_id=new_id)
    freed = record_all(told.fold, _release_drafts(told.fold), ruleset=ruleset, at=at, new_id=new_id)
    batch = (*copy.batch, *last.batch, *told.batch, *freed.batch)
    return Admitted(batch, freed.fold, copied=len(copy.batch) + 1)


def _copy_envelope(envelope: Envelope, state: State, ids: dict[str, str], *, new_id: IdSource) -> Envelope:
    """The same fact in another channel, under a new id, which is noted so that causes are still found."""
    channel_id, cause = state.channel_id, envelope.causation_id
    ids[envelope.envelope_id] = copied_id = id_after(new_id(), state.newest_id)

    def copied(other_id: str) -> str:
        return ids.get(other_id) or derived_id(channel_id, other_id)

    data, field = envelope.event_data, REFERENCE_FIELDS.get(envelope.event_type, "")
    other_id = data.get(field) if envelope.sender_id == HUB else None
    return replace(
        envelope,
        envelope_id=copied_id,
        channel_id=channel_id,
        event_data={**data, field: copied(other_id)} if isinstance(other_id, str) else data,
        causation_id=None if cause is None else copied(cause),
    )


def _release_drafts(fold: Fold) -> list[Envelope]:
    """Turns in progress have no owner in the fork."""
    return [
        journal_draft(EV_TURN_RELEASED, {"turn": turn.turn_id, "epoch": turn.epoch}, cause=turn.cause)
        for turn in fold.state.owed
        if turn.owner
    ]
