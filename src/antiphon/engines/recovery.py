"""What follows when the process that ran a turn has died: a pause that grows, and at the limit a person's decision.

Rule 1: a crash is recorded before anything else is done about it. Whoever finds it recorded records nothing.
Rule 2: a clean stop is no crash, nor is an attempt that ended in a doubt: neither leaves the turn an owner.
Rule 3: while a turn waits for tasks, crashes count against the turns of the tasks first: it may crash more often, and
        goes on without a pause, so that the tasks are stopped at once if it is cancelled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random

from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_TURN_DELAYED, EV_TURN_SUSPENDED, TurnDelayed, TurnSuspended, data_of
from antiphon.core.ids import IdSource
from antiphon.core.instants import Instant, after
from antiphon.core.laws import Fold, Laws
from antiphon.core.recovery import LONGEST_PAUSE, pause_after
from antiphon.core.state import Turn
from antiphon.core.step import Admitted, audience_of, pending, record, said_by_hub
from antiphon.core.turns import noted
from antiphon.engines.means import tasks_in
from antiphon.hub.live import LiveChannel

log = logging.getLogger("antiphon.engine")

WHILE_WAITING = 10
"""How many times the limit of crashes holds for a turn that waits for tasks."""


def has_crashed(turn: Turn, owner: str) -> bool:
    """Whether the process that claimed this turn has died, and that is not recorded yet. Nobody else may live."""
    return turn.owner not in ("", owner) and not turn.not_before


def rests_until(turn: Turn, now: Instant) -> Instant | None:
    """The end of the pause after a crash, if it lies ahead.

    A pause longer than any that is ever recorded is no pause: the clock was set back, and the turn goes on.
    """
    return turn.not_before if now < turn.not_before <= after(now, LONGEST_PAUSE) else None


async def record_crash(
    live: LiveChannel, turn: Turn, entries: Iterable[Envelope], *, limit: int | None, new_id: IdSource
) -> None:
    """Record the crash of a turn: with the pause that follows, or that the turn is suspended."""
    tasks = tasks_in(entries, turn.turn_id)
    crashes = max(1, min(max(turn.crashes + 1, turn.attempts), tasks.claims_since))
    most = None if limit is None else limit * (WHILE_WAITING if tasks.under_way else 1)
    suspended = most is not None and crashes >= most
    channel_id = live.state.channel_id
    jitter = Random(f"{channel_id} {turn.turn_id} {turn.epoch}").random()

    def plan(fold: Fold, laws: Laws, at: Instant) -> Admitted | None:
        now = next((each for each in pending(fold.state) if each.turn_id == turn.turn_id), None)
        if now is None or now.epoch != turn.epoch or now.owner != turn.owner or now.not_before:
            return None  # ended, claimed or recorded meanwhile
        pause = 0.0 if tasks.under_way else pause_after(crashes, jitter)
        draft = _suspension(turn, crashes) if suspended else _delay(turn, crashes, until=after(at, pause))
        return record(fold, draft, laws=laws, at=at, new_id=new_id)

    await live.submit(plan)
    what = "waits for a person's decision" if suspended else "is attempted again after a pause"
    level = logging.WARNING if suspended else logging.INFO
    log.log(
        level,
        "turn %s of %s was in progress during %d crashes in a row, and %s",
        turn.turn_id,
        channel_id,
        crashes,
        what,
    )


def _delay(turn: Turn, crashes: int, *, until: Instant) -> Envelope:
    return noted(EV_TURN_DELAYED, TurnDelayed(turn.turn_id, turn.epoch, crashes, until), cause=turn.cause)


def _suspension(turn: Turn, crashes: int) -> Envelope:
    times = "once" if crashes == 1 else f"{crashes} times in a row"
    why = f"its process died {times}, and none of its calls returned in between"
    event = TurnSuspended(turn.turn_id, turn.speaker, crashes, why)
    audience = audience_of(turn)  # everybody who heard what it answers: a person must hear of it
    return said_by_hub(EV_TURN_SUSPENDED, data_of(event), cause=turn.cause, audience=audience)
