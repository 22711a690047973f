"""A participant as the code that drives it holds it."""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TypedDict, Unpack

import msgspec

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import ChecksConfig
from antiphon.agents.state_changes import REGULATED, unprotected_complaint
from antiphon.core.envelope import Envelope, Json, check_name, spelling_advice
from antiphon.core.errors import BadName, RulesInvalid, UsageError
from antiphon.core.event_data import data_of
from antiphon.core.events import ChannelCreated, Seat
from antiphon.core.ruleset import Adapter, Expectation
from antiphon.core.text import describe
from antiphon.guards.named_guards import guards_to_data
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.hub.system_channels import ParticipantRecord
from antiphon.orchestration.catalogue import find_adapter
from antiphon.runtime.approvers import HUMAN_KIND
from antiphon.runtime.arguments import check_option_names, check_ttl, copy_context_vars, copy_knobs
from antiphon.runtime.channel import Channel
from antiphon.runtime.channel_lifecycle import TASK_KNOB, open_or_find_channel
from antiphon.runtime.core import Accept, HubCore
from antiphon.runtime.decisions import PersonDecision, decide_approval
from antiphon.runtime.invitations import resend_invitations
from antiphon.runtime.model_lifecycle import close_replaced
from antiphon.runtime.subscriptions import Inbox


class OpenOptions(TypedDict, total=False):
    """What may be said about a channel that is opened, beside its type and who takes part."""

    knobs: Json | None
    ttl: float | None
    """After how many seconds it expires; None for never."""
    context_vars: Json | None
    """The context variables it begins with."""
    say: str | None
    """What the creator says first, recorded in one batch with the opening."""
    key: str | None
    """Makes the call idempotent: opened again with the same key, the same channel is returned."""


class DecideOptions(TypedDict, total=False):
    """What may come with a decision."""

    reason: str
    """Why, for readers of the log; of a call that is rejected, the model reads it too."""
    text: str | None
    """What the call returned, or what the agent answers; for `respond`, which needs it."""
    args: Json | None
    """Other arguments, all of them, for a call that has not left yet; for `edit`, which needs them."""
    digest: str | None
    """The digest of what was looked at. If something else waits now, the decision is refused."""


class Participant:
    """A participant registered in this hub."""

    def __init__(self, core: HubCore, name: str, kind: str, *, may_run: bool = True) -> None:
        self._core, self.name, self.kind = core, name, kind
        self._may_run = may_run
        """Whether what this participant says and opens may give an agent a turn."""
        self._inbox = Inbox(core, name)

    def __repr__(self) -> str:
        return f"<Participant {self.name} ({self.kind})>"

    @property
    def agent_id(self) -> str:
        """The name, as envelopes carry it in `sender_id` and `audience`."""
        return self.name

    async def open(
        self,
        *,
        target: str | Sequence[str],
        type: str = "conversation",  # the public name
        **options: Unpack[OpenOptions],
    ) -> Channel:
        """Open a channel with others. Returns when all have accepted; `Denied` if one refuses or does not answer.

        The options are `knobs`, `ttl`, `context_vars`, `say` and `key`: see `OpenOptions`.
        """
        self._core.check_open()
        check_option_names(options, OpenOptions.__optional_keys__)
        knobs = options.get("knobs")
        created = ChannelCreated(
            type=type,
            creator=self.name,
            participants=self._seats_for(find_adapter(type), target),
            knobs=copy_knobs(_plain_knobs({} if knobs is None else knobs)),
            ordered=find_adapter(type).ordered,
            ttl=check_ttl(options.get("ttl")),
            context_vars=copy_context_vars(options.get("context_vars")),
        )
        _check_named_people(created)
        _check_state_changes(self._core, created)
        permitted = self._may_run
        live = await open_or_find_channel(
            self._core, created, say=options.get("say"), key=options.get("key"), may_run=permitted
        )
        return Channel(self._core, live, self.name, permitted)

    async def channel(self, channel_id: str) -> Channel:
        """A channel this participant is in. One it is not in does not exist for it."""
        return Channel(self._core, await self._core.live(channel_id, self.name), self.name, self._may_run)

    def inbox(self) -> AsyncIterator[Envelope]:
        """What is addressed to this participant in all its channels, from where it left off, for ever.

        An envelope is acknowledged when the next one is asked for; after a crash the last one comes again.
        """
        return self._inbox.read()

    async def pending(self) -> int:
        """How many envelopes in the inbox are not acknowledged yet."""
        return await self._inbox.pending()

    async def decide(self, approval_id: str, decision: str, **options: Unpack[DecideOptions]) -> None:
        """Decide what becomes of something that waits for a person: `approve`, `edit`, `reject` or `respond`.

        `approve` lets a call leave, or retries what is in doubt; `edit` lets it leave with other `args`; `respond`
        gives its result, or the agent's answer, as `text`; `reject` gives it up. `Denied` if this participant is no
        person (`not_a_person`), may not decide this (`not_an_approver`), or if it was decided before (`decided`).
        """
        check_option_names(options, DecideOptions.__optional_keys__)
        await decide_approval(
            self._core, approval_id, PersonDecision(decision, **options), by=self.name, kind=self.kind
        )

    def _seats_for(self, adapter: builtins.type[Adapter], target: str | Sequence[str]) -> list[Seat]:
        if not isinstance(target, str | list | tuple):
            raise UsageError(f"target is {describe(target)}; give a name or a list of names")
        names = [self.name, *([target] if isinstance(target, str) else target)]
        seats = [Seat(name, self._core.directory.find(name).kind) for name in names]
        _check_names_once(names)
        least, most = adapter.seats.least, adapter.seats.most
        if len(seats) < least or (most is not None and len(seats) > most):
            wanted = f"exactly {most}" if most == least else f"{least} to {most}" if most else f"at least {least}"
            raise RulesInvalid(f"{adapter.name!r} takes {wanted} participants, the creator included, not {len(seats)}")
        return seats


