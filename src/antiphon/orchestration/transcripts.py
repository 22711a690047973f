"""Transcripts made anywhere, and what the guards say of them.

Rule 1: a line of a transcript is one JSON object. A line that is none, or that has a field of another name or type, is
        a `BadTranscript` with its number.
Rule 2: a transcript is folded as the log of a channel, by the ruleset of a channel: the guards are those of channels,
        and are asked as they are there.
Rule 3: a transcript tells what has happened, so that it goes on where a guard would have stopped it.
Rule 4: time is what the lines say. A line that does not say is at the time of the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import ClassVar, Literal

import msgspec

from antiphon.core.call_permits import JournalBatch, TurnClaim, record_permitted
from antiphon.core.canonical import call_key, text_key
from antiphon.core.codec import Malformed, as_type, check_json, check_unique_keys, parse_json
from antiphon.core.envelope import Envelope, Instant, Json, to_instant
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.event_data import data_of
from antiphon.core.events import EV_CHANNEL_CREATED, EV_CHANNEL_OPENED, EV_TEXT, EV_TURN_ASSIGNED, ChannelCreated, Seat
from antiphon.core.execution_events import (
    EV_CALL_FAILED,
    EV_CALL_FINISHED,
    EV_CALL_STARTED,
    CallFinished,
    CallStarted,
)
from antiphon.core.guard import Guard
from antiphon.core.protection_events import (
    EV_BUDGET_CHANGED,
    EV_COST_EXCEEDED,
    EV_DEADLOCK_DETECTED,
    EV_LOOP_DETECTED,
)
from antiphon.core.ruleset import AdapterTraits, Expectation, Ruleset, Seats
from antiphon.core.state import WAIT, Assign, Decision, State
from antiphon.core.step import Admitted, fact_drafts, hub_draft, journal_draft, record_all
from antiphon.core.text import describe, explain_decode_error
from antiphon.guards.amounts import MICRO, parse_dollars

SpeakerKind = Literal["agent", "human", "service"]
LineKind = Literal["agent", "human", "service", "control"]
PEOPLE = frozenset({"user", "human"})
"""Speakers that are people unless their lines say otherwise."""
TRANSCRIPT_ID = "transcript"
MODEL_NAME = "model"
DEFAULT_POLLS = 100
FIRST_INSTANT = "2000-01-01T00:00:00.000000Z"
"""The time of lines before the first that says one."""
NEXT_FIELD = "addressed_to"
WARNING = "warn"
GUARDS_BY_EVENT = {
    EV_LOOP_DETECTED: "loop",
    EV_DEADLOCK_DETECTED: "deadlock",
    EV_COST_EXCEEDED: "cost",
    EV_BUDGET_CHANGED: "cost",
}


class BadTranscript(UsageError):
    """A line of a transcript cannot be read. `.line` is its number, from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")
        self.line = line


class TranscriptLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line: something that was said, or a call of a tool."""

    speaker: str
    text: str | None = None
    tool: str | None = None
    args: Json | None = None
    kind: LineKind | None = None
    """`control` for a message that steers and says nothing; otherwise what the speaker is."""
    cost: float | str | None = None
    """In dollars, of the model call behind this line."""
    tokens: int | None = None
    at: str | float | None = None
    """In ISO 8601 with a time zone, or in seconds since 1970."""
    progress: str | None = None
    """What the result of the tool has reached."""
    poll: bool = False
    """Whether the tool is meant to be called again with the same arguments."""


class Trip(msgspec.Struct, frozen=True):
    """Something that a guard has found, and the line at which it did."""

    line: int
    guard: str
    """`loop`, `deadlock` or `cost`."""
    envelope: Envelope
    """What the guard has recorded."""
    first_line: int = 0
    """Where it began; 0 if the guard does not say."""


class TranscriptAdapter:
    """A channel in which the one has the turn to whom a text is addressed.

    It is not asked when something is recorded: a transcript goes on where a guard would have stopped it.
    """

    name: ClassVar[str] = TRANSCRIPT_ID
    seats: ClassVar[Seats] = Seats(0)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = ()

    def __init__(self, knobs: Json) -> None:
        pass

    def decide(self, memory: object, state: State, envelope: Envelope) -> Decision:
        follows = envelope.event_data.get(NEXT_FIELD)
        return Assign((follows,)) if isinstance(follows, str) else WAIT


def read_transcript(lines: Iterable[str | bytes]) -> list[tuple[int, TranscriptLine]]:
    """The lines of a transcript with their numbers; empty ones are left out."""
    return [(number, _read_line(number, line)) for number, line in enumerate(lines, 1) if line.strip()]


def inspect_transcript(
    lines: Sequence[tuple[int, TranscriptLine]], guards: Sequence[Guard], *, people: Collection[str] = PEOPLE
) -> Iterator[Trip]:
    """What these guards find in a transcript, in its order."""
    kinds = _kinds_of_speakers(lines, people)
    replay = _TranscriptReplay(guards, kinds)
    for (number, line), following in zip(lines, _speakers_behind(lines), strict=True):
        yield from replay.play(number, line, following)


def _speakers_behind(lines: Sequence[tuple[int, TranscriptLine]]) -> list[str]:
    """For each line who speaks, or calls a tool, next; "" for the last."""
    found: list[str] = []
    following = ""
    for _, line in reversed(lines):
        found.append(following)
        following = following if line.kind == "control" else line.speaker
    return found[::-1]


def _read_line(number: int, text: str | bytes) -> TranscriptLine:
    try:
        given = parse_json(text)
        check_json(given)
        check_unique_keys(text)
    except Malformed as error:
        raise BadTranscript(number, f"it is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadTranscript(number, f"it is {describe(given)}; give an object with speaker, and text or tool")
    strange = next((name for name in given if name not in TranscriptLine.__struct_fields__), None)
    if strange is not None:
        known = ", ".join(TranscriptLine.__struct_fields__)
        raise BadTranscript(number, f"a line has no field {describe(strange)}; it has: {known}")
    try:
        line = as_type(given, TranscriptLine)
    except Malformed as error:
        raise BadTranscript(number, explain_decode_error(str(error))) from error
    _check_line(number, line)
    return line


def _check_line(number: int, line: TranscriptLine) -> None:
    if not line.speaker.strip():
        raise BadTranscript(number, "speaker is empty; give a name")
    if line.text is None and line.tool is None and line.kind != "control":
        raise BadTranscript(number, "it has neither text nor tool; give what was said, or which tool was called")
    if line.tool is not None and not line.tool:
        raise BadTranscript(number, "tool is empty; give the name of a tool")
    if line.tool is None and (line.args is not None or line.progress is not None or line.poll):
        raise BadTranscript(number, "it has args, progress or poll and no tool; name the tool")
    if line.tokens is not None and line.tokens < 0:
        raise BadTranscript(number, f"tokens is {line.tokens}; give 0 or more")
    _micro_of(number, line.cost)
    _instant_of(number, line.at)


def _micro_of(number: int, cost: float | str | None) -> int:
    """The cost in millionths of a dollar."""
    if cost is None:
        return 0
    try:
        micro = parse_dollars(cost, "cost") if isinstance(cost, str) else round(cost * MICRO)
    except (RulesInvalid, OverflowError) as error:
        raise BadTranscript(number, f"cost is {describe(cost)}; give dollars, such as 0.25") from error
    if isinstance(micro, str) or micro < 0:
        raise BadTranscript(number, f"cost is {describe(cost)}; give dollars, 0 or more")
    return micro


def _instant_of(number: int, at: str | float | None) -> Instant | None:
    if at is None:
        return None
    try:
        if not isinstance(at, str):
            return to_instant(datetime.fromtimestamp(at, UTC))
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is not None:
            return to_instant(moment)
    except (ValueError, OverflowError, OSError):
        pass
    advice = "give a time with a time zone, such as 2026-05-01T12:00:00Z, or seconds since 1970"
    raise BadTranscript(number, f"at is {describe(at)}; {advice}")


def _kinds_of_speakers(lines: Sequence[tuple[int, TranscriptLine]], people: Collection[str]) -> dict[str, SpeakerKind]:
    """What each speaker is: what its lines say, or an agent unless it is listed among people."""
    said: dict[str, SpeakerKind] = {}
    for number, line in lines:
        if line.kind is None or line.kind == "control":
            continue
        known = said.setdefault(line.speaker, line.kind)
        if known != line.kind:
            raise BadTranscript(number, f"{line.speaker!r} is {line.kind} here, and was {known} before; give one kind")
    named = {line.speaker for _, line in lines}
    return {name: said.get(name) or ("human" if name in people else "agent") for name in sorted(named)}


class _TranscriptReplay:
    """The channel that a transcript is folded into."""

    def __init__(self, guards: Sequence[Guard], kinds: dict[str, SpeakerKind]) -> None:
        self._ruleset = Ruleset(TranscriptAdapter({}), guards, AdapterTraits(reacts=frozenset()))
        self._kinds = kinds
        numbers = count(1)
        self._new_id = lambda: f"e{next(numbers)}"
        self._now = FIRST_INSTANT
        self._line_at: dict[int, int] = {}
        """The line that each envelope comes from, by its sequence."""
        self._line = 0
        self._calls: dict[str, int] = {}
        """How many calls each agent has made."""
        self._found: list[Envelope] = []
        self._said = Envelope()
        """What was said last."""
        self._fold = self._ruleset.begin(TRANSCRIPT_ID)
        creator = next(iter(kinds), "")
        seats = [Seat(name, kind) for name, kind in kinds.items()]
        created = ChannelCreated(TRANSCRIPT_ID, creator, seats)
        self._record(hub_draft(EV_CHANNEL_CREATED, data_of(created)), hub_draft(EV_CHANNEL_OPENED, {}))

    def play(self, number: int, line: TranscriptLine, following: str) -> list[Trip]:
        """What the guards find in one more line. `following` speaks, or calls a tool, next."""
        self._line, self._found = number, []
        at = _instant_of(number, line.at)
        self._now = max(self._now, at) if at is not None else self._now
        if line.kind == "control":
            return []
        if self._kinds[line.speaker] == "agent":
            self._ask_model(line)
            if line.tool is not None:
                self._call(line, line.tool)
        if line.text is not None:
            self._say(line.speaker, line.text, following)
        return [self._trip(envelope) for envelope in self._found]

    def _say(self, speaker: str, text: str, following: str) -> None:
        """Record a text, what guards find in that the next one speaks, and that it does."""
        passes_on = following != speaker and self._kinds.get(following) == "agent"
        data: Json = {"text": text, NEXT_FIELD: following} if passes_on else {"text": text}
        self._record(Envelope("", "", speaker, None, EV_TEXT, data))
        if not passes_on:
            return
        decided = self._ruleset.decide(self._fold, self._said)
        cause = self._said.envelope_id
        self._record(*fact_drafts(decided.facts, cause))
        self._record(hub_draft(EV_TURN_ASSIGNED, {"speakers": [following], "reason": ""}, cause=cause))

    def _trip(self, envelope: Envelope) -> Trip:
        first = envelope.event_data.get("first_seq")
        first_line = self._line_at.get(first, 0) if isinstance(first, int) else 0
        return Trip(self._line, GUARDS_BY_EVENT[envelope.event_type], envelope, first_line)

    def _ask_model(self, line: TranscriptLine) -> None:
        """The model call behind what an agent says or calls. One that guards deny has been made all the same."""
        micro, tokens = _micro_of(self._line, line.cost), line.tokens or 0
        permitted = True
        if micro or tokens:
            permitted = self._start(self._model_call(line.speaker, micro, tokens))
        if not permitted or not (micro or tokens):
            self._record(journal_draft(EV_CALL_STARTED, self._model_call(line.speaker, micro, tokens)))
        self._finish(line.speaker, cost=micro, tokens=tokens)

    def _model_call(self, speaker: str, micro: int, tokens: int) -> CallStarted:
        turn, index = self._next_position(speaker)
        return CallStarted(turn, index, MODEL_NAME, "", most=micro, tokens=tokens)

    def _call(self, line: TranscriptLine, tool: str) -> None:
        turn, index = self._next_position(line.speaker)
        args = line.args or {}
        polls = DEFAULT_POLLS if line.poll else 0
        started = CallStarted(turn, index, tool, "", args, same=call_key(tool, args), poll_max=polls)
        if self._start(started):
            self._finish(line.speaker, progress=text_key(line.progress) if line.progress is not None else "")

    def _next_position(self, speaker: str) -> tuple[str, int]:
        self._calls[speaker] = self._calls.get(speaker, -1) + 1
        return f"1/{speaker}", self._calls[speaker]

    def _start(self, started: CallStarted) -> bool:
        """Record a call as guards allow it. Returns whether they do."""
        work = JournalBatch(TurnClaim(started.turn, 1), (journal_draft(EV_CALL_STARTED, started),))
        admitted = record_permitted(self._fold, work, ruleset=self._ruleset, at=self._now, new_id=self._new_id)
        self._take(admitted)
        return not any(each.event_type == EV_CALL_FAILED for each in admitted.batch)

    def _finish(self, speaker: str, *, cost: int = 0, tokens: int = 0, progress: str = "") -> None:
        index = self._calls[speaker]
        finished = CallFinished(f"1/{speaker}", index, {}, cost=cost, tokens=tokens, progress=progress)
        self._record(journal_draft(EV_CALL_FINISHED, finished))

    def _record(self, *drafts: Envelope) -> None:
        self._take(record_all(self._fold, drafts, ruleset=self._ruleset, at=self._now, new_id=self._new_id))

    def _take(self, admitted: Admitted) -> None:
        self._fold = admitted.fold
        for envelope in admitted.batch:
            self._line_at[envelope.sequence] = self._line
            if envelope.event_type == EV_TEXT:
                self._said = envelope
            if envelope.event_type in GUARDS_BY_EVENT and envelope.event_data.get("action") != WARNING:
                self._found.append(envelope)
