"""What agents have said and done together: their rounds, what is said to workers, and the tasks they give.

Rule 1: everything is known by digests, and bounded. What a person or code says begins it anew.
Rule 2: a round is closed by the assignment that gives the turn back to the agent that began it. The next one begins
        there, so that no turn counts in two rounds.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from antiphon.core.canonical import normalized_text, text_key
from antiphon.core.codec import digest_of
from antiphon.core.envelope import HUB, Envelope, Json
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CONTEXT_SET,
    EV_PACKET,
    EV_TASK_STARTED,
    EV_TURN_ASSIGNED,
    SPEECH_TYPES,
)
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.core.protection_events import EV_DEADLOCK_DETECTED
from antiphon.core.state import TASK_KNOB, State
from antiphon.guards.run_limits import agents_among
from antiphon.guards.waiting_messages import Waiting, with_message, without_answered

MAX_CYCLE_AGENTS = 3
WARN_AT = 2
MIN_COUNTED_CHARS = 8
"""A message to a worker that is shorter, as `next`, says nothing about progress."""
MAX_SEEN = 64
"""How many different rounds are remembered."""
TASK_CHAIN = "chain"
"""The field of a task's origin that lists the tasks it stands inside of: agent and words of each."""
TASK_WORDS = "words"
"""The field of `ag2.task.started` with the digest of what is to be done."""


class TakenTurn(msgspec.Struct, frozen=True):
    """What an agent has said and done in a turn."""

    speaker: str
    digest: str
    counted: bool
    """Whether it is long enough to say something about progress."""


class SeenRound(msgspec.Struct, frozen=True):
    """Something that happened, and how often."""

    key: str
    count: int
    answer: str = ""
    """Of a message to a worker: what the worker had said last."""
    at: int = 0
    """Of a message to a worker: how many turns had been taken."""


class TeamTalk(msgspec.Struct, frozen=True):
    """What agents have said to each other since a person or code last spoke."""

    agents: tuple[str, ...] = ()
    context: dict[str, str] = msgspec.field(default_factory=dict)
    """The digests of the context variables that were written."""
    tools: dict[str, str] = msgspec.field(default_factory=dict)
    """For each agent, the digest of the tools called in the turn it takes."""
    chain: tuple[TakenTurn, ...] = ()
    """The turns since the last round."""
    last: dict[str, str] = msgspec.field(default_factory=dict)
    """What each agent has said last."""
    turns: int = 0
    rounds: tuple[SeenRound, ...] = ()
    messages: tuple[SeenRound, ...] = ()
    """The messages to workers."""
    tasks: tuple[SeenRound, ...] = ()
    rerouted: bool = False
    waiting: Waiting = ()
    """The messages of people and outside code that have no answer yet."""

    @property
    def context_digest(self) -> str:
        """The same for equal context variables."""
        return digest_of(self.context) if self.context else ""


class ClosedRound(msgspec.Struct, frozen=True):
    """A round that the next turn closes."""

    kind: Literal["oscillation", "supervisor"]
    names: tuple[str, ...]
    key: str
    occurrences: int


def fold_talk(memory: TeamTalk, envelope: Envelope) -> TeamTalk:
    """The memory once this envelope is part of the log."""
    kind = envelope.event_type
    if kind in SPEECH_TYPES:
        return _after_words(memory, envelope)
    if kind == EV_CONTEXT_SET:
        return _with_context(memory, envelope.event_data)
    fold = HUB_FOLDS.get(kind)
    return memory if fold is None or envelope.sender_id != HUB else fold(memory, envelope.event_data)


def _after_words(memory: TeamTalk, envelope: Envelope) -> TeamTalk:
    data, speaker = envelope.event_data, envelope.sender_id
    updates = data.get("context_updates") if envelope.event_type == EV_PACKET else {"set": data.get("set")}
    memory = _with_context(memory, updates)
    if speaker not in memory.agents:
        return TeamTalk(memory.agents, memory.context, waiting=with_message(memory.waiting, envelope))
    waiting = without_answered(memory.waiting, envelope)
    if waiting is not memory.waiting:
        if waiting:  # what agents do next is for another message
            return TeamTalk(memory.agents, memory.context, waiting=waiting)
        memory = replace(memory, waiting=())
    if len(memory.agents) < WARN_AT:
        return memory
    text = data.get("body") if envelope.event_type == EV_PACKET else data.get("text")
    words = normalized_text(text) if isinstance(text, str) else ""
    digest = text_key(f"{words}\n{memory.tools.get(speaker, '')}")
    taken = TakenTurn(speaker, digest, len(words) >= MIN_COUNTED_CHARS)
    return replace(
        memory,
        chain=(*memory.chain, taken)[-MAX_CYCLE_AGENTS:],
        last={**memory.last, speaker: digest},
        tools={name: tools for name, tools in memory.tools.items() if name != speaker},
        turns=memory.turns + 1,
    )


def _with_context(memory: TeamTalk, updates: object) -> TeamTalk:
    """The memory with these context variables changed."""
    if not isinstance(updates, dict):
        return memory
    new, gone = updates.get("set"), updates.get("delete")
    if not new and not gone:
        return memory
    kept = {key: known for key, known in memory.context.items() if not isinstance(gone, list) or key not in gone}
    written = {key: digest_of(value)[:16] for key, value in new.items()} if isinstance(new, dict) else {}
    return replace(memory, context={**kept, **written})


