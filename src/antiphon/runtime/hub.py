"""The hub a user opens: a store, the admission to its channels, and its registered participants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TypeVar, Unpack, cast, get_args

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Model
from antiphon.core.approval_rules import Approval
from antiphon.core.envelope import HUB, Envelope, check_name
from antiphon.core.errors import Denied, UsageError
from antiphon.core.state import ChannelStatus
from antiphon.core.text import describe
from antiphon.engines.engine import DEFAULT_RESUME_LIMIT, Engine, ResumeLimit
from antiphon.hub.clock import Clock, SystemClock
from antiphon.hub.feed import Signal
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.orchestration.router import RouterHook
from antiphon.runtime.approvals import approvals_of
from antiphon.runtime.arguments import check_cursor, private_copy
from antiphon.runtime.channel import EnvelopeBuilder
from antiphon.runtime.channel_lifecycle import Erasure, erase_channel
from antiphon.runtime.core import Accept, HubCore
from antiphon.runtime.delegation import DelegatedTasks
from antiphon.runtime.hooks import HookExecution, HookOptions, HookTrigger
from antiphon.runtime.outbox import TransportOptions
from antiphon.runtime.participant import Participant, register_participant
from antiphon.runtime.saga_approvals import check_nothing_owed
from antiphon.runtime.subscriptions import follow_channel, follow_signals
from antiphon.store.paging import all_channel_rows, all_envelopes, log_page_reader
from antiphon.store.protocol import ChannelRow, Store
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX
from antiphon.store.urls import open_store

F = TypeVar("F")

CHANNEL_STATUSES: tuple[str, ...] = get_args(ChannelStatus)


def _check_engine(engine: object) -> Engine | None:
    if engine is None or hasattr(engine, "submit"):
        return cast(Engine | None, engine)
    raise UsageError(f"no engine is called {describe(engine)}; give 'local', an engine, or None to admit only")


class HubOpening:
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
    return f"<Hub with {len(hub.core.acceptors)} registered>"


async def erase(hub: Hub, channel_id: str, *, by: str = HUB) -> Erasure:
    """Erase the content of a channel that has ended, and of the tasks given from it. This cannot be undone.

    Tombstones stay, with sequence, time and type, and the hash chain still holds. `by` is recorded in the audit
    channel. Erasing twice is fine. `Denied` with the reason `channel_open` if the channel has not ended, or if the
    calls of its run are not undone yet.
    """
    await check_nothing_owed(hub.core, channel_id)
    return await erase_channel(hub.core, channel_id, by=by)


def hook(
    hub: Hub,
    trigger: HookTrigger,
    *,
    execution: HookExecution = HookExecution.ASYNC,
    priority: int = 0,
    required: bool = False,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """A decorator that has a function called with a `HookEvent` whenever the trigger fires in this hub.

    Lower priorities run first. `timeout` is in seconds: 5 for `BEFORE_BROADCAST`, else 30, if not given. `required`
    blocks what a `BEFORE_BROADCAST` hook fails over. `router.as_hook()` in place of a function sets the router of
    routed channels that bring none.
    """
    core = hub.core
    core.check_open()
    options = HookOptions(trigger, execution, priority, required, timeout)
    options.check()

    def register(function: F) -> F:
        if isinstance(function, RouterHook):
            if trigger is not HookTrigger.BEFORE_BROADCAST:
                raise UsageError(f"a router cannot be a hook for {trigger.name}; use HookTrigger.BEFORE_BROADCAST")
            core.conversation_defaults.router = function.router.to_dict()
        else:
            core.hooks.add(options.registered(function))
        return function

    return register


def transport(hub: Hub, name: str, **options: Unpack[TransportOptions]) -> None:
    """Register a transport by which messages come in and replies of routed channels leave.

    `send` is an async function of an `OutboundReply`; `receive` gives an iterator of `InboundMessage`; `channel` opens
    or finds the channel of a message; `inbound` reads the requests to the server's endpoint. See `TransportOptions`.
    """
    hub.core.check_open()
    hub.core.transports.register(name, options)


def fallback_model(hub: Hub, name: str, model: Model) -> None:
    """Make a model available by name to guards that choose another one, as `CircuitBreaker(fallback={"model": name})`.

    Models of providers need not be added: `openai:gpt-5-mini` is known by its name.
    """
    hub.core.check_open()
    hub.core.models.add(name, model)


class Hub(msgspec.Struct, eq=False, weakref=True):
    """Registers participants, opens channels, and lets nothing acknowledged be lost."""

    core: HubCore
    """The inside of the hub: the port of `server` and `cli`. Programs use the methods of `Hub`."""

    __repr__ = _hub_repr
    erase = erase
    hook = hook
    transport = transport
    fallback_model = fallback_model

    @classmethod
    def open(
        cls,
        url: str = "memory:",
        *,
        engine: str | Engine | None = "local",
        clock: Clock | None = None,
        tenant: str = "default",
        resume_at_once: int = DEFAULT_RESUME_LIMIT,
    ) -> HubOpening:
        """Open the hub of a store: `memory:`, `sqlite:///team.db` or `sqlite:////var/lib/team.db`.

        Opening on an existing store continues where it stopped. A store that cannot be used is an error; there is no
        falling back to another. While turns that were owed are resumed, at most `resume_at_once` ask their models.
        """
        if engine != "local":
            _check_engine(engine)
        check_name(tenant)
        used = clock or SystemClock()
        ResumeLimit(used, resume_at_once)  # refused before anything is opened

        async def start() -> Hub:
            store = await open_store(url, tenant=tenant, clock=used)
            return await cls.over(store, clock=used, engine=engine, resume_at_once=resume_at_once)

        return HubOpening(start)

    @classmethod
    async def over(
        cls,
        store: Store,
        *,
        clock: Clock | None = None,
        engine: str | Engine | None = "local",
        resume_at_once: int = DEFAULT_RESUME_LIMIT,
    ) -> Hub:
        """A hub over a store that is open already. The hub closes it, and stops the engine."""
        used = clock or SystemClock()
        KNOWN_SECRETS.know_environment()
        if engine == "local":
            from antiphon.engines.local import LocalEngine  # here: a hub that only looks at a store does not load it

            engine = LocalEngine(store, used)
        runs = _check_engine(engine)
        hub = cls(HubCore(store, used, runs, limit=ResumeLimit(used, resume_at_once)))
        try:
            await hub.hydrate()
        except BaseException:
            await store.close()
            raise
        return hub

    async def hydrate(self) -> None:
        """Take up what the store holds. Opening does this; doing it again changes nothing."""
        await self.core.open(DelegatedTasks(self.core))

    async def close(self) -> None:
        """Finish what is being recorded, end every subscription, and close the store."""
        await self.core.close()

    async def register(
        self,
        who: str | Declaration,
        *,
        kind: str | None = None,
        accept: Accept | None = None,
        roles: Sequence[str] | None = None,
    ) -> Participant:
        """Register a participant under a name, or attach to the one the store knows by it. An agent's turns run here.

        An `Agent` whose name is an agent's here already replaces its definition, from the agent's next turn. Any other
        name that is registered in this hub is a `UsageError`.

        `accept` decides on each invitation; without it all are accepted. `roles` are those of a person, by which
        approvers are named; without them a person keeps those that the store knows.
        """
        return await register_participant(self.core, who, kind=kind, accept=accept, roles=roles)

    async def post(self, envelope: Envelope) -> Envelope:
        """Record a hand-built envelope. Its sender must be registered here; the hub stamps it."""
        if not isinstance(envelope, Envelope):
            raise UsageError(f"post takes an Envelope, not the {type(envelope).__name__} {describe(envelope)}")
        core, sender = self.core, envelope.sender_id
        live = await core.live(envelope.channel_id)
        if envelope.envelope_id:
            denied = Denied("forged_id", envelope.channel_id, "only the hub gives envelopes their ids")
        elif not isinstance(sender, str) or sender not in core.acceptors:
            denied = Denied(
                "not_a_participant", envelope.channel_id, f"{describe(sender)} is not registered in this hub"
            )
        else:
            audience = list(envelope.audience) if type(envelope.audience) is list else envelope.audience
            data = private_copy(envelope.event_data)
            return await core.admit(live, replace(envelope, envelope_id="", audience=audience, event_data=data))
        raise await core.audit.refusal(denied, envelope)

    def adapter_for(self, channel_id: str) -> EnvelopeBuilder:
        """What builds envelopes for a channel that is in use here, as its type of channel expects them."""
        self.core.check_open()
        live = self.core.channels.loaded(channel_id) if isinstance(channel_id, str) else None
        if live is None:
            advice = "hold it with participant.channel(…) first"
            raise UsageError(f"channel {describe(channel_id)} is not in use here; {advice}")
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
            raise UsageError(f"max_lag is {describe(max_lag)}; give a number of envelopes, or None for no limit")
        live = await self.core.live(channel_id, participant)
        async for envelope in follow_channel(self.core, live, reader=participant, after=after, max_lag=max_lag):
            yield envelope

    async def signals(self, channel_id: str, *, participant: str | None = None) -> AsyncIterator[Signal]:
        """Pieces of text as models speak in a channel, from now on, until it ends. They are not recorded.

        With `participant` only what that participant may hear; without, the operator's view.
        """
        live = await self.core.live(channel_id, participant)
        async for signal in follow_signals(self.core, live, reader=participant):
            yield signal

    async def channels(
        self, status: str | None = None, participant: str | None = None, *, system: bool = False
    ) -> list[ChannelRow]:
        """The channels of the store; the hub's own only with `system=True`."""
        self.core.check_open()
        if status is not None and status not in CHANNEL_STATUSES:
            raise UsageError(f"no status is called {describe(status)}; there are: {', '.join(CHANNEL_STATUSES)}")
        rows = await all_channel_rows(self.core.store, status=status, participant=participant)
        return [row for row in rows if system or not row.channel_id.startswith(SYSTEM_CHANNEL_PREFIX)]

    async def log(self, channel_id: str, after: int = 0) -> list[Envelope]:
        """The operator's view of a channel: every envelope behind `after`, in order of admission."""
        check_cursor(after)
        await self.core.check_exists(channel_id)
        return [each async for each in all_envelopes(log_page_reader(self.core.store, channel_id), after)]

    async def approvals(self, channel_id: str | None = None) -> list[Approval]:
        """What waits for a person, oldest first: calls that need approval, calls in doubt and suspended turns.

        It lists one channel or all.

        A person decides about each with `participant.decide(approval.approval_id, …)`.
        """
        return await approvals_of(self.core, channel_id)
