"""Routed conversations to crash: agents that hand over, people who act by what the log shows, and their transports.

As in a workflow that is crashed, nobody acts by the time of day. Time passes only when everything is said, for the
replies that have not left by then.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from antiphon import (
    Agent,
    Asked,
    Channel,
    Denied,
    Envelope,
    Hub,
    OutboundReply,
    Participant,
    Reply,
    Request,
    calls,
    says,
    tool,
)
from antiphon.agents.tool import Tool
from antiphon.core.conversation_events import EV_CONVERSATION_MOVED, EV_CONVERSATION_RELEASED, RECIPIENT_FIELD
from antiphon.core.envelope import Json
from antiphon.core.errors import TransportRefused
from antiphon.core.events import EV_CHANNEL_OPENED, EV_PACKET
from antiphon.engines.engine import wait_for_others
from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule
from antiphon.runtime.conversations import conversation_memory
from antiphon.testing import ManualClock
from tests.engines.crashing_workflows import Cue, Does, Mortal, Sees, Step, begins, until_death
from tests.engines.test_sweep import Died
from tests.support.waiting import let_others_run

LONGEST_PAUSE = 400.0
"""How much time passes at most until every reply has left."""
UNWANTED = "unwanted"
"""What a transport refuses for good."""


class Outside:
    """What stands outside: models and tools that count how often they are asked, a ledger, and people."""

    def __init__(self, *, flaky: bool = False) -> None:
        self._flaky = flaky
        """Whether the first attempt to send a reply fails."""
        self.asked: Counter[str] = Counter()
        self.ledger: dict[str, int] = {}
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.tried: Counter[str] = Counter()
        """How often each reply was sent."""
        self.arrived: list[OutboundReply] = []

    async def take(self, reply: OutboundReply) -> None:
        """The other side of every transport."""
        self.tried[reply.reply_id] += 1
        await let_others_run(3)
        if self._flaky and self.tried[reply.reply_id] == 1:
            raise ConnectionError("nobody answers")
        if UNWANTED in reply.text:
            raise TransportRefused("it is not wanted")
        self.arrived.append(reply)

    def agent(self, name: str, plan: Mapping[str, Sequence[Step]]) -> Agent:
        """An agent of this world. Its plan has the steps of each of its turns, by the message that is answered."""

        async def model(request: Request) -> Reply | list[Reply]:
            self.asked[f"{name} model"] += 1
            steps = plan[request.history[-1].text.partition(": ")[2]]
            step = steps[sum(isinstance(item, Asked) for item in request.exchange)]
            return step(request) if callable(step) else step

        return Agent(name, model=model, tools=self._tools(name))

    def _tools(self, name: str) -> list[Tool[..., object]]:
        asked = self.asked

        @tool
        async def pay(cents: int, idempotency_key: str) -> str:
            asked[f"{name} pay"] += 1
            self.ledger.setdefault(idempotency_key, cents)
            return "paid"

        @tool
        async def ponder(until: str) -> str:
            asked[f"{name} ponder"] += 1
            await wait_for_others(self.gates[until].wait())
            return "it is clear now"

        return [pay, ponder]


@dataclass(frozen=True)
class Talk:
    """A routed conversation, who takes part in it, and what they do when."""

    seats: tuple[str, ...]
    """Everybody, the one who opens it first; `name:kind` for those who are no agents."""
    knobs: Json
    cast: Callable[[Outside], list[Agent]]
    cues: tuple[Cue, ...]
    transports: tuple[str, ...] = ("sms",)
    flaky: bool = False
    moves: int = 0
    """How often the conversation moves."""
    replies: tuple[tuple[str, str, str], ...] = field(default=(), repr=False)
    """Every reply that arrives: its transport, its recipient, and who speaks."""

    @property
    def people(self) -> dict[str, str]:
        """Those who are no agents, and what they are."""
        pairs = (seat.partition(":") for seat in self.seats)
        return {name: kind for name, _, kind in pairs if kind}


def happens(event_type: str) -> Sees:
    return lambda envelope: envelope.event_type == event_type


def speaks(name: str, text: str = "") -> Sees:
    """This one says something, or exactly this."""

    def sees(envelope: Envelope) -> bool:
        said = envelope.event_data.get("body", envelope.event_data.get("text"))
        return envelope.sender_id == name and bool(said) and text in ("", said)

    return sees


def is_held(envelope: Envelope) -> bool:
    return envelope.event_type == EV_CONVERSATION_MOVED and bool(envelope.event_data.get("person"))


def texts(text: str, *, transport: str = "sms", intent: str | None = None, to: str | None = None) -> Does:
    """A customer writes, in the same words each time."""

    async def does(channel: Channel) -> object:
        return await channel.send(
            text, transport=transport, source=f"{transport}:ann", intent=intent, addressed_to=to, message_id=text
        )

    return does


def releases(to: str | None = None) -> Does:
    """A person gives the conversation back, unless it has."""

    async def does(channel: Channel) -> object:
        try:
            return await channel.release(to=to)
        except Denied as denied:
            if denied.reason not in ("not_held", "channel_closed"):
                raise
            return None

    return does


def utters(text: str) -> Does:
    return lambda channel: channel.send(text, message_id=text)


async def closes(channel: Channel) -> object:
    return await channel.close("done")


def hands_over(target: str, summary: str, **more: str) -> Reply:
    return calls("handoff_conversation", {"target": target, "reason": "not mine", "summary": summary, **more})


def repeats(request: Request) -> Reply:
    """A model that repeats what it is shown, so that the log says who has seen what."""
    return says(" / ".join(message.text for message in request.history))


PAYS = calls("pay", {"cents": 100})

# Two handoffs, a hold and a release; the channel ends as soon as the last reply is recorded.

DESK_ROUTER = ConversationRouter(
    rules=[RoutingRule("billing", RoutingConditions(intents={"billing"}))], default_agent_id="triage"
)


def at_the_desk(outside: Outside) -> list[Agent]:
    return [
        outside.agent(
            "triage",
            {
                "My invoice is wrong.": [hands_over("money", "a wrong invoice", next_phase="handling")],
                "And the other one?": [repeats],
            },
        ),
        outside.agent(
            "billing",
            {"My invoice is wrong.": [calls("ponder", {"until": "urgent"}), hands_over("sales", "a refund of 100")]},
        ),
        outside.agent(
            "sales",
            {
                "My invoice is wrong.": [PAYS, repeats],
                "It is urgent.": [hands_over("human", "in a hurry", next_phase="escalation")],
            },
        ),
    ]


DESK = Talk(
    ("ann:service", "triage", "billing", "sales", "dana:human"),
    {"router": DESK_ROUTER.to_dict(), "handoff": {"agent_aliases": {"money": "billing"}}},
    at_the_desk,
    (
        Cue(happens(EV_CHANNEL_OPENED), "ann", texts("My invoice is wrong.")),
        Cue(begins("billing", "ponder"), "ann", texts("It is urgent."), opens="urgent"),
        Cue(is_held, "dana", utters("I am here.")),
        Cue(speaks("dana"), "ann", texts("At last.")),
        Cue(speaks("ann", "At last."), "dana", releases()),
        Cue(happens(EV_CONVERSATION_RELEASED), "ann", texts("And the other one?")),
        Cue(speaks("triage"), "ann", closes),
    ),
    moves=3,
    replies=(("sms", "sms:ann", "sales"), ("sms", "sms:ann", "dana"), ("sms", "sms:ann", "triage")),
)

# An observer, a refused handoff, a message that no agent answers, two transports, one of which refuses a reply

LINE_ROUTER = ConversationRouter(
    rules=[RoutingRule("triage", RoutingConditions(intents={"hello"}))], supervisor_id="watcher"
)


def on_a_line(outside: Outside) -> list[Agent]:
    return [
        outside.agent(
            "triage",
            {
                "Hello.": [repeats],
                "Pay me.": [hands_over("billing", "wants money")],
                "By mail, please.": [says("It is in the post.")],
            },
        ),
        outside.agent(
            "billing",
            {
                "Pay me.": [
                    hands_over("legal", "a mistake"),
                    [PAYS, calls("ponder", {"until": "thanks"})],
                    says("It is paid."),
                ],
                "Thanks.": [says(f"This is {UNWANTED}.")],
                "By mail, please.": [hands_over("triage", "by mail", channel_escalation="email")],
            },
        ),
        outside.agent("watcher", defaultdict(lambda: [repeats])),
    ]


LINE = Talk(
    ("ann:service", "triage", "billing", "watcher", "dana:human"),
    {"router": LINE_ROUTER.to_dict()},
    on_a_line,
    (
        Cue(happens(EV_CHANNEL_OPENED), "ann", texts("Is it Monday?")),
        Cue(speaks("watcher"), "ann", texts("Hello.", transport="email", intent="hello")),
        Cue(speaks("watcher"), "ann", texts("Pay me.", intent="hello"), nth=2),
        Cue(begins("billing", "ponder"), "ann", texts("Thanks."), opens="thanks"),
        Cue(speaks("watcher"), "ann", texts("By mail, please."), nth=4),
        Cue(speaks("watcher"), "ann", closes, nth=5),
    ),
    ("sms", "email"),
    flaky=True,
    moves=2,
    replies=(("email", "email:ann", "triage"), ("sms", "sms:ann", "billing"), ("email", "email:ann", "triage")),
)

TALKS = {"desk": DESK, "line": LINE}


class ConversationLife:
    """One process in which a conversation goes on, from what the log shows to its end."""

    def __init__(self, talk: Talk, outside: Outside, store: Mortal, clock: ManualClock) -> None:
        self._talk, self._outside, self._store, self._clock = talk, outside, store, clock
        self._seen: Counter[int] = Counter()
        self._acts: list[asyncio.Future[object]] = []
        self._seated: dict[str, Participant] = {}

    async def lived(self) -> list[Envelope]:
        """Play to the end; the log then."""
        self._outside.gates.clear()
        hub = await Hub.over(self._store, clock=self._clock)
        for name in self._talk.transports:
            hub.transport(name, send=self._outside.take)
        for name, kind in self._talk.people.items():
            self._seated[name] = await hub.register(name, kind=kind)
        channel_id, cursor = await self._begun(hub)
        async with aclosing(hub.subscribe(channel_id, after=cursor)) as envelopes:
            async for envelope in envelopes:
                await self._heed(envelope)
        await asyncio.gather(*self._acts)
        await self._let_replies_leave(hub, channel_id)
        log = await hub.log(channel_id)
        await hub.close()
        return log

    async def _begun(self, hub: Hub) -> tuple[str, int]:
        """The channel, and how far its log was read. What a log asks for is done before any agent goes on."""
        rows = await hub.channels()
        log = await hub.log(rows[0].channel_id) if rows else []
        for envelope in log:
            await self._heed(envelope)
        for agent in self._talk.cast(self._outside):
            await hub.register(agent)
        if rows:
            return rows[0].channel_id, len(log)
        first, *others = (seat.partition(":")[0] for seat in self._talk.seats)
        channel = await self._seated[first].open(type="routed", target=others, knobs=self._talk.knobs)
        return channel.channel_id, 0

    async def _heed(self, envelope: Envelope) -> None:
        for place, cue in enumerate(self._talk.cues):
            if not cue.sees(envelope):
                continue
            self._seen[place] += 1
            if self._seen[place] == cue.nth:
                if cue.does is not None:
                    await self._act(partial(cue.does, await self._seated[cue.who].channel(envelope.channel_id)))
                if cue.opens:
                    self._outside.gates[cue.opens].set()

    async def _act(self, does: Callable[[], Awaitable[object]]) -> None:
        act = asyncio.ensure_future(does())
        act.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever dies asks no more
        self._acts.append(act)
        await act

    async def _let_replies_leave(self, hub: Hub, channel_id: str) -> None:
        live = await hub.core.live(channel_id)
        for passed in count():
            if passed > LONGEST_PAUSE or not any(each.pending for each in conversation_memory(live).outbox.values()):
                return
            await self._clock.advance(1.0)
            await self._store.mark(channel_id)  # time passes no faster than a file is written
            await let_others_run(20)


async def conversed(talk: Talk, outside: Outside, store: Mortal, clock: ManualClock) -> list[Envelope]:
    """One life; `Died` if it ends before the conversation does."""
    asyncio.get_running_loop().set_exception_handler(pass_over_death)
    return await until_death(ConversationLife(talk, outside, store, clock).lived(), store)


def pass_over_death(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nobody is left to see what ended a delivery."""
    if not isinstance(context.get("exception"), Died):
        loop.default_exception_handler(context)


def replies_in(log: Sequence[Envelope]) -> list[Envelope]:
    """What leaves by a transport, in order."""
    return [
        each
        for each in log
        if each.event_data.get(RECIPIENT_FIELD) is not None
        and (each.event_data.get("body") if each.event_type == EV_PACKET else each.event_data.get("text"))
    ]
