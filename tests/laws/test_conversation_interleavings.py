"""Conversations that share their agents, in any order of messages, handoffs, holds and releases."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    Answered,
    Asked,
    ConversationRouter,
    Denied,
    Envelope,
    ModelError,
    Reply,
    Request,
    calls,
    get_conversation_state,
    says,
    set_conversation_state,
)
from antiphon.core.envelope import Json
from antiphon.core.state import Turn
from antiphon.testing import ManualClock
from tests.laws.script_player import run
from tests.support.conversation_desk import (
    ASSIGNED,
    FAILED,
    MOVED,
    REFUSED,
    RELEASED,
    UNROUTED,
    Conversation,
    Desk,
    rule,
)
from tests.support.hub_places import InMemory
from tests.support.inspection import fold_of, folded, laws_of
from tests.support.waiting import let_others_run

AGENTS = ("triage", "billing", "support")
SENDERS = ("ann", "dana", "code")
"""A person who opens the conversations, another one, and code."""
OBSERVER = "watch"
EXPERT = "expert"
"""An alias that each conversation has for another agent."""
FAIL, ANSWER = "fail", "answer"
MARK = re.compile(r"<(\d+)\.(\d+)>")
"""A message names its conversation and its number: `<1.4>`."""


@dataclass(frozen=True)
class Setup:
    """What is in force in one of the conversations."""

    router: ConversationRouter
    handoff: Json
    expert: str | None
    most_hops: int = 5
    observed: bool = False


SETUPS = (
    Setup(
        ConversationRouter([rule("billing", intents={"billing"})], "triage"),
        {"agent_aliases": {EXPERT: "billing"}, "phase_map": {"billing": "handling"}},
        "billing",
    ),
    Setup(
        ConversationRouter([rule("support", intents={"billing"})], "triage", OBSERVER),
        {"agent_aliases": {EXPERT: "support"}},
        "support",
        most_hops=1,
        observed=True,
    ),
    Setup(
        ConversationRouter([rule("triage", source_channel_ids={"ann"})]),
        {"phase_map": {"billing": "handling"}, "allowed_transitions": {"intake": ["review"]}},
        None,
    ),
)


# What is done


@dataclass(frozen=True)
class Say:
    """Somebody says something. The plan is what each agent does with it; one that is not in it answers."""

    place: int
    by: str
    plan: dict[str, str] = field(default_factory=dict)
    intent: str | None = None
    addressed_to: str | None = None


@dataclass(frozen=True)
class Release:
    place: int
    by: str
    to: str | None = None


@dataclass(frozen=True)
class Move:
    """Somebody writes the state of the conversation."""

    place: int
    by: str
    phase: str
    to: str | None = None


@dataclass(frozen=True)
class Burst:
    """What is done at once; whether all is answered before what follows; whether another hub goes on then."""

    acts: tuple[Say | Release | Move, ...]
    settle: bool = True
    reopen: bool = False


places = st.integers(0, len(SETUPS) - 1)
senders, agents = st.sampled_from(SENDERS), st.sampled_from(AGENTS)
deeds = st.sampled_from([ANSWER, ANSWER, FAIL, *AGENTS, EXPERT, "human", "dana", "nobody"])
says_something = st.builds(
    Say,
    places,
    senders,
    st.dictionaries(st.sampled_from([*AGENTS, OBSERVER]), deeds, max_size=4),
    st.none() | st.just("billing"),
    st.none() | st.none() | st.sampled_from([*AGENTS, "dana"]),
)
releases = st.builds(Release, places, st.sampled_from(["ann", "dana", "dana"]), st.none() | agents)
moves = st.builds(Move, places, senders, st.sampled_from(["intake", "handling"]), st.none() | agents)
bursts = st.builds(
    Burst,
    st.lists(says_something | says_something | releases | moves, min_size=4, max_size=12).map(tuple),
    st.booleans(),
    st.sampled_from([False, False, False, True]),
)
scripts = st.lists(bursts, min_size=2, max_size=6)


# Who does it


class Players:
    """Agents that act by the plan in the message they answer, and what they were shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, list[tuple[int, int]]]] = []
        """The agent, and the messages of people in each prompt: conversation and number."""

    def agent(self, name: str) -> Agent:
        async def model(request: Request) -> Reply:
            marks = [(int(a), int(b)) for message in request.history for a, b in MARK.findall(message.text)]
            self.shown.append((name, marks))
            await let_others_run(sum(marks[-1]) % 4)
            return _deed(name, request)

        return Agent(name, model=model)


