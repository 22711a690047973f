"""Workflows to crash: their agents, a world that counts, and people and code who act by what the log shows.

Nobody here acts by the time of day. A cue says which envelope somebody waits for; after a crash the log shows the same
envelopes, so everybody repeats what they were doing, under the same message id. Where a word or a write must come
while a tool is at work, that tool waits until it has come.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from antiphon import (
    EV_CONTEXT_SET,
    Agent,
    AgentsTarget,
    AgentTarget,
    Asked,
    Channel,
    ContextEquals,
    Envelope,
    Finish,
    FromSpeaker,
    Handoff,
    Hub,
    Once,
    Participant,
    Reply,
    Request,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
    TurnChannel,
    calls,
    says,
    set_context,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.core.events import EV_TURN_ASSIGNED
from antiphon.core.execution_events import EV_CALL_STARTED
from antiphon.engines.engine import wait_for_others
from antiphon.store.protocol import Store
from antiphon.testing import ManualClock
from tests.engines.test_sweep import Died
from tests.support.waiting import let_others_run

T = TypeVar("T")

PAID = ("7", 100)

Step = Reply | list[Reply] | Callable[[Request], Reply]
"""What a model says when it is asked: a reply, several calls in one, or what follows from what it is shown."""


class World:
    """What stands outside: models and tools that count how often they are asked, and a ledger that honours keys."""

    def __init__(self, *, keyless: bool = False) -> None:
        self._keyless = keyless
        self.asked: Counter[str] = Counter()
        self.ledger: dict[str, tuple[str, int]] = {}
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def agent(self, name: str, *script: Sequence[Step]) -> Agent:
        """An agent of this world. Its script has the steps of each of its turns."""

        async def model(request: Request) -> Reply | list[Reply]:
            self.asked[f"{name} model"] += 1
            taken = sum(message.role == "assistant" for message in request.history)
            step = script[taken][sum(isinstance(item, Asked) for item in request.exchange)]
            return step(request) if callable(step) else step

        return Agent(name, model=model, tools=self._tools(name))

    def _tools(self, name: str) -> list[Tool[..., object]]:
        asked = self.asked

        @tool
        async def look_up(order: str) -> str:
            asked[f"{name} look_up"] += 1
            return f"order {order}: 100"

        @tool
        async def note(text: str) -> str:
            asked[f"{name} note"] += 1
            return f"noted: {text}"

        @tool
        async def pay(order: str, cents: int, idempotency_key: str) -> str:
            asked[f"{name} pay"] += 1
            key = f"payment {len(self.ledger)}" if self._keyless else idempotency_key
            self.ledger.setdefault(key, (order, cents))
            return "paid"

        @tool
        async def ponder(until: str) -> str:
            asked[f"{name} ponder"] += 1
            await wait_for_others(self.gates[until].wait())
            return "it is clear now"

        @tool
        async def mark(key: str, value: str, channel: TurnChannel) -> str:
            asked[f"{name} mark"] += 1
            set_context(channel, **{key: value})
            return "marked"

        return [look_up, note, pay, ponder, mark, *self._routes(name)]

    def _routes(self, name: str) -> list[Tool[..., object]]:
        asked = self.asked

        @tool
        async def escalate() -> str:
            asked[f"{name} escalate"] += 1
            return "escalated"

        @tool
        async def hand_over(to: str, why: str) -> Handoff:
            asked[f"{name} hand_over"] += 1
            return Handoff(to, why, f"{name} has done what it could")

        @tool
        async def finish(why: str) -> Finish:
            asked[f"{name} finish"] += 1
            return Finish(why)

        return [escalate, hand_over, finish]


Sees = Callable[[Envelope], bool]
Does = Callable[[Channel], Awaitable[object]]


@dataclass(frozen=True)
class Cue:
    """Somebody does something when the log shows an envelope for the n-th time; then a tool may go on."""

    sees: Sees
    who: str = ""
    does: Does | None = None
    nth: int = 1
    opens: str = ""
    """The gate of the tool that waits for this."""


def has_turn(name: str) -> Sees:
    """This one is given the turn."""

    def sees(envelope: Envelope) -> bool:
        speakers = envelope.event_data.get("speakers")
        return envelope.event_type == EV_TURN_ASSIGNED and isinstance(speakers, list) and name in speakers

    return sees


def begins(name: str, tool_name: str) -> Sees:
    """This one's turn begins to call a tool."""

    def sees(envelope: Envelope) -> bool:
        data = envelope.event_data
        return envelope.event_type == EV_CALL_STARTED and data["name"] == tool_name and speaker_of(data) == name

    return sees


