"""A channel as a tool holds it while its agent's turn is under way.

What a tool writes to the context is part of the turn: it is recorded with the answer, and gone if there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Protocol

from antiphon.agents.results import AgentReply
from antiphon.agents.tasks import Given, Standing
from antiphon.core.codec import Malformed, as_type, check_json, copied
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, UsageError
from antiphon.core.events import EV_CONTEXT_SET, ContextSet, Json
from antiphon.core.guard import Deny
from antiphon.core.instants import Instant
from antiphon.core.state import State, detached
from antiphon.core.words import meant_by, shown

if TYPE_CHECKING:
    from antiphon.agents.declaration import Declaration
    from antiphon.agents.team import Member

Judge = Callable[[Envelope], Deny | None]
"""Says whether the speaker may record this."""

NOTHING = ContextSet()


class Done:
    """Something that has happened already, and may be awaited all the same."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class TurnChannel:
    """The channel, in the hands of a tool. Each call of a tool gets its own."""

    __injected__ = "channel"

    def __init__(
        self,
        state: State,
        speaker: str,
        judge: Judge,
        *,
        before: ContextSet = NOTHING,
        standing: Standing | None = None,
    ) -> None:
        self._state, self.speaker, self.channel_id = state, speaker, state.channel_id
        self._judge, self._before, self._standing = judge, before, standing
        self.written = NOTHING
        """What this call has written to the context."""
        self.audience: tuple[str, ...] | None = None
        """The audience that this call has chosen for the answer: `()` is everybody; None if it has chosen none."""
        self.over = False
        """Whether the call has returned: what is written later would be lost."""
        self.tasks = Given(state.channel_id, speaker)
        """The tasks that this call has given to others."""

    @property
    def state(self) -> State:
        """The channel as it was when the turn began. A copy: changing it changes nothing."""
        return detached(self._state)

    @property
    def context_vars(self) -> Json:
        """The context variables, with what this turn has written to them so far."""
        updates = joined(self._before, self.written)
        kept = {key: value for key, value in self._state.context_vars.items() if key not in updates.delete}
        return copied({**kept, **updates.set})

    @property
    def member(self) -> Member:
        """Who of the speaker's team calls the tool."""
        return self._stands.member

    @property
    def agent(self) -> str:
        """The name of who calls the tool: the speaker, or one of its team."""
        return self.speaker if self._standing is None else self._standing.member.name

    @property
    def lead(self) -> str | None:
        """Whom that one works for; None for the speaker itself."""
        path = () if self._standing is None else self._standing.member.path
        return path[-2] if len(path) > 1 else None

    @property
    def now(self) -> Instant:
        """What time it is, in UTC: `2026-01-31T12:00:00.000000Z`."""
        return self._stands.now()

    async def delegate(self, agent: Declaration, text: str, *, ttl: float | None = None) -> AgentReply:
        """Have another agent do something in a channel of its own, and wait for its report.

        If the call is made again after a crash, the same task is gone on with; it must be given in the same words, and
        in the same place among those for the same agent. `TurnFailed` if it comes to nothing.
        """
        if self.over:
            raise UsageError("the call is over, and with it the time to give tasks")
        return await self.tasks.given(self._stands, agent, text, ttl=ttl)

    @property
    def _stands(self) -> Standing:
        if self._standing is None:
            raise UsageError("this channel is not held by a tool in a turn")
        return self._standing

    def set_context(self, **values: object) -> Done:
        """Set context variables; `Denied` if the speaker may not."""
        return self._write({"set": values, "delete": []})

    def delete_context(self, *keys: str) -> Done:
        """Remove context variables; `Denied` if the speaker may not."""
        return self._write({"set": {}, "delete": list(keys)})

    def set_audience(self, names: list[str] | None) -> Done:
        """Say whom the answer of this turn is for: these participants, or everybody with None.

        Without it an answer is for those who heard what it answers. The last call that says so decides.
        """
        if self.over:
            raise UsageError("the call is over, and with it the time to choose who hears the answer")
        self.audience = () if names is None else self._hearers(names)
        return Done()

    def _hearers(self, names: object) -> tuple[str, ...]:
        known = list(self._state.participants)
        if not isinstance(names, list | tuple) or not names:
            raise UsageError(f"audience is {shown(names)}; give a list of names, or None for everybody")
        for name in names:
            if name not in known:
                advice = meant_by(name, known) or f"there are: {', '.join(known)}"
                raise UsageError(f"audience names {shown(name)}, who is not in this channel; {advice}")
        return tuple(dict.fromkeys(names))

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"inside a tool the channel has no {name!r}: it has channel_id, speaker, agent, lead, now, state, "
            "context_vars, set_context, delete_context, set_audience and delegate; what the agent says is what its "
            "turn ends with"
        )

    def _write(self, data: Json) -> Done:
        if self.over:
            raise UsageError("the call is over, and with it the time to write to the context")
        try:
            check_json(data)
            updates = as_type(copied(data), ContextSet)
        except Malformed as error:
            raise UsageError(f"the context cannot hold this: {error}") from error
        denial = self._judge(Envelope(sender_id=self.speaker, event_type=EV_CONTEXT_SET, event_data=data))
        if denial is not None:
            raise Denied(denial.reason, self.channel_id, denial.detail)
        self.written = joined(self.written, updates)
        return Done()


class HasContext(Protocol):
    """A channel whose context can be written, by a tool or by anybody who holds it."""

    def set_context(self, **values: object) -> Awaitable[object]: ...

    def delete_context(self, *keys: str) -> Awaitable[object]: ...


def set_context(channel: HasContext, **values: object) -> Awaitable[object]:
    """Set context variables of a channel. In a tool this is done at once and may be awaited or not."""
    return channel.set_context(**values)


def delete_context(channel: HasContext, *keys: str) -> Awaitable[object]:
    """Remove context variables of a channel. In a tool this is done at once and may be awaited or not."""
    return channel.delete_context(*keys)


def joined(first: ContextSet, then: ContextSet) -> ContextSet:
    """Two changes of the context as one."""
    if not then.set and not then.delete:
        return first
    kept = {key: value for key, value in first.set.items() if key not in then.delete}
    return ContextSet({**kept, **then.set}, list(dict.fromkeys((*first.delete, *then.delete))))