def _check_names_once(names: Sequence[str]) -> None:
    creator, *guests = names
    if creator in guests:
        raise UsageError(f"target names {creator!r}, who opens the channel and so takes part already")
    repeated = next((name for name, times in Counter(guests).items() if times > 1), None)
    if repeated is not None:
        raise UsageError(f"target names {repeated!r} twice; name everybody once")


WRITTEN_KNOBS = ("graph", "router", "handoff")
"""Knobs that may be given as an object that has a `to_dict`."""


def _plain_knobs(knobs: Json) -> Json:
    """The knobs with the graph, the router, the handoffs, guards and expectations as plain data."""
    if type(knobs) is dict and "guards" in knobs:
        knobs = {**knobs, "guards": guards_to_data(knobs["guards"])}
    for name in WRITTEN_KNOBS:
        written = getattr(knobs.get(name) if type(knobs) is dict else None, "to_dict", None)
        if callable(written):
            knobs = {**knobs, name: written()}
    wanted = knobs.get("expectations") if type(knobs) is dict else None
    if not isinstance(wanted, list | tuple):
        return knobs
    return {**knobs, "expectations": [data_of(each) if isinstance(each, Expectation) else each for each in wanted]}


def _check_named_people(created: ChannelCreated) -> None:
    """Refuse knobs that name a stranger to the channel: what they allow could never be done."""
    if TASK_KNOB in created.knobs:
        raise RulesInvalid(f"the knob {TASK_KNOB!r} is the hub's own; leave it out, and give tasks with delegate")
    people = {seat.name for seat in created.participants}
    writers = created.knobs.get("writers")
    named = {f"writers of {key!r}": names for key, names in writers.items()} if isinstance(writers, dict) else {}
    guards = created.knobs.get("guards")
    for guard in guards if isinstance(guards, list) else []:
        if isinstance(guard, dict) and guard.get("reroute_to") is not None:
            named[f"reroute_to of {guard.get('name')}"] = [guard["reroute_to"]]
    for knob, names in {"interjectors": created.knobs.get("interjectors"), **named}.items():
        for name in names if isinstance(names, list) else []:
            if isinstance(name, str) and name not in people:
                advice = spelling_advice(name, people)
                hint = f"; {advice}" if advice else ""
                raise RulesInvalid(f"{knob} names {describe(name)}, who is not in the channel{hint}")


def _check_state_changes(core: HubCore, created: ChannelCreated) -> None:
    """`RulesInvalid` if an agent has a tool that may not be called in a channel of this tier."""
    if created.knobs.get("tier") != REGULATED:
        return
    agents = (core.agents.get(seat.name) for seat in created.participants)
    complaint = next((said for agent in agents if agent and (said := unprotected_complaint(agent.team))), None)
    if complaint is not None:
        raise RulesInvalid(complaint)


REGISTRATION_LOCK = "registration"
AGENT_LOCK_PREFIX = "name:"
"""How the key of a lock begins by which an agent is registered."""