def speaker_of(data: dict[str, object]) -> str:
    """Whose turn a fact about a turn is about."""
    return str(data["turn"]).partition("/")[2]


def sends(text: str, message_id: str = "") -> Does:
    return lambda channel: channel.send(text, message_id=message_id or text)


def writes(message_id: str, new: dict[str, object], *gone: str) -> Does:
    return lambda channel: channel.post(EV_CONTEXT_SET, {"set": new, "delete": list(gone)}, message_id=message_id)


def reads(request: Request) -> Reply:
    """A model that repeats what it is shown, so that the log says who has seen what."""
    return says(" / ".join(message.text for message in request.history))


@dataclass(frozen=True)
class Play:
    """A workflow, who takes part in it, and what they do when."""

    graph: TransitionGraph
    seats: tuple[str, ...]
    """Everybody, the one who opens it first; `name:kind` for those who are no agents."""
    cast: Callable[[World], list[Agent]]
    cues: tuple[Cue, ...]
    ends: str
    knobs: dict[str, object] = field(default_factory=dict)
    cautious: frozenset[str] = frozenset()
    """Those who look at an invitation before they accept it."""

    @property
    def people(self) -> dict[str, str]:
        """Those who are no agents, and what they are."""
        pairs = (seat.partition(":") for seat in self.seats)
        return {name: kind for name, _, kind in pairs if kind}

    async def open(self, seated: dict[str, Participant]) -> str:
        first, *others = (seat.partition(":")[0] for seat in self.seats)
        knobs = {"graph": self.graph, **self.knobs}
        return (await seated[first].open(type="workflow", target=others, knobs=knobs)).channel_id


USER_BEGINS = Cue(has_turn("user"), "user", sends("Please refund order 7."))
PAYS = [calls("pay", {"order": "7", "cents": 100}), calls("note", {"text": "paid"})]


def then(speaker: str, target: str) -> Transition:
    return Transition(FromSpeaker(speaker), AgentTarget(target))


def in_sequence(world: World) -> list[Agent]:
    return [
        world.agent("clerk", [calls("look_up", {"order": "7"}), says("It was 100.")]),
        world.agent("cashier", [PAYS, calls("note", {"text": "again"}), says("Paid.")]),
        world.agent("archivist", [reads]),
    ]


def in_rounds(world: World) -> list[Agent]:
    return [
        world.agent("ann", [calls("look_up", {"order": "7"}), says("a1")], [PAYS, says("a2")]),
        world.agent("bob", [says("b1")], [reads]),
    ]


def by_tools(world: World) -> list[Agent]:
    return [
        world.agent(
            "triage", [[calls("look_up", {"order": "7"}), calls("escalate")], says("Somebody must see to it.")]
        ),
        world.agent("security", [PAYS, says("Seen to.")]),
        world.agent("archive", [reads]),
        world.agent("review", [says("never asked")]),
    ]


def by_handoffs(world: World) -> list[Agent]:
    return [
        world.agent(
            "support",
            [calls("hand_over", {"to": "billing", "why": "a refund"})],
            [calls("note", {"text": "done"}), calls("finish", {"why": "resolved"})],
        ),
        world.agent(
            "billing",
            [
                calls("hand_over", {"to": "nobody", "why": "a mistake"}),
                [*PAYS, calls("hand_over", {"to": "support", "why": "paid"})],
            ],
        ),
    ]


