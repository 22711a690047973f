"""The invitations of a hub: put to guests registered in it, decided by them, answered in the log.

Rule 1: an invitation is put to its guest once at a time, however often it is sent.
Rule 2: an error of a user-defined `accept` is a refusal with its text.
Rule 3: an answer that the store cannot take is kept and recorded as soon as it can; if the rules fail on it, the
        channel is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from inspect import isawaitable

import msgspec

from antiphon.core.creation import guest_of, invitation_answer
from antiphon.core.envelope import HUB, Envelope, IdSource, Instant, add_seconds
from antiphon.core.errors import Denied, OutcomeUnknown, StoreUnavailable
from antiphon.core.events import EV_CHANNEL_INVITE
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.step import Admitted, record
from antiphon.core.views import envelope_for_participants
from antiphon.engines.user_code import run_contained
from antiphon.hub.known_secrets import redact_error
from antiphon.hub.live import LiveChannel
from antiphon.runtime.core import Accept, CloseChannel, HubCore
from antiphon.store.paging import all_envelopes, channel_rows, log_page_reader

logger = logging.getLogger("antiphon.hub")

INVITATION_RETRY_SECONDS = 1.0
"""After how many seconds an answer is recorded again that the store could not take."""


class AnswerInvitation(msgspec.Struct, frozen=True):
    """Plans a guest's answer, if the channel still waits for it."""

    answer: Envelope
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        if fold.state.ended or self.answer.sender_id not in fold.state.awaiting:
            return None
        return record(fold, self.answer, ruleset=ruleset, at=at, new_id=self.new_id)


def send_invitations(core: HubCore, live: LiveChannel, invites: Iterable[Envelope]) -> None:
    """Put invitations to the guests among them who are registered here."""
    for invite in invites:
        if guest_of(invite) in core.acceptors and invite.envelope_id not in core.pending_invitations:
            core.pending_invitations.add(invite.envelope_id)
            core.spawn(_put(core, live, invite), f"invitation {invite.envelope_id}")


async def resend_invitations(core: HubCore, guest: str) -> None:
    """Put the invitations to a guest who was not registered when they were recorded."""
    core.check_open()  # it may have been closed meanwhile: nothing may be begun then
    async for row in channel_rows(core.store, status="invited", participant=guest):
        core.spawn(_resend(core, row.channel_id, guest), f"invitation of {guest} to {row.channel_id}")


async def _resend(core: HubCore, channel_id: str, guest: str) -> None:
    live = await core.live(channel_id)
    async for each in all_envelopes(log_page_reader(core.store, channel_id)):
        if each.event_type == EV_CHANNEL_INVITE and guest_of(each) == guest:
            send_invitations(core, live, [each])
            return  # each guest is invited once; what stands behind may be long, or damaged


async def _put(core: HubCore, live: LiveChannel, invite: Envelope) -> None:
    try:
        shown = envelope_for_participants(invite, live.state.participants)
        await _record_answer(core, live, await _decide_invitation(core.acceptors[guest_of(invite)], shown))
    finally:
        core.pending_invitations.discard(invite.envelope_id)


async def _record_answer(core: HubCore, live: LiveChannel, answer: Envelope) -> None:
    while not core.closing.is_set():
        try:
            await live.submit(AnswerInvitation(answer, core.new_id))
        except Denied as denied:
            await live.submit(CloseChannel(denied.reason, HUB, core.new_id))
        except (StoreUnavailable, OutcomeUnknown) as error:
            logger.warning("the answer of %s cannot be recorded yet: %s", answer.sender_id, error)
            await core.clock.wait(core.closing, add_seconds(core.clock.now(), INVITATION_RETRY_SECONDS))
            continue
        return


async def _decide_invitation(accept: Accept | None, invite: Envelope) -> Envelope:
    """The guest's answer."""
    if accept is None:
        return invitation_answer(invite, accepted=True)

    async def ask() -> bool:
        verdict = accept(invite)
        return bool(await verdict if isawaitable(verdict) else verdict)

    try:
        accepted = await run_contained(ask, f"accept of {guest_of(invite)!r}", accept)
    except Exception as error:
        return invitation_answer(invite, accepted=False, reason=redact_error(error))
    return invitation_answer(invite, accepted=accepted)