def _with_tool(memory: TeamTalk, data: Json) -> TeamTalk:
    if data.get("args") is None or len(memory.agents) < WARN_AT:
        return memory
    speaker = str(data.get("turn", "")).partition("/")[2]
    asked = data.get("same") or data.get("digest")
    return replace(memory, tools={**memory.tools, speaker: text_key(f"{memory.tools.get(speaker, '')} {asked}")})


def _after_assignment(memory: TeamTalk, assigned: Json) -> TeamTalk:
    """The memory when the turn was given to the next, which may close a round."""
    speakers = assigned.get("speakers")
    if not isinstance(speakers, list) or len(speakers) != 1 or not memory.chain:
        return memory
    speaker = speakers[0]
    said = memory.chain[-1]
    if speaker in memory.agents and speaker != said.speaker and said.counted:
        memory = replace(memory, messages=_with_message(memory, said, speaker))
    names = _cycle_to(memory, speaker)
    if names is None:
        return memory
    return replace(memory, chain=(), rounds=_counted(memory.rounds, _round_key(memory, names)))


def _cycle_to(memory: TeamTalk, speaker: str) -> tuple[str, ...] | None:
    """The agents of the round that is closed if this one has the turn next; None if none is."""
    speakers = [turn.speaker for turn in memory.chain]
    if speaker not in speakers[:-1]:
        return None
    start = len(speakers) - 1 - speakers[::-1].index(speaker)
    names = tuple(speakers[start:])
    return names if 1 < len(names) == len(set(names)) else None


def _round_key(memory: TeamTalk, names: tuple[str, ...]) -> str:
    """The progress digest of a round: what was said and done in it, and the context."""
    said = sorted((turn.speaker, turn.digest) for turn in memory.chain[-len(names) :])
    return digest_of([said, memory.context_digest])


def round_closed_by(memory: TeamTalk, speaker: str) -> ClosedRound | None:
    """What happens again if this agent has the turn next."""
    names = _cycle_to(memory, speaker)
    if names is not None:
        key = _round_key(memory, names)
        return ClosedRound("oscillation", names, key, count_of(memory.rounds, key) + 1)
    said = memory.chain[-1]
    if speaker == said.speaker or speaker not in memory.agents or not said.counted:
        return None
    key = _message_key(memory, said, speaker)
    known = next((each.count for each in memory.messages if each.key == key), 0)
    found = next((each for each in _with_message(memory, said, speaker) if each.key == key), None)
    if found is None or found.count == known:
        return None
    return ClosedRound("supervisor", (said.speaker, speaker), key, found.count)


def _message_key(memory: TeamTalk, said: TakenTurn, worker: str) -> str:
    return digest_of([worker, said.digest])


def _with_message(memory: TeamTalk, said: TakenTurn, worker: str) -> tuple[SeenRound, ...]:
    """The messages to workers with one more. It counts again only if the worker has brought nothing new meanwhile.

    One that comes back within a round is counted as such a round, and not here.
    """
    key, answer = _message_key(memory, said, worker), memory.last.get(worker, "") + memory.context_digest
    known = next((each for each in memory.messages if each.key == key), None)
    others = tuple(each for each in memory.messages if each.key != key)
    if known is None:
        return (*others, SeenRound(key, 1, answer, memory.turns))[-MAX_SEEN:]
    repeated = memory.turns - known.at > MAX_CYCLE_AGENTS and (known.count < WARN_AT or known.answer == answer)
    return (*others, SeenRound(key, known.count + repeated, answer, memory.turns))


def _counted(seen: tuple[SeenRound, ...], key: str) -> tuple[SeenRound, ...]:
    others = tuple(each for each in seen if each.key != key)
    return (*others, SeenRound(key, count_of(seen, key) + 1))[-MAX_SEEN:]


def count_of(seen: tuple[SeenRound, ...], key: str) -> int:
    return next((each.count for each in seen if each.key == key), 0)


def task_key(memory: TeamTalk, data: Json) -> str:
    return digest_of([data.get("agent"), data.get(TASK_WORDS), memory.context_digest])


def _after_creation(memory: TeamTalk, created: Json) -> TeamTalk:
    return TeamTalk(agents_among(created))


def _after_task(memory: TeamTalk, started: Json) -> TeamTalk:
    return replace(memory, tasks=_counted(memory.tasks, task_key(memory, started)))


def _after_deadlock(memory: TeamTalk, found: Json) -> TeamTalk:
    if found.get("action") != "trip":
        return memory
    return replace(memory, chain=(), rounds=(), messages=(), rerouted=True)


HUB_FOLDS = {
    EV_CHANNEL_CREATED: _after_creation,
    EV_TURN_ASSIGNED: _after_assignment,
    EV_CALL_STARTED: _with_tool,
    EV_TASK_STARTED: _after_task,
    EV_DEADLOCK_DETECTED: _after_deadlock,
}
TALK_TYPES = SPEECH_TYPES | {EV_CONTEXT_SET} | HUB_FOLDS.keys()


def task_entry(agent: str, words: str) -> str:
    """A task as the chain of tasks lists it."""
    return f"{agent} {words}"


def task_chain(state: State) -> list[str]:
    """The tasks that this channel stands inside of, its own last."""
    origin = state.knobs.get(TASK_KNOB)
    chain = origin.get(TASK_CHAIN) if isinstance(origin, dict) else None
    return [str(each) for each in chain] if isinstance(chain, list) else []


def words_digest(text: str) -> str:
    """What tasks have in common that ask for the same."""
    return text_key(normalized_text(text))