def _deed(name: str, request: Request) -> Reply:
    """What the plan of the message says; after a refusal the agent answers."""
    said = next(message.text for message in reversed(request.history) if MARK.search(message.text))
    plan = dict(each.split("=") for each in said.partition("|")[2].split(",") if each)
    mark = MARK.search(said)
    assert mark is not None, "the last message is marked"
    deed = plan.get(name, ANSWER)
    if deed == FAIL:
        raise ModelError("the plan says so")
    if deed == ANSWER or any(isinstance(item, Answered | Asked) for item in request.exchange):
        return says(f"{name} answers [{mark[1]}.{mark[2]}]")
    return calls("handoff_conversation", {"target": deed, "reason": "r", "summary": f"[{mark[1]}.{mark[2]}]"})


@dataclass
class Office:
    """A desk that is left and taken again, and its conversations."""

    place: InMemory
    clock: ManualClock
    players: Players = field(default_factory=Players)
    channel_ids: list[str] = field(default_factory=list)
    sent: int = 0
    desk: Desk | None = None

    async def begin(self) -> None:
        await self.take()
        assert self.desk is not None
        for setup in SETUPS:
            guards = [{"name": "hop_limit", "most": setup.most_hops}]
            talk = await self.desk.open(
                setup.router, *AGENTS, OBSERVER, "dana", "code", handoff=setup.handoff, guards=guards
            )
            self.channel_ids.append(talk.channel_id)

    async def take(self) -> None:
        hub = await self.place.hub(self.clock)
        self.desk = Desk(hub, self.clock)
        await self.desk.join("ann:human", "dana:human", "code")
        for name in (*AGENTS, OBSERVER):
            await self.desk.hire(self.players.agent(name))

    async def leave(self) -> None:
        assert self.desk is not None
        await self.desk.hub.close()
        self.desk = None

    async def talk(self, place: int) -> Conversation:
        assert self.desk is not None
        return await self.desk.again(self.channel_ids[place])

    async def play(self, script: Sequence[Burst]) -> None:
        await self.begin()
        for burst in script:
            await asyncio.gather(*[self.act(each) for each in burst.acts])
            if burst.settle:
                await self.settled()
            if burst.reopen:
                await self.leave()
                await self.take()
        await self.settled()

    async def settled(self) -> None:
        for place in range(len(SETUPS)):
            await (await self.talk(place)).settled()

    def act(self, act: Say | Release | Move) -> Awaitable[object]:
        match act:
            case Say():
                self.sent += 1
                return self.say(act, self.sent)
            case Release():
                return self.release(act)
            case Move():
                return self.move(act)

    async def say(self, act: Say, number: int) -> None:
        plan = ",".join(f"{name}={deed}" for name, deed in act.plan.items())
        options = {"intent": act.intent, "addressed_to": act.addressed_to}
        await (await self.talk(act.place)).say(f"<{act.place}.{number}>|{plan}", by=act.by, **options)

    async def release(self, act: Release) -> None:
        await _tried((await self.talk(act.place)).release(act.by, to=act.to), "not_held", "not_a_person")

    async def move(self, act: Move) -> None:
        channel = await (await self.talk(act.place)).held_by(act.by)
        wanted = get_conversation_state(channel).transition(to_phase=act.phase, to_agent=act.to)
        await _tried(set_conversation_state(channel, wanted), "conflict", "not_a_person")


async def _tried(work: Awaitable[object], *reasons: str) -> None:
    """Do it, unless it is refused for one of these reasons."""
    try:
        await work
    except Denied as denied:
        if denied.reason not in reasons:
            raise


# What holds then


