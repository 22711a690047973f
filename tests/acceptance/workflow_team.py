"""A team in a hub of its own, and a workflow channel as everybody in it holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from antiphon import (
    EV_PACKET,
    EV_TEXT,
    Agent,
    AgentTarget,
    Channel,
    Envelope,
    FromSpeaker,
    Hub,
    Participant,
    ScriptedModel,
    State,
    Transition,
    TransitionGraph,
)
from antiphon.testing import ManualClock
from tests.support.gated_store import GatedStore
from tests.support.waiting import let_others_run, soon

ASSIGNED, FAILED = "antiphon.turn.assigned", "antiphon.turn.failed"
RULE_FAILED, WARNED = "antiphon.rule.failed", "antiphon.graph.warned"
OPERATORS = ["hub:operators"]


def rule(speaker: str, then: str) -> Transition:
    """After one, the other."""
    return Transition(FromSpeaker(speaker), AgentTarget(then))


class Workflow:
    """A workflow channel, and everybody in it."""

    def __init__(self, team: Team, channel: Channel) -> None:
        self._team, self.channel = team, channel
        self.channel_id = channel.channel_id

    @property
    def state(self) -> State:
        return self.channel.state

    @property
    def next(self) -> str | None:
        """Whose turn it is."""
        return self.channel.state.expected_next_speaker

    async def held_by(self, name: str) -> Channel:
        """The channel as somebody holds it."""
        return await self._team.people[name].channel(self.channel_id)

    async def say(self, who: str, text: str = "…", **options: object) -> Envelope:
        """Let somebody say something in plain words."""
        return await (await self.held_by(who)).send(text, **options)  # type: ignore[arg-type]

    async def hand_in(self, who: str, body: str = "…", **options: object) -> Envelope:
        """Let somebody hand in a whole turn, built by hand."""
        builder = self._team.hub.adapter_for(self.channel_id)
        return await self._team.hub.post(builder.build_packet_envelope(sender_id=who, body=body, **options))  # type: ignore[arg-type]

    async def walk(self, *names: str) -> list[str | None]:
        """Let these speak one after the other; whose turn it was after each."""
        found = []
        for name in names:
            await self.say(name)
            found.append(self.next)
        return found

    async def log(self, *types: str) -> list[Envelope]:
        """The log, or what there is of these types in it."""
        log = await self._team.hub.log(self.channel_id)
        return [each for each in log if each.event_type in types] if types else log

    async def said(self) -> list[tuple[str, object]]:
        """Who said what, in order."""
        spoken = await self.log(EV_TEXT, EV_PACKET)
        return [(each.sender_id, each.event_data.get("text", each.event_data.get("body"))) for each in spoken]

    async def assigned(self) -> list[object]:
        """Who was given the turn, in order."""
        return [each.event_data["speakers"] for each in await self.log(ASSIGNED)]

    async def packet_of(self, who: str) -> dict[str, object]:
        """The only packet that somebody has handed in."""
        [packet] = [each for each in await self.log(EV_PACKET) if each.sender_id == who]
        return packet.event_data

    async def routing_of(self, who: str) -> object:
        """How the only packet of somebody wants to go on."""
        return (await self.packet_of(who))["routing"]

    async def ended(self) -> str:
        """The reason for which the channel has ended."""
        return await soon(self.channel.closed())

    async def until(self, condition: Callable[[State], bool]) -> None:
        """Return when this is so; what never is, is a failure."""
        async with asyncio.timeout(5):
            while not condition(self.channel.state):
                await let_others_run(1)

    async def after(self, who: str) -> None:
        """Return when somebody was the last to take a turn."""
        await self.until(lambda state: state.last_speaker_id == who)

    async def comes_to(self, who: str) -> None:
        """Return when it is somebody's turn."""
        await self.until(lambda state: state.expected_next_speaker == who)

    async def warnings(self) -> list[object]:
        """The codes of what was found when the channel was opened."""
        found = [each.event_data["findings"] for each in await self.log(WARNED)]
        return [finding["code"] for findings in found for finding in findings]  # type: ignore[attr-defined]


class Team:
    """A hub, whoever is registered in it, and its clock, which stands until it is moved."""

    def __init__(self, hub: Hub, clock: ManualClock, store: GatedStore | None = None) -> None:
        self.hub, self.clock = hub, clock
        self._store = store
        self.people: dict[str, Participant] = {}

    async def join(self, *names: str) -> None:
        """Register code of these names; `name:kind` is somebody of another kind."""
        for each in names:
            name, _, kind = each.partition(":")
            self.people[name] = await self.hub.register(name, kind=kind or "service")

    async def agent(self, name: str, *script: object, **options: object) -> ScriptedModel:
        """Register an agent whose model answers by this script."""
        model = ScriptedModel(script)  # type: ignore[arg-type]
        await self.hire(Agent(name, model=model, **options))  # type: ignore[arg-type]
        return model

    async def hire(self, agent: Agent) -> None:
        self.people[agent.name] = await self.hub.register(agent)

    async def open(self, graph: TransitionGraph, creator: str, *others: str, **options: object) -> Workflow:
        """A workflow channel that somebody opens with others; what is no option of `open` is a knob."""
        given = {name: options.pop(name) for name in ("ttl", "context_vars") if name in options}
        knobs = {"graph": graph.to_dict(), **options}
        channel = await self.people[creator].open(type="workflow", target=list(others), knobs=knobs, **given)  # type: ignore[arg-type]
        return Workflow(self, channel)

    async def again(self, name: str, channel_id: str) -> Workflow:
        """A channel that was opened before."""
        return Workflow(self, await self.people[name].channel(channel_id))

    def batches(self, workflow: Workflow) -> list[list[tuple[str, str]]]:
        """What was recorded together, as pairs of sender and event type."""
        assert self._store is not None, "only a team in memory remembers that"
        recorded = (batch for name, batch in self._store.appends if name == workflow.channel_id)
        return [[(each.sender_id, each.event_type) for each in batch] for batch in recorded]


@asynccontextmanager
async def a_team(*names: str, url: str = "") -> AsyncIterator[Team]:
    """A team of these, in memory or in the store of this URL."""
    clock = ManualClock()
    store = None if url else GatedStore(clock)
    hub = await (Hub.open(url, clock=clock) if store is None else Hub.over(store, clock=clock))
    team = Team(hub, clock, store)
    try:
        await team.join(*names)
        yield team
    finally:
        await hub.close()


class Pause:
    """Something that has begun, and goes on when the test says so."""

    def __init__(self) -> None:
        self._begun, self._go_on = asyncio.Event(), asyncio.Event()

    async def here(self) -> None:
        """Stop here until it is let go."""
        self._begun.set()
        await self._go_on.wait()

    async def begun(self) -> None:
        """Wait until somebody has stopped here."""
        await soon(self._begun.wait())

    def go_on(self) -> None:
        self._go_on.set()
