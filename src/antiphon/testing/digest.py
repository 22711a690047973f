"""What happened, as one number: two logs with the same digest tell the same story.

Rule 1: ids and times are left out, and so is everything that only says who ran a turn, and how often that or one of
        its calls was tried.
Rule 2: calls are told after everything that was said, turn by turn and in the order of their positions, whoever made
        them and in which order they returned.
Rule 3: tasks are told after that, one by one in the order in which they were given, whichever was done first; and the
        channel of a task without from where it was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from antiphon.core.codec import to_json
from antiphon.core.envelope import Envelope
from antiphon.core.events import (
    EV_CALL_CLEARED,
    EV_CALL_DOUBTED,
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_RETRIED,
    EV_CALL_STARTED,
    EV_CHANNEL_CREATED,
    EV_DEADLINE_EXTENDED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TURN_CLAIMED,
    EV_TURN_DELAYED,
    EV_TURN_RELEASED,
    TASK_ENDS,
    Json,
)

UNTOLD = frozenset({"mark", "delta_ms", "until"})
"""Data that only says when something was."""
ATTEMPTS = frozenset({EV_TURN_CLAIMED, EV_TURN_RELEASED, EV_TURN_DELAYED, EV_CALL_RETRIED, EV_DEADLINE_EXTENDED})
CALLS = frozenset({EV_CALL_STARTED, EV_CALL_FINISHED, EV_CALL_FAILED, EV_CALL_DOUBTED, EV_CALL_CLEARED})
TASKS = TASK_ENDS | {EV_TASK_STARTED, EV_TASK_PROGRESS}
TURN = "turn"
TASK = "task"
KEY = "key"
"""Follows from ids."""
FROM = frozenset({"parent", TURN})
"""From where a task was given."""


def canonical_digest(log: Iterable[Envelope]) -> str:
    """The digest of a log without its ids, times, claims and attempts: who said what, because of what, in order."""
    return hashlib.sha256(to_json(_Story().of(log))).hexdigest()


class _Story:
    """A log as it is being told."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        """The turns in the order in which they were assigned."""
        self._tasks: dict[str, list[list[object]]] = {}
        """What is told of each task, in the order in which they were given."""
        self._calls: dict[str, dict[object, dict[str, Json]]] = {}
        self._lines: list[list[object]] = []

    def of(self, log: Iterable[Envelope]) -> list[object]:
        """Everything that is told, in order; then the calls of every turn, and the tasks."""
        log = list(log)
        turns = {str(envelope.event_data[TURN]) for envelope in log if TURN in envelope.event_data}
        self._turns = {turn: number for number, turn in enumerate(sorted(turns, key=_assigned), 1)}
        for envelope in log:
            if envelope.event_type in CALLS:
                self._note(envelope)
            elif envelope.event_type not in ATTEMPTS:
                self._tell(envelope)
        calls = [
            [number, index, sorted(entries.items())]
            for turn, number in self._turns.items()
            for index, entries in sorted(self._calls.get(turn, {}).items(), key=lambda item: str(item[0]).zfill(9))
        ]
        return [self._lines, calls, list(self._tasks.values())]

    def _tell(self, envelope: Envelope) -> None:
        if envelope.event_type not in TASKS:
            self._places[envelope.envelope_id] = len(self._places) + 1
        data = {key: value for key, value in sorted(envelope.event_data.items()) if key not in UNTOLD}
        if TURN in data:
            data[TURN] = self._turns[str(data[TURN])]
        if envelope.event_type == EV_CHANNEL_CREATED:
            data["knobs"] = _anywhere(data.get("knobs"))
        about = self._lines
        if envelope.event_type in TASKS:
            about = self._tasks.setdefault(str(data.pop(TASK, None)), [])
        cause = self._places.get(envelope.causation_id or "", 0)
        about.append([envelope.sender_id, envelope.audience, envelope.event_type, data, cause])

    def _note(self, envelope: Envelope) -> None:
        data = {key: value for key, value in envelope.event_data.items() if key not in (TURN, KEY)}
        calls = self._calls.setdefault(str(envelope.event_data.get(TURN)), {})
        calls.setdefault(envelope.event_data.get("index"), {})[envelope.event_type] = data


def _assigned(turn: str) -> tuple[int, str]:
    """Where a turn was assigned, and to whom."""
    place, _, speaker = turn.partition("/")
    return int(place) if place.isdecimal() else 0, speaker


def _anywhere(knobs: object) -> object:
    """The knobs of a channel, without from where the task was given that it is for."""
    task = knobs.get(TASK) if isinstance(knobs, dict) else None
    if not isinstance(knobs, dict) or not isinstance(task, dict):
        return knobs
    return {**knobs, TASK: {key: value for key, value in task.items() if key not in FROM}}
