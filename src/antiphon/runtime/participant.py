"""A participant as the code that drives it holds it."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypedDict, Unpack

from antiphon.core.codec import MAX_BYTES, MAX_DEPTH, MAX_NODES, Malformed, check_json, copied, count_values, to_json
from antiphon.core.envelope import Envelope
from antiphon.core.errors import RulesInvalid, UnknownChannel, UsageError
from antiphon.core.events import Created, Json, Seat, data_of
from antiphon.core.rules import Adapter, Expectation
from antiphon.core.words import meant_by, shown
from antiphon.orchestration.lawbook import adapter_named
from antiphon.runtime.approvals import PersonDecision, decide
from antiphon.runtime.channel import Channel, check_options
from antiphon.runtime.desk import Desk
from antiphon.runtime.opening import opened
from antiphon.runtime.reading import Inbox

MOST_COUNTED = 1_000_000
"""How many values are counted for an error that names their number."""
MOST_KNOB_DEPTH = 168
MOST_KNOB_NODES = 20_000
"""A graph of a thousand transitions has more values than any message may have, and deeper ones. More would seldom fit
into the bytes that an envelope may have."""
TASK = "task"
"""The knob by which a channel knows from where a task was given."""
LONGEST_TTL = 100 * 366 * 24 * 3600


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
    """Why, for whoever reads the log; of a call that is rejected, the model reads it too."""
    text: str | None
    """What the call returned, or what the agent answers; for `respond`, which needs it."""
    args: Json | None
    """Other arguments, for a call that has not left yet."""
    digest: str | None
    """The digest of what was looked at. If something else waits now, the decision is refused."""


class Participant:
    """Somebody who is registered in this hub."""

    def __init__(self, desk: Desk, name: str, kind: str, *, may_run: bool = True) -> None:
        self._desk, self.name, self.kind = desk, name, kind
        self._may_run = may_run
        """Whether what this participant says and opens may give an agent a turn."""
        self._inbox = Inbox(desk, name)

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
        self._desk.check_open()
        check_options(options, OpenOptions.__optional_keys__)
        knobs, context_vars = options.get("knobs"), options.get("context_vars")
        knobs = {} if knobs is None else knobs
        created = Created(
            type=type,
            creator=self.name,
            participants=self._seated(adapter_named(type), target),
            knobs=_fitting(_plain(_written(knobs), "knobs", most=MOST_KNOB_NODES, deepest=MOST_KNOB_DEPTH)),
            ordered=adapter_named(type).ordered,
            ttl=checked_ttl(options.get("ttl")),
            context_vars=_plain({} if context_vars is None else context_vars, "context_vars"),
        )
        _check_people(created)
        permitted = self._may_run
        live = await opened(self._desk, created, say=options.get("say"), key=options.get("key"), may_run=permitted)
        return Channel(self._desk, live, self.name, permitted)

    async def channel(self, channel_id: str) -> Channel:
        """A channel this participant is in. One it is not in does not exist for it."""
        live = await self._desk.live(channel_id)
        if self.name not in live.state.participants:
            raise UnknownChannel(channel_id)
        return Channel(self._desk, live, self.name, self._may_run)

    def inbox(self) -> AsyncIterator[Envelope]:
        """What is addressed to this participant in all its channels, from where it left off, for ever.

        An envelope is acknowledged when the next one is asked for; after a crash the last one comes again.
        """
        return self._inbox.read()

    async def pending(self) -> int:
        """How many envelopes in the inbox are not acknowledged yet."""
        return await self._inbox.pending()

    async def decide(self, approval_id: str, decision: str, **options: Unpack[DecideOptions]) -> None:
        """Decide what becomes of something that waits for a person: `approve`, `reject` or `respond`.

        `approve` retries it, `respond` gives the call's result or the agent's answer, `reject` gives it up. `Denied`
        if this participant is no person (`not_a_person`), or somebody has decided before (`decided`).
        """
        check_options(options, DecideOptions.__optional_keys__)
        await decide(self._desk, approval_id, PersonDecision(decision, **options), by=self.name, kind=self.kind)

    def _seated(self, adapter: builtins.type[Adapter], target: str | Sequence[str]) -> list[Seat]:
        if not isinstance(target, str | list | tuple):
            raise UsageError(f"target is {shown(target)}; give a name or a list of names")
        names = [self.name, *([target] if isinstance(target, str) else target)]
        seats = [Seat(name, self._desk.directory.find(name).kind) for name in names]
        _check_once(names)
        least, most = adapter.seats.least, adapter.seats.most
        if len(seats) < least or (most is not None and len(seats) > most):
            wanted = f"exactly {most}" if most == least else f"{least} to {most}" if most else f"at least {least}"
            raise RulesInvalid(f"{adapter.name!r} takes {wanted} participants, the creator included, not {len(seats)}")
        return seats


def _check_once(names: Sequence[str]) -> None:
    creator, *guests = names
    if creator in guests:
        raise UsageError(f"target names {creator!r}, who opens the channel and so takes part already")
    for name in guests:
        if guests.count(name) > 1:
            raise UsageError(f"target names {name!r} twice; name everybody once")


def _written(knobs: Json) -> Json:
    """The knobs with the graph and expectations as plain data."""
    graph = knobs.get("graph") if type(knobs) is dict else None
    written = getattr(graph, "to_dict", None)
    if callable(written):
        knobs = {**knobs, "graph": written()}
    wanted = knobs.get("expectations") if type(knobs) is dict else None
    if not isinstance(wanted, list | tuple):
        return knobs
    return {**knobs, "expectations": [data_of(each) if isinstance(each, Expectation) else each for each in wanted]}


def _check_people(created: Created) -> None:
    """Refuse knobs that name somebody who is not in the channel: nobody could ever do what they allow."""
    if TASK in created.knobs:
        raise RulesInvalid(f"the knob {TASK!r} is the hub's own; leave it out, and give tasks with delegate")
    people = {seat.name for seat in created.participants}
    writers = created.knobs.get("writers")
    named = {f"writers of {key!r}": names for key, names in writers.items()} if isinstance(writers, dict) else {}
    for knob, names in {"interjectors": created.knobs.get("interjectors"), **named}.items():
        for name in names if isinstance(names, list) else []:
            if isinstance(name, str) and name not in people:
                advice = meant_by(name, people)
                hint = f"; {advice}" if advice else ""
                raise RulesInvalid(f"{knob} names {shown(name)}, who is not in the channel{hint}")


def _fitting(knobs: Json) -> Json:
    if len(to_json(knobs)) > MAX_BYTES:
        sizes = {name: len(to_json(value)) for name, value in knobs.items()}
        raise _too_large("knobs", sizes, f"bytes of JSON; the limit is {MAX_BYTES}")
    return knobs


def _plain(data: Json, what: str, *, most: int = MAX_NODES, deepest: int = MAX_DEPTH) -> Json:
    if type(data) is not dict:
        raise UsageError(f"{what} is {shown(data)}; give a dict")
    try:
        check_json(data, most=most, deepest=deepest)
    except Malformed as error:
        if error.reason != "too_large":
            raise UsageError(f"{what}: {error}") from error
        sizes = {name: count_values(value, most=MOST_COUNTED) for name, value in data.items()}
        raise _too_large(what, sizes, f"values of JSON; the limit is {most}") from error
    return copied(data)


def _too_large(what: str, sizes: Mapping[str, int], measured: str) -> UsageError:
    """The error that names what is the largest of all, which is to be made smaller."""
    largest = max(sizes, key=lambda name: sizes[name])
    size = f"at least {MOST_COUNTED}" if sizes[largest] == MOST_COUNTED else f"{sizes[largest]}"
    advice = "use fewer transitions, or conditions with fewer parts" if largest == "graph" else "make it smaller"
    return UsageError(f"{what}[{shown(largest)}] has {size} {measured} for all {what}: {advice}")


def checked_ttl(ttl: float | None) -> float | None:
    """A time to live as it is recorded; `UsageError` if it is none."""
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= LONGEST_TTL:
        raise UsageError(f"ttl is {shown(ttl)}; give a number of seconds above 0, at most {LONGEST_TTL} (100 years)")
    return float(ttl)