def by_context(world: World) -> list[Agent]:
    return [
        world.agent(
            "triage",
            [
                [calls("mark", {"key": "severity", "value": "high"}), calls("ponder", {"until": "budget"})],
                says("High."),
            ],
            [reads],
        ),
        world.agent("oncall", [PAYS, calls("ponder", {"until": "no budget"}), says("Paid.")]),
        world.agent("review", [reads]),
    ]


def with_people(world: World) -> list[Agent]:
    return [
        world.agent("drafter", [calls("look_up", {"order": "7"}), calls("ponder", {"until": "draft"}), reads]),
        world.agent("payer", [calls("ponder", {"until": "payment"}), PAYS, reads]),
        world.agent("closer", [reads]),
    ]


def in_council(world: World) -> list[Agent]:
    return [
        world.agent("left", [PAYS, says("left")]),
        world.agent("right", [calls("ponder", {"until": "left"}), says("right")]),
        world.agent("judge", [reads]),
    ]


HIGH = FromSpeaker("triage") & ContextEquals("severity", "high") & ContextEquals("budget", 100)

PLAYS: dict[str, Play] = {
    "sequence": Play(
        TransitionGraph.sequence(["user", "clerk", "cashier", "archivist"]),
        ("user:service", "clerk", "cashier", "archivist"),
        in_sequence,
        (USER_BEGINS,),
        "sequence_complete",
    ),
    "round robin": Play(
        TransitionGraph.round_robin(["user", "ann", "bob"], max_turns=6),
        ("user:service", "ann", "bob"),
        in_rounds,
        (USER_BEGINS, Cue(has_turn("user"), "user", sends("And now?"), nth=2)),
        "max_turns",
    ),
    "tool-routed": Play(
        TransitionGraph(
            "user",
            [
                Transition(ToolCalled("escalate"), AgentTarget("security")),
                Transition(ToolCalled("pay"), AgentTarget("archive")),
                Transition(FromSpeaker("archive") | FromSpeaker("review"), TerminateTarget("filed"), priority=-1),
                then("user", "triage"),
            ],
            AgentTarget("review"),
        ),
        ("user:service", "triage", "security", "archive", "review"),
        by_tools,
        (USER_BEGINS,),
        "filed",
    ),
    "handoff": Play(
        TransitionGraph("user", [then("user", "support")], TerminateTarget("nowhere to go")),
        ("user:service", "support", "billing"),
        by_handoffs,
        (USER_BEGINS,),
        "resolved",
    ),
    "context-routed": Play(
        TransitionGraph(
            "user",
            [
                Transition(Once(HIGH), AgentTarget("oncall")),
                Transition(FromSpeaker("oncall") & ContextEquals("budget", None), AgentTarget("triage")),
                Transition(FromSpeaker("review"), TerminateTarget("reviewed")),
                then("user", "triage"),
            ],
            AgentTarget("review"),
        ),
        ("user:service", "triage", "oncall", "review", "monitor:service"),
        by_context,
        (
            USER_BEGINS,
            Cue(begins("triage", "ponder"), "monitor", writes("w1", {"budget": 100}), opens="budget"),
            Cue(begins("oncall", "ponder"), "monitor", writes("w2", {}, "budget"), opens="no budget"),
        ),
        "reviewed",
    ),
    "human in the loop": Play(
        TransitionGraph(
            "user",
            [
                then("user", "drafter"),
                then("drafter", "dana"),
                Transition(FromSpeaker("dana") & ContextEquals("approved", True), AgentTarget("payer")),
                then("payer", "closer"),
            ],
            TerminateTarget("approved"),
        ),
        ("user:service", "drafter", "dana:human", "payer", "closer", "rita:human", "omar:service"),
        with_people,
        (
            USER_BEGINS,
            Cue(begins("drafter", "ponder"), "dana", sends("I shall read it.")),
            Cue(begins("drafter", "ponder"), "rita", sends("Mind the tax."), opens="draft"),
            Cue(has_turn("dana"), "dana", writes("w1", {"approved": True})),
            Cue(has_turn("dana"), "dana", sends("Approved.")),
            Cue(begins("payer", "ponder"), "rita", sends("Not too late, please.")),
            Cue(begins("payer", "ponder"), "omar", sends("The ledger is open."), opens="payment"),
        ),
        "approved",
        {"interjectors": ["omar"]},
        frozenset({"dana", "rita"}),
    ),
    "council": Play(
        TransitionGraph(
            "user",
            [
                Transition(FromSpeaker("user"), AgentsTarget(["left", "right"])),
                Transition(FromSpeaker("judge"), TerminateTarget("judged")),
            ],
            AgentTarget("judge"),
        ),
        ("user:service", "left", "right", "judge"),
        in_council,
        (
            USER_BEGINS,
            Cue(lambda envelope: envelope.sender_id == "left" and "body" in envelope.event_data, opens="left"),
        ),
        "judged",
    ),
}


