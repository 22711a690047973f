"""A desk: a hub, the people and agents at it, and routed conversations as those in them see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    Channel,
    ConversationRouter,
    ConversationState,
    Envelope,
    Hub,
    Participant,
    Reply,
    Request,
    RoutingConditions,
    RoutingRule,
    ScriptedModel,
    calls,
    get_conversation_state,
    says,
)
from antiphon.core.envelope import Json
from antiphon.orchestration.predicates import PREDICATES
from antiphon.testing import ManualClock
from tests.support.gated_store import GatedStore
from tests.support.waiting import let_others_run, soon, wait_until

ASSIGNED, FAILED = "antiphon.turn.assigned", "antiphon.turn.failed"
MOVED, REFUSED = "antiphon.conversation.moved", "antiphon.conversation.refused"
RELEASED, UNROUTED = "antiphon.conversation.released", "antiphon.conversation.unrouted"
RULE_FAILED, WARNED = "antiphon.rule.failed", "antiphon.graph.warned"
OPERATORS = "hub:operators"

TO_TRIAGE = ConversationRouter(default_agent_id="triage")
"""Every message is answered by triage, until triage hands over."""


def rule(agent: str, priority: int = 0, **conditions: object) -> RoutingRule:
    return RoutingRule(agent, RoutingConditions(**conditions), priority)  # type: ignore[arg-type]


def hand_over(target: str, summary: str = "S", reason: str = "r", **further: str) -> object:
    """What a model says to hand the conversation over."""
    return calls("handoff_conversation", {"target": target, "reason": reason, "summary": summary, **further})


def texts(request: Request) -> list[str]:
    """What a model was shown, without who said it."""
    return [message.text for message in request.messages]


class Echo:
    """A model that answers each message with its own name and the last thing a person said, and keeps the requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        return says(f"{self.name} on {texts(request)[-1].split(': ', 1)[-1]}")


class Slow:
    """An entry of a script that is given when the test says so."""

    def __init__(self, outcome: object = "Done.") -> None:
        self._outcome = outcome
        self._begun, self._go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: Request) -> object:
        self._begun.set()
        await self._go_on.wait()
        return self._outcome

    async def begun(self) -> None:
        """Return when a model is asked for it."""
        await soon(self._begun.wait())

    def go_on(self) -> None:
        self._go_on.set()


class Conversation:
    """A routed channel, and what its log holds."""

    def __init__(self, desk: Desk, channel: Channel) -> None:
        self._desk, self.channel = desk, channel
        self.channel_id = channel.channel_id

    @property
    def state(self) -> ConversationState:
        return get_conversation_state(self.channel)

    async def held_by(self, name: str) -> Channel:
        return await self._desk.people[name].channel(self.channel_id)

    async def say(self, text: str, by: str = "ann", **options: object) -> Envelope:
        """Say something, and wait for nothing."""
        return await (await self.held_by(by)).send(text, **options)  # type: ignore[arg-type]

    async def ask(self, text: str, by: str = "ann", **options: object) -> list[tuple[str, str]]:
        """Say something; what agents have said when all is answered."""
        before = (await self.say(text, by, **options)).sequence
        await self.settled()
        return [pair for pair in await self.answers(after=before) if pair[1]]

    async def settled(self) -> None:
        """Return when no agent owes a turn. A message that has one and its turn are recorded together."""
        await wait_until(lambda: not self.channel._live.state.owed)

    async def release(self, by: str, to: str | None = None) -> None:
        await (await self.held_by(by)).release(to=to)

    async def log(self, *types: str) -> list[Envelope]:
        log = await self._desk.hub.log(self.channel_id)
        return [each for each in log if each.event_type in types] if types else log

    async def facts(self, event_type: str) -> list[Json]:
        """The data of the envelopes of a type."""
        return [each.event_data for each in await self.log(event_type)]

    async def answers(self, after: int = 0) -> list[tuple[str, str]]:
        """What agents have said, with the agent, in order; "" where a packet only hands over."""
        packets = [each for each in await self.log(EV_PACKET) if each.sequence > after]
        return [(each.sender_id, str(each.event_data["body"])) for each in packets]

    async def said(self) -> list[tuple[str, str]]:
        """All that was said, in order."""
        return [(each.sender_id, words(each)) for each in await self.log(EV_TEXT, EV_PACKET)]

    async def assigned(self) -> list[tuple[str, str]]:
        """The turns: to whom, and why."""
        return [(each["speakers"][0], str(each["reason"])) for each in await self.facts(ASSIGNED)]  # type: ignore[index]

    async def warnings(self) -> list[tuple[str, str]]:
        """Codes and messages of what was found when the channel was opened."""
        found = [each for data in await self.facts(WARNED) for each in data["findings"]]  # type: ignore[attr-defined]
        return [(str(each["code"]), str(each["message"])) for each in found]

    async def seen_by(self, name: str) -> list[tuple[str, str]]:
        """What was said so far, as a participant sees it."""
        mark = await self.channel.post("desk.mark", {})
        seen = []
        async for envelope in self._desk.hub.subscribe(self.channel_id, participant=name, after=0):
            if envelope.envelope_id == mark.envelope_id:
                return [(each.sender_id, words(each)) for each in seen if each.event_type in (EV_TEXT, EV_PACKET)]
            seen.append(envelope)
        raise AssertionError(f"{name} does not see what is said to all")

    def batches(self) -> list[list[Envelope]]:
        """What was recorded together."""
        assert self._desk.store is not None, "only a desk in memory remembers that"
        return [batch for name, batch in self._desk.store.appends if name == self.channel_id]


