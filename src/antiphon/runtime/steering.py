"""What people and code do to the turns of a channel: stop them, and settle what is in doubt."""

from __future__ import annotations

from antiphon.core.codec import Malformed, check_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, UsageError
from antiphon.core.events import EV_CALL_CLEARED, EV_CALL_FINISHED, ApprovalDecided, CallCleared, CallFinished, Json
from antiphon.core.guard import Deny
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant
from antiphon.core.laws import Fold, Laws
from antiphon.core.state import State
from antiphon.core.step import Admitted
from antiphon.core.turns import Claim, Failure, Work, failed, noted, owed_turn, written
from antiphon.core.words import shown
from antiphon.hub.live import LiveChannel
from antiphon.runtime.deciding import APPROVE, RESPOND, approval_id_of, decision_note
from antiphon.runtime.permission import denial_of_turns


async def cancel_turns(live: LiveChannel, by: str, reason: str, *, may_run: bool, new_id: IdSource) -> int:
    """End every turn that is owed now, without an answer; how many there were.

    Without `may_run` it is refused as a whole if the rules would then give an agent a turn.
    """
    _check_person(live.state, by)
    turns = [turn.turn_id for turn in live.state.owed]
    failure = Failure("cancelled", f"by {by}: {reason}")

    def plan(fold: Fold, laws: Laws, at: Instant) -> Admitted | Deny | None:
        batch: list[Envelope] = []
        before = fold.state
        for turn in filter(None, (owed_turn(before, turn_id) for turn_id in turns)):
            ended = failed(fold, Work(Claim(turn.turn_id, turn.epoch)), failure, laws=laws, at=at, new_id=new_id)
            if isinstance(ended, Admitted):  # the end of an earlier one may have ended this one too
                batch.extend(ended.batch)
                fold = ended.fold
        denial = None if may_run else denial_of_turns(before, fold.state)
        return denial or (Admitted(tuple(batch), fold) if batch else None)

    await live.submit(plan)
    return len(turns)


async def settle_call(live: LiveChannel, by: str, entry: CallFinished | CallCleared, *, new_id: IdSource) -> None:
    """Record what became of a call in doubt; its turn goes on from there."""
    _check_person(live.state, by)
    event_type = EV_CALL_FINISHED if isinstance(entry, CallFinished) else EV_CALL_CLEARED

    def plan(fold: Fold, laws: Laws, at: Instant) -> Admitted | Deny:
        turn = owed_turn(fold.state, entry.turn)
        if turn is None or entry.index not in turn.doubts:
            return Deny("not_in_doubt", f"call {entry.index} of turn {entry.turn!r} is not in doubt")
        decision = RESPOND if isinstance(entry, CallFinished) else APPROVE
        decided = ApprovalDecided(approval_id_of(fold.state, turn, entry.index), decision, by)
        notes = decision_note(fold.state, turn, decided), noted(event_type, entry, cause=turn.cause)
        return written(fold, Work(Claim(turn.turn_id, turn.epoch), notes), laws=laws, at=at, new_id=new_id)

    await live.submit(plan)


def result_of(text: object) -> Json:
    """What a person says a call came to, as the journal keeps it."""
    if not isinstance(text, str):
        raise UsageError(f"result is {shown(text)}; give the text that the agent is to read")
    try:
        check_json(text)
    except Malformed as error:
        raise UsageError(f"result: {error}") from error
    return {"returned": {"text": text}}


def _check_person(state: State, by: str) -> None:
    if state.participants.get(by) == "agent":
        raise Denied("not_a_person", state.channel_id, f"{by!r} is an agent; people and code decide this")
