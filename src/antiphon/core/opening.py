"""How a channel begins: created, invitations, answers, opened, the first turn. One batch if nobody must be asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from antiphon.core.envelope import OPERATORS, Envelope
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_PREPARED,
    EV_GRAPH_WARNED,
    Created,
    Json,
    data_of,
)
from antiphon.core.guard import Deny, Later
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.rules import Checks, Finding, Seating
from antiphon.core.step import Admitted, record, recorded, said_by_hub, step

MOST_WARNINGS = 50
"""How many are told in full; of the others their number."""


def opening(
    fold: Fold, created: Created, willing: Collection[str], *, laws: Laws, at: Instant, new_id: IdSource
) -> Admitted:
    """The first batch of a channel, with what a check of its rules warns of. `willing` accept every invitation."""
    guests = [seat.name for seat in created.participants if seat.name != created.creator]
    drafts = [
        said_by_hub(EV_CHANNEL_CREATED, data_of(created), audience=[OPERATORS]),
        *_warnings(findings_on(laws.adapter, created)),
        *(_invitation(created, guest) for guest in guests),
    ]
    begun = recorded(fold, drafts, laws=laws, at=at, new_id=new_id)
    answers = [answer(invite, accepted=True) for invite in invitations(begun.batch) if guest_of(invite) in willing]
    answered = recorded(begun.fold, answers, laws=laws, at=at, new_id=new_id)
    return Admitted((*begun.batch, *answered.batch), answered.fold)


def said_first(fold: Fold, words: Envelope, *, laws: Laws, at: Instant, new_id: IdSource) -> Admitted | Deny:
    """Record what the creator says first, with the opening. While guests have yet to accept it is prepared for then.

    Words that could not be said then are refused now: nothing but the invitations happens in between.
    """
    if fold.state.status == "invited":
        judged = laws.judge(_opened(fold, laws=laws, at=at, new_id=new_id), words)
        if isinstance(judged, Deny):
            return judged
        prepared = said_by_hub(EV_CHANNEL_PREPARED, words.event_data, audience=[OPERATORS])
        return record(fold, prepared, laws=laws, at=at, new_id=new_id)
    said = step(fold, words, laws=laws, at=at, new_id=new_id)
    assert not isinstance(said, Later), "no turn has begun that could be waited for"
    return said


def _opened(fold: Fold, *, laws: Laws, at: Instant, new_id: IdSource) -> Fold:
    """The fold as it will be once every guest has accepted."""
    for guest in fold.state.awaiting:
        accepted = Envelope(sender_id=guest, event_type=EV_CHANNEL_INVITE_ACK)
        fold = record(fold, accepted, laws=laws, at=at, new_id=new_id).fold
    return fold


def findings_on(adapter: object, created: Created) -> list[Finding]:
    """What is wrong with the rules of a channel that is about to be opened, as far as its adapter can tell."""
    if not isinstance(adapter, Checks):
        return []
    kinds = {seat.name: seat.kind for seat in created.participants}
    interjectors, writers, tier = (created.knobs.get(knob) for knob in ("interjectors", "writers", "tier"))
    people = frozenset(name for name, kind in kinds.items() if kind == "human")
    people |= frozenset(interjectors if isinstance(interjectors, list) else ())
    return adapter.check(
        Seating(
            kinds,
            people,
            writers if isinstance(writers, dict) else {},
            tier if isinstance(tier, str) else None,
            created.context_vars,
            people | {created.creator},
        )
    )


def _warnings(findings: Iterable[Finding]) -> list[Envelope]:
    warned = [{"code": found.code, "message": found.message} for found in findings if found.level == "warning"]
    if not warned:
        return []
    data: Json = {"findings": warned[:MOST_WARNINGS], "further": max(0, len(warned) - MOST_WARNINGS)}
    return [said_by_hub(EV_GRAPH_WARNED, data, audience=[OPERATORS])]


def _invitation(created: Created, guest: str) -> Envelope:
    """The invitation of one guest."""
    data: Json = {
        "type": created.type,
        "creator": created.creator,
        "participants": [seat.name for seat in created.participants],
    }
    return said_by_hub(EV_CHANNEL_INVITE, data, audience=[guest])


def answer(invite: Envelope, *, accepted: bool, reason: str = "") -> Envelope:
    """A guest's answer to its invitation."""
    data: Json = {} if accepted else {"reason": reason}
    event_type = EV_CHANNEL_INVITE_ACK if accepted else EV_CHANNEL_INVITE_REJECT
    return Envelope(sender_id=guest_of(invite), event_type=event_type, event_data=data, causation_id=invite.envelope_id)


def invitations(log: Iterable[Envelope]) -> list[Envelope]:
    """Those in this part of a log. They stand at its beginning."""
    return [envelope for envelope in log if envelope.event_type == EV_CHANNEL_INVITE]


def guest_of(invite: Envelope) -> str:
    """Who is invited."""
    return invite.audience[0] if invite.audience else ""
