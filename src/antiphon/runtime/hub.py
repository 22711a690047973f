"""The hub a user opens: a store, the admission to its channels, and whoever is registered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from importlib import import_module
from types import TracebackType
from typing import cast, get_args

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.tasks import Delegates
from antiphon.core.envelope import HUB, Envelope
from antiphon.core.errors import BadName, Denied, UnknownChannel, UsageError
from antiphon.core.ids import check_name
from antiphon.core.state import Status
from antiphon.core.words import shown
from antiphon.engines.place import local_engine
from antiphon.engines.protocol import Engine
from antiphon.engines.resuming import RESUME_AT_ONCE, ResumeLimit
from antiphon.hub.clock import Clock, SystemClock
from antiphon.hub.directory import Listing
from antiphon.hub.feed import Signal
from antiphon.hub.redacting import KNOWN
from antiphon.runtime.approvals import Approval, approvals_of
from antiphon.runtime.builder import EnvelopeBuilder
from antiphon.runtime.channel import private
from antiphon.runtime.desk import Desk
from antiphon.runtime.erasing import Erasure, erase_channel
from antiphon.runtime.invitations import Accept
from antiphon.runtime.modelling import check_models, close_replaced
from antiphon.runtime.participant import Participant
from antiphon.runtime.reading import follow, overhear
from antiphon.store.protocol import ChannelRow, Store
from antiphon.store.rows import SYSTEM
from antiphon.store.urls import open_store

PAGE = 1000
NAME = "name:"
"""How the key of a lock begins by which an agent is registered."""
STATUSES: tuple[str, ...] = get_args(Status)


def _checked(engine: object) -> Engine | None:
    if engine is None or hasattr(engine, "submit"):
        return cast(Engine | None, engine)
    raise UsageError(f"no engine is called {shown(engine)}; give 'local', an engine, or None to admit only")


def check_cursor(after: object) -> None:
    """Refuse what is no place in a log."""
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:
        raise UsageError(f"after is {shown(after)}; give a sequence, or 0 for the beginning")


def tasks_of(hub: Hub) -> Delegates:
    """What has tasks done in a hub. It is loaded here, because it needs the hub itself."""
    module = import_module("antiphon.runtime.tasks")
    tasks: Delegates = module.Tasks(hub)
    return tasks


class Opening:
    """A hub about to be opened: await it, or enter it with `async with`, which also closes it."""

    def __init__(self, start: Callable[[], Coroutine[None, None, Hub]]) -> None:
        self._start = start
        self._hub: Hub | None = None

    def __await__(self) -> Generator[None, None, Hub]:
        return self._start().__await__()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"the hub is not open yet: await Hub.open(…), or use `async with`, before .{name}")

    async def __aenter__(self) -> Hub:
        self._hub = await self._start()
        return self._hub

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hub is not None:
            await self._hub.close()


def _hub_repr(hub: object) -> str:
    """A hub in one line."""
    assert isinstance(hub, Hub), "it is a method of Hub"
    return f"<Hub with {len(hub._desk.acceptors)} registered>"


async def erase(hub: Hub, channel_id: str, *, by: str = HUB) -> Erasure:
    """Erase the content of a channel that has ended, and of the tasks given from it. This cannot be undone.

    Tombstones stay, with sequence, time and type, and the hash chain still holds. `by` is recorded in the audit
    channel. Erasing twice is fine. `Denied` with the reason `channel_open` if the channel has not ended.
    """
    return await erase_channel(hub._desk, channel_id, by=by)


class Hub(msgspec.Struct, eq=False, weakref=True):
    """Registers participants, opens channels, and lets nothing acknowledged be lost."""

    _desk: Desk

    __repr__ = _hub_repr
    erase = erase

    @classmethod
    def open(
        cls,
        url: str = "memory:",
        *,
        engine: str | Engine | None = "local",
        clock: Clock | None = None,
        tenant: str = "default",
        resume_at_once: int = RESUME_AT_ONCE,
    ) -> Opening:
        """Open the hub of a store: `memory:`, `sqlite:///team.db` or `sqlite:////var/lib/team.db`.

        Opening on an existing store continues where it stopped. A store that cannot be used is an error; there is no
        falling back to another. While turns that were owed are resumed, at most `resume_at_once` ask their models.
        """
        if engine != "local":
            _checked(engine)
        check_name(tenant)
        used = clock or SystemClock()
        ResumeLimit(used, resume_at_once)  # refused before anything is opened

        async def start() -> Hub:
            store = await open_store(url, tenant=tenant, clock=used)
            return await cls.over(store, clock=used, engine=engine, resume_at_once=resume_at_once)

        return Opening(start)

    @classmethod
    async def over(
        cls,
        store: Store,
        *,
        clock: Clock | None = None,
        engine: str | Engine | None = "local",
        resume_at_once: int = RESUME_AT_ONCE,
    ) -> Hub:
        """A hub over a store that is open already. The hub closes it, and stops the engine."""
        used = clock or SystemClock()
        KNOWN.know_environment()
        runs = local_engine(store, used) if engine == "local" else _checked(engine)
        hub = cls(Desk(store, used, runs, limit=ResumeLimit(used, resume_at_once)))
        try:
            await hub.hydrate()
        except BaseException:
            await store.close()
            raise
        return hub

    async def hydrate(self) -> None:
        """Take up what the store holds. Opening does this; doing it again changes nothing."""
        await self._desk.open(tasks_of(self))

    async def close(self) -> None:
        """Finish what is being recorded, end every subscription, and let go of the store."""
        await self._desk.close()

    async def register(
        self, who: str | Declaration, *, kind: str | None = None, accept: Accept | None = None
    ) -> Participant:
        """Register somebody under a name, or attach to the one the store knows by it. An agent's turns run here.

        An `Agent` whose name is an agent's here already replaces its definition, from the agent's next turn. Any other
        name that is registered in this hub is a `UsageError`.

        `accept` decides on each invitation; without it all are accepted.
        """
        if not isinstance(who, str | Declaration):
            raise BadName(f"{shown(who)} is no name; give a name, or an Agent")
        if isinstance(who, str):
            return await self._register(who, "service" if kind is None else kind, accept)
        if kind not in (None, "agent"):
            raise UsageError(f"{who.name!r} is an agent, not of kind {shown(kind)}")
        check_models(who)
        desk = self._desk
        async with desk.locks.setdefault(f"{NAME}{who.name.lower()}", asyncio.Lock()):
            again = who.name in desk.agents
            participant = await self._register(who.name, "agent", accept, again=again)
            replaced = desk.definitions.hold(who)
        if replaced is not None:
            desk.spawn(close_replaced(desk.definitions, replaced), f"closing replaced models of {who.name}")
        if desk.engine is not None and not again:
            desk.spawn(desk.dispatch.find_owed(who.name, desk.clock), f"turns of {who.name}")
        return participant

    async def _register(self, who: str, kind: str, accept: Accept | None, *, again: bool = False) -> Participant:
        desk = self._desk
        desk.check_open()
        check_name(who)
        if accept is not None and not callable(accept):
            raise UsageError(f"accept is {shown(accept)}; give a function of the invitation")
        seated = desk.seated.get(who.lower())
        if seated == who and not again:
            raise UsageError(f"{who!r} is registered in this hub already")
        if seated not in (None, who):
            raise BadName(f"{who!r} differs from {seated!r} only in case")
        desk.seated[who.lower()] = who
        try:
            await desk.directory.register(Listing(who, kind, asks=accept is not None))
            desk.acceptors[who] = accept
            await self._ask_again(who)
        except BaseException:
            if not again:
                del desk.seated[who.lower()]
                desk.acceptors.pop(who, None)
            raise
        return Participant(desk, who, kind)

    async def post(self, envelope: Envelope) -> Envelope:
        """Record a hand-built envelope. Its sender must be registered here; the hub stamps it."""
        if not isinstance(envelope, Envelope):
            raise UsageError(f"post takes an Envelope, not the {type(envelope).__name__} {shown(envelope)}")
        desk, sender = self._desk, envelope.sender_id
        live = await desk.live(envelope.channel_id)
        if envelope.envelope_id:
            denied = Denied("forged_id", envelope.channel_id, "only the hub gives envelopes their ids")
            raise await desk.audit.refusal(denied, envelope)
        if not isinstance(sender, str) or sender not in desk.acceptors:
            denied = Denied("not_a_participant", envelope.channel_id, f"{shown(sender)} is not registered in this hub")
            raise await desk.audit.refusal(denied, envelope)
        draft = Envelope(
            "",
            envelope.channel_id,
            sender,
            list(envelope.audience) if type(envelope.audience) is list else envelope.audience,
            envelope.event_type,
            private(envelope.event_data),
            envelope.causation_id,
            envelope.priority,
            envelope.created_at,
            envelope.sequence,
        )
        return await desk.admit(live, draft)

    def adapter_for(self, channel_id: str) -> EnvelopeBuilder:
        """What builds envelopes for a channel that is in use here, as its type of channel expects them."""
        self._desk.check_open()
        live = self._desk.channels.loaded(channel_id) if isinstance(channel_id, str) else None
        if live is None:
            advice = "hold it with participant.channel(…) first"
            raise UsageError(f"channel {shown(channel_id)} is not in use here; {advice}")
        return EnvelopeBuilder(live)

    async def subscribe(
        self, channel_id: str, *, participant: str | None = None, after: int = 0, max_lag: int | None = None
    ) -> AsyncIterator[Envelope]:
        """Everything in a channel behind `after`, then what comes, until it ends. Moves no cursor.

        With `participant` only what that participant may see; without, the operator's view. A reader that allows
        itself a `max_lag` is cut off with `SlowConsumer`, whose cursor it resumes from.
        """
        check_cursor(after)
        if max_lag is not None and (type(max_lag) is not int or max_lag < 0):
            raise UsageError(f"max_lag is {shown(max_lag)}; give a number of envelopes, or None for no limit")
        live = await self._desk.live(channel_id)
        if participant is not None and participant not in live.state.participant_order:
            raise UnknownChannel(channel_id)
        async for envelope in follow(self._desk, live, reader=participant, after=after, max_lag=max_lag):
            yield envelope

    async def signals(self, channel_id: str, *, participant: str | None = None) -> AsyncIterator[Signal]:
        """Pieces of text as models speak in a channel, from now on, until it ends. They are not recorded.

        With `participant` only what that participant may hear; without, the operator's view.
        """
        live = await self._desk.live(channel_id)
        if participant is not None and participant not in live.state.participant_order:
            raise UnknownChannel(channel_id)
        async for signal in overhear(self._desk, live, reader=participant):
            yield signal

    async def channels(
        self, status: str | None = None, participant: str | None = None, *, system: bool = False
    ) -> list[ChannelRow]:
        """The channels of the store; the hub's own only with `system=True`."""
        self._desk.check_open()
        if status is not None and status not in STATUSES:
            raise UsageError(f"no status is called {shown(status)}; there are: {', '.join(STATUSES)}")
        rows: list[ChannelRow] = []
        after = ""
        while page := await self._desk.store.channels(status=status, participant=participant, after=after, limit=PAGE):
            rows.extend(row for row in page if system or not row.channel_id.startswith(SYSTEM))
            after = page[-1].channel_id
        return rows

    async def log(self, channel_id: str, after: int = 0) -> list[Envelope]:
        """The operator's view of a channel: every envelope behind `after`, in order of admission."""
        check_cursor(after)
        await self._desk.check_exists(channel_id)
        found: list[Envelope] = []
        while page := (await self._desk.store.read(channel_id, after=after)).envelopes:
            found.extend(page)
            after = page[-1].sequence
        return found

    async def approvals(self, channel_id: str | None = None) -> list[Approval]:
        """What waits for a person: calls in doubt and suspended turns, of one channel or of all.

        A person decides about each with `participant.decide(approval.approval_id, …)`.
        """
        return await approvals_of(self._desk, channel_id)

    async def _ask_again(self, name: str) -> None:
        """Put invitations to a participant that could not be reached before it was registered here."""
        for row in await self.channels(status="invited", participant=name):
            self._desk.spawn(self._ask(row.channel_id, name), f"invitation of {name} to {row.channel_id}")

    async def _ask(self, channel_id: str, name: str) -> None:
        await self._desk.ask(await self._desk.live(channel_id), name)
