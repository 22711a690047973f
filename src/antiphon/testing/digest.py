"""A digest of a log that two runs share if the same things happened in them.

Rule 1: ids and times are left out, and so are the owner and the attempts of a turn, and the retries of its calls.
Rule 2: calls come after all other events, turn by turn in the order of their positions, not of their results.
Rule 3: tasks come last, in the order in which they were started, not ended; the channel of a task is digested without
        its origin.
Rule 4: the deliveries of replies come by their transport, in the order of the replies, without their attempts. When one
        is recorded depends on the other side of the transport.
Rule 5: the calls of a saga are numbered; who runs the saga, and where its calls stand, is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from antiphon.core.approval_rules import ASKED_CALL
from antiphon.core.codec import to_json
from antiphon.core.conversation_events import EV_CONVERSATION_UNROUTED, EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE
from antiphon.core.envelope import Envelope, Json
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_DEADLINE_EXTENDED,
    EV_TASK_CONTINUED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TASK_WAITING,
    EV_TURN_ASSIGNED,
    TASK_END_TYPES,
)
from antiphon.core.execution_events import (
    EV_APPROVAL_DECIDED,
    EV_APPROVAL_EXPIRED,
    EV_APPROVAL_REMINDED,
    EV_APPROVAL_REQUESTED,
    EV_CALL_APPROVED,
    EV_CALL_CLEARED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_DELAYED,
    EV_TURN_RELEASED,
)
from antiphon.core.protection_events import EV_ONCE_REGISTERED, EV_RUN_CHARGED, EV_RUN_SETTLED
from antiphon.core.saga_events import EV_SAGA_CLAIMED, EV_SAGA_COMPENSATION, EV_SAGA_EXECUTED, EV_SAGA_REGISTERED

TIME_FIELDS = frozenset({"mark", "delta_ms", "until", "decide_by"})
"""Data that is only a time."""
ATTEMPT_EVENT_TYPES = frozenset(
    {
        EV_TURN_CLAIMED,
        EV_TURN_RELEASED,
        EV_TURN_DELAYED,
        EV_CALL_RETRIED,
        EV_DEADLINE_EXTENDED,
        EV_TASK_WAITING,
        EV_TASK_CONTINUED,
        EV_SAGA_CLAIMED,
    }
)
LEDGER_EVENT_TYPES = frozenset({EV_RUN_CHARGED, EV_RUN_SETTLED})
"""What is counted of calls in other channels. It is left out, too: those channels tell it in an order of their own."""
CALL_EVENT_TYPES = frozenset(
    {
        EV_CALL_STARTED,
        EV_CALL_FINISHED,
        EV_CALL_FAILED,
        EV_CALL_DOUBTED,
        EV_CALL_CLEARED,
        EV_CALL_APPROVED,
        EV_APPROVAL_REQUESTED,
        EV_APPROVAL_EXPIRED,
        EV_APPROVAL_REMINDED,
    }
)
APPROVAL_ID_FIELD = "approval_id"
"""Made of ids, and of the place of a turn."""
TASK_EVENT_TYPES = TASK_END_TYPES | {EV_TASK_STARTED, EV_TASK_PROGRESS}
DELIVERY_EVENT_TYPES = frozenset({EV_REPLY_DELIVERED, EV_REPLY_UNDELIVERABLE})
SHOWN_DATA_FIELD = "shown"
"""A place in the log, by its sequence."""
TURN_DATA_FIELD = "turn"
TASK_DATA_FIELD = "task"
KEY_DATA_FIELD = "key"
"""Derived from ids."""
STEP_EVENT_TYPES = frozenset({EV_SAGA_REGISTERED, EV_SAGA_EXECUTED, EV_SAGA_COMPENSATION})
STEP_DATA_FIELD = "step"
STEP_PLACE_FIELDS = frozenset({"args_ref", "sequence"})
"""Where the call of a step stands."""
ONCE_PLACE_FIELDS = frozenset({"channel", KEY_DATA_FIELD})
FIRST_DATA_FIELD = "first"
"""Where the call stands whose result this is."""
TASK_ORIGIN_FIELDS = frozenset({"parent", "root", TURN_DATA_FIELD})
"""The origin of a task."""


def canonical_digest(log: Iterable[Envelope]) -> str:
    """The digest of a log without its ids, times, claims and attempts: senders, data, causes and their order."""
    return hashlib.sha256(to_json(_CanonicalLog().of(log))).hexdigest()


class _CanonicalLog:
    """The canonical form of a log."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._sequences: dict[int, int] = {}
        """The same places, by sequence."""
        self._turns: dict[str, int] = {}
        """The turns, numbered in the order in which they were assigned."""
        self._tasks: dict[str, list[list[object]]] = {}
        """The events of each task, in the order in which they were started."""
        self._calls: dict[str, dict[object, dict[str, Json]]] = {}
        self._deliveries: dict[str, list[list[object]]] = {}
        """What is recorded of the replies of each transport."""
        self._steps: dict[str, int] = {}
        """The calls that can be undone, numbered in the order in which they were registered."""
        self._lines: list[list[object]] = []

    def of(self, log: Iterable[Envelope]) -> list[object]:
        """All other events in order, the calls of every turn, the tasks, and the deliveries if there are any."""
        log = list(log)
        turns = {
            str(envelope.event_data[TURN_DATA_FIELD]) for envelope in log if TURN_DATA_FIELD in envelope.event_data
        }
        self._turns = {turn: number for number, turn in enumerate(sorted(turns, key=_assignment_order), 1)}
        for envelope in log:
            if envelope.event_type in CALL_EVENT_TYPES:
                self._note(envelope, envelope.event_data)
            elif envelope.event_type == EV_APPROVAL_DECIDED and (call := _decided_call(envelope)) is not None:
                self._note(envelope, {**envelope.event_data, **call})
            elif envelope.event_type in DELIVERY_EVENT_TYPES:
                self._note_delivery(envelope)
            elif envelope.event_type not in ATTEMPT_EVENT_TYPES | LEDGER_EVENT_TYPES:
                self._tell(envelope)
        calls = [
            [number, index, sorted(entries.items())]
            for turn, number in self._turns.items()
            for index, entries in sorted(self._calls.get(turn, {}).items(), key=lambda item: str(item[0]).zfill(9))
        ]
        deliveries = [sorted(self._deliveries.items())] if self._deliveries else []
        return [self._lines, calls, list(self._tasks.values()), *deliveries]

    def _tell(self, envelope: Envelope) -> None:
        if envelope.event_type not in TASK_EVENT_TYPES:
            place = self._places[envelope.envelope_id] = len(self._places) + 1
            self._sequences[envelope.sequence] = place
        data = {key: value for key, value in sorted(envelope.event_data.items()) if key not in TIME_FIELDS}
        if TURN_DATA_FIELD in data:
            data[TURN_DATA_FIELD] = self._turns[str(data[TURN_DATA_FIELD])]
        if envelope.event_type == EV_CHANNEL_CREATED:
            data["knobs"] = _without_task_origin(data.get("knobs"))
        self._replace_references(envelope.event_type, data)
        about = self._lines
        if envelope.event_type in TASK_EVENT_TYPES:
            about = self._tasks.setdefault(str(data.pop(TASK_DATA_FIELD, None)), [])
        cause = self._places.get(envelope.causation_id or "", 0)
        about.append([envelope.sender_id, envelope.audience, envelope.event_type, data, cause])

    def _replace_references(self, event_type: str, data: dict[str, object]) -> None:
        """Put the place of an envelope where the data names it."""
        if event_type == EV_TURN_ASSIGNED and SHOWN_DATA_FIELD in data:
            data[SHOWN_DATA_FIELD] = self._sequences.get(_number(data[SHOWN_DATA_FIELD]), 0)
        elif event_type in STEP_EVENT_TYPES:
            data[STEP_DATA_FIELD] = self._steps.setdefault(str(data[STEP_DATA_FIELD]), len(self._steps) + 1)
            for field in STEP_PLACE_FIELDS:
                data.pop(field, None)
        elif event_type == EV_ONCE_REGISTERED:
            for field in ONCE_PLACE_FIELDS:
                data.pop(field, None)
        elif event_type == EV_CONVERSATION_UNROUTED:
            data["message"] = self._places.get(str(data.get("message")), 0)

    def _note_delivery(self, envelope: Envelope) -> None:
        data = envelope.event_data
        place = self._places.get(str(data.get("reply")), 0)
        said = [place, envelope.event_type, data.get("error")]
        self._deliveries.setdefault(str(data.get("transport")), []).append(said)

    def _note(self, envelope: Envelope, about: Json) -> None:
        hidden = {TURN_DATA_FIELD, KEY_DATA_FIELD, APPROVAL_ID_FIELD, *TIME_FIELDS}
        data = {key: value for key, value in about.items() if key not in hidden}
        calls = self._calls.setdefault(str(about.get(TURN_DATA_FIELD)), {})
        calls.setdefault(about.get("index"), {})[envelope.event_type] = data


def _decided_call(envelope: Envelope) -> Json | None:
    """The turn and the position of the call that was decided about before it left; None if it was something else."""
    match str(envelope.event_data.get(APPROVAL_ID_FIELD)).rsplit(".", 4):
        case [_, sequence, speaker, index, what] if what == ASKED_CALL and index.isdecimal():
            return {TURN_DATA_FIELD: f"{sequence}/{speaker}", "index": int(index)}
        case _:
            return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _assignment_order(turn: str) -> tuple[int, str]:
    """The sequence of the assignment, and the speaker."""
    place, _, speaker = turn.partition("/")
    return int(place) if place.isdecimal() else 0, speaker


def _without_task_origin(knobs: object) -> object:
    """The knobs of a channel, without the origin of its task."""
    task = knobs.get(TASK_DATA_FIELD) if isinstance(knobs, dict) else None
    if not isinstance(knobs, dict) or not isinstance(task, dict):
        return knobs
    return {**knobs, TASK_DATA_FIELD: {key: value for key, value in task.items() if key not in TASK_ORIGIN_FIELDS}}