class Desk:
    """A hub with people and agents, and its clock, which stands until it is moved."""

    def __init__(self, hub: Hub, clock: ManualClock, store: GatedStore | None = None) -> None:
        self.hub, self.clock, self.store = hub, clock, store
        self.people: dict[str, Participant] = {}
        self.models: dict[str, Echo] = {}
        """Those of the agents that answer everything."""

    async def join(self, *names: str) -> None:
        """Register services of these names; `name:kind` for another kind."""
        for each in names:
            name, _, kind = each.partition(":")
            self.people[name] = await self.hub.register(name, kind=kind or "service")

    async def agent(self, name: str, *script: object, by: str = "order", **options: object) -> ScriptedModel:
        """Register an agent whose model answers by this script."""
        model = ScriptedModel(script, by=by)  # type: ignore[arg-type]
        await self.hire(Agent(name, model=model, **options))  # type: ignore[arg-type]
        return model

    async def echoes(self, *names: str) -> dict[str, Echo]:
        """Register agents that answer everything; their models."""
        models = {name: Echo(name) for name in names}
        self.models |= models
        for name, model in models.items():
            await self.hire(Agent(name, model=model))
        return models

    async def hire(self, agent: Agent) -> None:
        self.people[agent.name] = await self.hub.register(agent)

    async def open(
        self, router: ConversationRouter, *others: str, creator: str = "ann", handoff: object = None, **options: object
    ) -> Conversation:
        """A conversation that the creator opens with others. What is no option of `open` is a knob."""
        given = {name: options.pop(name) for name in ("key", "say", "context_vars") if name in options}
        knobs = {"router": router.to_dict(), **({} if handoff is None else {"handoff": handoff}), **options}
        channel = await self.people[creator].open(type="routed", target=list(others), knobs=knobs, **given)  # type: ignore[arg-type]
        return Conversation(self, channel)

    async def again(self, channel_id: str, by: str = "ann") -> Conversation:
        """A conversation that was opened before."""
        return Conversation(self, await self.people[by].channel(channel_id))


def words(envelope: Envelope) -> str:
    """What is said in a text or a packet."""
    return str(envelope.event_data.get("text", envelope.event_data.get("body")))


@asynccontextmanager
async def a_desk(*names: str, url: str = "", clock: ManualClock | None = None) -> AsyncIterator[Desk]:
    """A desk with these people, in memory or in the store of this URL."""
    clock = clock or ManualClock()
    store = None if url else GatedStore(clock)
    hub = await (Hub.open(url, clock=clock) if store is None else Hub.over(store, clock=clock))
    desk = Desk(hub, clock, store)
    try:
        await desk.join(*names)
        yield desk
    finally:
        await soon(hub.close())


@contextmanager
def own_predicates() -> Iterator[None]:
    """Predicates that are registered inside are gone after it."""
    known = dict(PREDICATES._known)
    try:
        yield
    finally:
        PREDICATES._known.clear()
        PREDICATES._known.update(known)


async def all_done() -> None:
    """Let everything that can happen by itself happen."""
    await let_others_run(200)