class Mortal(Store, Protocol):
    """A store that ends whoever uses it at one of its appends."""

    appends: int
    dead: bool


class Life:
    """One process that plays a part of a workflow, from what the log shows to its end."""

    def __init__(self, play: Play, world: World, store: Store, clock: ManualClock) -> None:
        self._play, self._world, self._store, self._clock = play, world, store, clock
        self._seen: Counter[int] = Counter()
        self._acts: list[asyncio.Future[object]] = []
        self._seated: dict[str, Participant] = {}

    async def lived(self) -> list[Envelope]:
        """Play to the end; the log then."""
        self._world.gates.clear()
        hub = await Hub.over(self._store, clock=self._clock)
        for name, kind in self._play.people.items():
            accept = (lambda invite: True) if name in self._play.cautious else None
            self._seated[name] = await hub.register(name, kind=kind, accept=accept)
        channel_id, cursor = await self._begun(hub)
        async with aclosing(hub.subscribe(channel_id, after=cursor)) as envelopes:
            async for envelope in envelopes:
                await self._heed(envelope)
        await asyncio.gather(*self._acts)
        log = await hub.log(channel_id)
        await hub.close()
        return log

    async def _begun(self, hub: Hub) -> tuple[str, int]:
        """The channel, and how far its log was read. What a log asks for is done before any agent goes on."""
        rows = await hub.channels()
        log = await hub.log(rows[0].channel_id) if rows else []
        for envelope in log:
            await self._heed(envelope)
        for agent in self._play.cast(self._world):
            await hub.register(agent)
        return rows[0].channel_id if rows else await self._play.open(self._seated), len(log)

    async def _heed(self, envelope: Envelope) -> None:
        for place, cue in enumerate(self._play.cues):
            if not cue.sees(envelope):
                continue
            self._seen[place] += 1
            if self._seen[place] == cue.nth:
                await self._act(cue, envelope.channel_id)

    async def _act(self, cue: Cue, channel_id: str) -> None:
        """Do it. What must wait for the end of a turn is not waited for, but it waits when this returns."""
        if cue.does is not None:
            channel = await self._seated[cue.who].channel(channel_id)
            before = len(channel._live._deferred)
            act = asyncio.ensure_future(cue.does(channel))
            act.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever dies asks no more
            self._acts.append(act)
            while not act.done() and len(channel._live._deferred) <= before:
                await let_others_run(1)
            if act.done():
                act.result()
        if cue.opens:
            self._world.gates[cue.opens].set()


async def played(play: Play, world: World, store: Mortal, clock: ManualClock) -> list[Envelope]:
    """One life; `Died` if it ends before the play does."""
    return await until_death(Life(play, world, store, clock).lived(), store)


async def until_death(life: Coroutine[None, None, T], store: Mortal) -> T:
    """What a life comes to; `Died` if its store ends it before. Whoever dies leaves nothing running behind."""
    others = asyncio.all_tasks()
    living = asyncio.create_task(life)
    try:
        while not living.done() and not store.dead:
            await let_others_run(1)
        if not store.dead:
            return await living
    finally:
        await let_others_run(2)  # a task that is cancelled before it has begun complains
        mine = asyncio.all_tasks() - others
        for task in mine:
            task.cancel()
        await asyncio.gather(living, *mine, return_exceptions=True)
    raise Died