async def register_participant(
    core: HubCore,
    who: str | Declaration,
    *,
    kind: str | None = None,
    accept: Accept | None = None,
    roles: Sequence[str] | None = None,
) -> Participant:
    """Register a participant under a name, or attach to the one the store knows by it. See `Hub.register`."""
    if not isinstance(who, str | Declaration):
        raise BadName(f"{describe(who)} is no name; give a name, or an Agent")
    if isinstance(who, str):
        known = "service" if kind is None else kind
        return await _register_name(core, who, known, accept=accept, roles=_check_roles(who, known, roles))
    _check_roles(who.name, "agent", roles)
    if kind not in (None, "agent"):
        raise UsageError(f"{who.name!r} is an agent, not of kind {describe(kind)}")
    _check_models(who)
    async with core.locks.setdefault(f"{AGENT_LOCK_PREFIX}{who.name.lower()}", asyncio.Lock()):
        again = who.name in core.agents
        participant = await _register_name(core, who.name, "agent", accept=accept, again=again)
        replaced = core.definitions.hold(who)
        core.sagas.look_again()
    if replaced is not None:
        core.spawn(close_replaced(core.definitions, replaced), f"closing replaced models of {who.name}")
    if core.engine is not None and not again:
        core.spawn(core.dispatch.find_owed(who.name, core.clock), f"turns of {who.name}")
    return participant


def _check_roles(name: str, kind: str, roles: object) -> tuple[str, ...] | None:
    """The roles of a person as they are recorded; None if none are given."""
    if roles is None:
        return None
    if kind != HUMAN_KIND:
        raise UsageError(f"{describe(name)} is of kind {describe(kind)} and has no roles; roles are for people (human)")
    if not isinstance(roles, list | tuple) or not all(isinstance(role, str) and role for role in roles):
        raise UsageError(f"roles is {describe(roles)}; give a list of texts, such as ['finance']")
    return tuple(dict.fromkeys(roles))


async def _register_name(
    core: HubCore,
    name: str,
    kind: str,
    *,
    accept: Accept | None,
    again: bool = False,
    roles: tuple[str, ...] | None = None,
) -> Participant:
    core.check_open()
    check_name(name)
    if accept is not None and not callable(accept):
        raise UsageError(f"accept is {describe(accept)}; give a function of the invitation")
    registered = core.names_by_lower.get(name.lower())
    if registered == name and not again:
        raise UsageError(f"{name!r} is registered in this hub already")
    if registered not in (None, name):
        raise BadName(f"{name!r} differs from {registered!r} only in case")
    core.names_by_lower[name.lower()] = name
    try:
        kept = core.directory.roles_of(name) if roles is None else roles
        await core.directory.register(ParticipantRecord(name, kind, accept is not None, kept or msgspec.UNSET))
        core.acceptors[name] = accept
        await resend_invitations(core, name)
        core.check_open()  # the last thing: what is held from here on, closing would not see
    except BaseException:
        if not again:
            del core.names_by_lower[name.lower()]
            core.acceptors.pop(name, None)
        raise
    return Participant(core, name, kind)


def _check_models(agent: Declaration) -> None:
    """`UsageError` if a model of the agent's team reports that it is not usable."""
    KNOWN_SECRETS.know_environment()  # models take their keys from there
    for member in agent.team.members.values():
        model: object = member.declaration.model
        if isinstance(model, ChecksConfig):
            try:
                model.check()
            except UsageError as error:
                raise UsageError(f"the model of {member.name!r}: {error}") from error


async def ensure_person_registered(core: HubCore, name: str, kind: str = "human") -> None:
    """Register the speaker, if it is not: as the store knows it, otherwise as this kind."""
    async with core.locks.setdefault(REGISTRATION_LOCK, asyncio.Lock()):
        if name not in core.acceptors:
            known = core.directory.find(name).kind if core.directory.knows(name) else kind
            await register_participant(core, name, kind=known)


async def ensure_agent_registered(core: HubCore, agent: Declaration) -> None:
    """Register an agent, if it is not. `UsageError` if another participant has its name."""
    async with core.locks.setdefault(REGISTRATION_LOCK, asyncio.Lock()):
        if agent.name not in core.acceptors:
            await register_participant(core, agent)
    registered = core.agents.get(agent.name)
    if registered != agent:
        what = "another agent" if registered is not None else "somebody whom code drives"
        raise UsageError(f"{what} is registered as {agent.name!r} in this hub; give this agent another name")
