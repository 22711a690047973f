"""Who may decide about a call before it leaves.

Rule 1: the people and roles that the request names; where it names none, any registered person but the one whose
        message caused the turn, unless the channel says `self_approval`.
Rule 2: in the tier `regulated`, never the person who started the run, or whose message caused the turn.
Rule 3: what caused a turn is followed back to the words of a person or of code, also out of the channel of a task.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.core.approval_rules import REGULATED, approval_rules
from antiphon.core.envelope import HUB
from antiphon.core.errors import Denied, UnknownChannel
from antiphon.core.state import State, Turn
from antiphon.core.step import owed_turn
from antiphon.hub.live import LiveChannel
from antiphon.runtime.channel_lifecycle import task_origin
from antiphon.runtime.core import HubCore

HUMAN_KIND = "human"
MAX_CAUSES = 10_000
"""How many envelopes are followed back at most."""


async def check_approver(core: HubCore, live: LiveChannel, turn: Turn, *, approvers: Sequence[str], by: str) -> None:
    """`Denied` if this person may not decide about the calls of this turn."""
    state = live.state
    regulated = state.knobs.get("tier") == REGULATED
    if approvers and not is_named_approver(core, approvers, name=by):
        who = ", ".join(approvers)
        raise Denied("not_an_approver", state.channel_id, f"{by!r} may not decide this; those may: {who}")
    if not regulated and (approvers or approval_rules(state.knobs).self_approval):
        return
    people = await _people_behind(core, live, turn, started=regulated)
    if by in people:
        why = "it was asked for by that person" + (", or in a run that was started by that person" if regulated else "")
        raise Denied("not_an_approver", state.channel_id, f"{by!r} may not decide this: {why}; another person may")


def is_named_approver(core: HubCore, approvers: Sequence[str], *, name: str) -> bool:
    """Whether this participant, or a role of it, is among the approvers that a request names."""
    return not {name, *core.directory.roles_of(name)}.isdisjoint(approvers)


async def _people_behind(core: HubCore, live: LiveChannel, turn: Turn, *, started: bool) -> set[str]:
    """Whose words have caused a turn; and who has started the run, if that is asked for."""
    people: set[str] = set()
    while True:
        state = live.state
        cause = await _first_cause(core, state, turn)
        if cause is not None:
            people.add(cause)
        above = await _turn_above(core, state)
        if above is None:
            if started or cause is None:
                people.add(state.creator_id)
            return people
        if cause is not None and not started:
            return people
        live, turn = above


async def _first_cause(core: HubCore, state: State, turn: Turn) -> str | None:
    """Who said what a turn goes back to, if that was no agent."""
    cause = turn.cause
    for _ in range(MAX_CAUSES):
        found = {} if cause is None else await core.store.find(state.channel_id, [cause])
        envelope = found.get(cause or "")
        if envelope is None:
            return None
        sender = envelope.sender_id
        if sender != HUB and state.participants.get(sender) != "agent":
            return sender
        cause = envelope.causation_id
    return None


async def _turn_above(core: HubCore, state: State) -> tuple[LiveChannel, Turn] | None:
    """The turn that has given the task of this channel; None if this is no task, or the turn has ended."""
    origin = task_origin(state.knobs)
    if not origin:
        return None
    try:
        parent = await core.live(str(origin.get("parent")))
    except UnknownChannel:
        return None
    turn = owed_turn(parent.state, str(origin.get("turn")))
    return None if turn is None else (parent, turn)