@dataclass
class Expected:
    """What must come of a message, read from the log without the adapter."""

    message: Envelope
    held: bool
    """Whether a person had the conversation when it was said."""
    turns: int = 0
    unrouted: int = 0
    dropped: bool = False
    """Whether a person got the conversation while it waited."""

    @property
    def addressed_to(self) -> str | None:
        return self.message.event_data.get("addressed_to")  # type: ignore[return-value]

    @property
    def needs_answer(self) -> bool:
        if self.addressed_to is not None:
            return self.addressed_to in AGENTS
        return not self.held and not self.dropped


def expectations(log: Sequence[Envelope]) -> list[Expected]:
    """What must come of each message, and what did."""
    found: dict[str, Expected] = {}
    held = False
    for envelope in log:
        data = envelope.event_data
        if envelope.event_type == EV_TEXT:
            found[envelope.envelope_id] = Expected(envelope, held)
        elif envelope.event_type == UNROUTED:
            found[str(data["message"])].unrouted += 1
        elif envelope.event_type == ASSIGNED and _begins(data):
            assert not held or found[envelope.causation_id or ""].addressed_to, "no agent is asked during a hold"
            found[envelope.causation_id or ""].turns += 1
        elif envelope.event_type in (MOVED, RELEASED):
            held = _is_held(held, envelope)
            for each in found.values():
                each.dropped |= held and not each.turns and not each.unrouted
    return list(found.values())


def _is_held(before: bool, moved: Envelope) -> bool:
    """Whether a person has the conversation after a move or a release. A move to no agent ends no hold."""
    data = moved.event_data
    return moved.event_type == MOVED and (bool(data.get("person")) or (before and data.get("to_agent") is None))


def _begins(assigned: Json) -> bool:
    """Whether a turn is the first about its message, and no observation."""
    return not str(assigned["reason"]).startswith("handoff") and assigned["reason"] != "observes"


def check_turns(log: Sequence[Envelope]) -> None:
    """There is one turn at a time, and every fold on the way is the one that the next continues from."""
    ruleset = laws_of(log)
    fold = ruleset.begin(log[0].channel_id)
    for envelope in log:
        fold = ruleset.fold(fold, envelope)
        owed: tuple[Turn, ...] = fold.state.owed
        assert len(owed) <= 1, "one turn at a time"
    assert fold.state.owed == ()


def check_answers(log: Sequence[Envelope]) -> None:
    """Each message that needs an answer has exactly one, in order."""
    expected = expectations(log)
    for each in expected:
        assert each.turns + each.unrouted == each.needs_answer, each
    begun = [each for each in log if each.event_type == ASSIGNED and _begins(each.event_data)]
    shown = [each.event_data["shown"] for each in begun]
    assert shown == sorted(set(shown)), "messages are answered in order"  # type: ignore[type-var]
    for turn in begun:
        about = [each for each in log if each.causation_id == turn.causation_id]
        said = [each for each in about if each.event_type == EV_PACKET and each.event_data["body"]]
        answers = [each for each in said if each.sender_id != OBSERVER]
        failures = [each for each in about if each.event_type == FAILED and each.event_data["speaker"] != OBSERVER]
        packets = {each.envelope_id for each in about if each.event_type == EV_PACKET}
        moves = [each.event_data for each in log if each.event_type == MOVED and each.causation_id in packets]
        ends = len(answers) + len(failures) + sum(bool(each.get("person")) for each in moves)
        again = sum(each["by"] == OBSERVER for each in moves)
        assert ends == 1 + again, "it ends with an answer, a failure, or a person, and so does what an observer begins"


def check_handoffs(log: Sequence[Envelope], setup: Setup) -> None:
    """Every handoff leads to where this conversation's own rules lead; what they refuse is refused."""
    texts = {each.envelope_id: str(each.event_data["text"]) for each in log if each.event_type == EV_TEXT}
    packets = {each.envelope_id: each for each in log if each.event_type == EV_PACKET}
    hops: dict[str, int] = {}
    held = False
    for envelope in log:
        held = _is_held(held, envelope) if envelope.event_type in (MOVED, RELEASED) else held
        if envelope.event_type == MOVED and envelope.causation_id in packets:
            message = packets[envelope.causation_id].causation_id or ""
            moved = envelope.event_data
            asked = _planned(texts[message], str(moved["by"]))
            wanted = setup.expert if asked == EXPERT else asked
            assert (moved["to_agent"] or moved["person"]) == wanted
            phase = setup.handoff.get("phase_map", {}).get(wanted, moved["from_phase"])  # type: ignore[attr-defined]
            assert moved["to_phase"] == phase
            hops[message] = hops.get(message, 0) + (moved["to_agent"] is not None)
            assert hops[message] <= setup.most_hops
            allowed = setup.handoff.get("allowed_transitions")
            if allowed is not None and moved["to_agent"] is not None:
                followers = allowed.get(moved["from_phase"], [])  # type: ignore[attr-defined]
                assert moved["to_phase"] in (moved["from_phase"], *followers)
        elif envelope.event_type == REFUSED:
            refused = envelope.event_data
            asked = _planned(texts[envelope.causation_id or ""], str(refused["from_agent"]))
            assert refused["target"] == asked
            if refused["reason"] == "target_not_found":
                target = setup.expert if asked == EXPERT else asked
                assert target not in AGENTS or target == refused["from_agent"] or held, "only people go on in a hold"


def _planned(text: str, agent: str) -> str:
    return dict(each.split("=") for each in text.partition("|")[2].split(",") if each)[agent]


def check_prompts(shown: Sequence[tuple[str, list[tuple[int, int]]]], logs: Sequence[Sequence[Envelope]]) -> None:
    """Each prompt holds the messages of one conversation, all of them up to the one that is answered, in order."""
    said = [
        [tuple(map(int, MARK.findall(str(each.event_data["text"]))[0])) for each in log if each.event_type == EV_TEXT]
        for log in logs
    ]
    for _, marks in shown:
        own = said[marks[-1][0]]
        assert marks == own[: own.index(marks[-1]) + 1]


def _say(place: int, by: str = "ann", to: str | None = None, **plan: str) -> Say:
    return Say(place, by, plan, None, to)


@given(scripts)
@example([Burst((_say(0), _say(0, "dana"), _say(0, "code"), _say(1), _say(2)))])
@example([Burst((_say(0, triage="human"), _say(0), _say(0, to="billing"))), Burst((Release(0, "dana"), _say(0)))])
@example([Burst((_say(1, triage=EXPERT, support="triage"),)), Burst((_say(1), _say(1)), reopen=True)])
@example([Burst((_say(2, "code"), _say(2, triage="billing"), _say(2, triage="support")), settle=False, reopen=True)])
def test_conversations_that_share_agents(script: list[Burst]) -> None:
    async def check() -> None:
        clock = ManualClock()
        office = Office(InMemory(clock), clock)
        try:
            await office.play(script)
            logs = []
            for place, setup in enumerate(SETUPS):
                talk = await office.talk(place)
                log = await talk.log()
                check_turns(log)
                check_answers(log)
                check_handoffs(log, setup)
                assert office.desk is not None
                assert folded(log) == await fold_of(office.desk.hub, talk.channel_id)
                logs.append(log)
            check_prompts(office.players.shown, logs)
        finally:
            await office.leave()

    run(check())


def test_what_is_expected_of_a_message() -> None:
    """The check of answers notices a message that has no turn, and one that has two."""
    message = Envelope("m", "c", "ann", None, EV_TEXT, {"text": "<0.1>|"}, sequence=1)
    turn = Envelope("t", "c", "hub", None, ASSIGNED, {"speakers": ["triage"], "reason": "default", "shown": 1}, "m")
    person = Envelope("p", "c", "hub", None, MOVED, {"person": "human"})
    assert [(each.turns, each.needs_answer) for each in expectations([message])] == [(0, True)]
    assert [(each.turns, each.needs_answer) for each in expectations([message, turn, turn])] == [(2, True)]
    assert [(each.turns, each.needs_answer) for each in expectations([message, person])] == [(0, False)]
    assert [(each.turns, each.needs_answer) for each in expectations([person, message])] == [(0, False)]
