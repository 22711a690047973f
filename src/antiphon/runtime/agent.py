"""An agent as a user declares and asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import TypedDict, Unpack

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Model
from antiphon.agents.results import AgentReply
from antiphon.core.errors import UsageError
from antiphon.core.words import shown
from antiphon.models.naming import named_model
from antiphon.runtime.channel import Channel
from antiphon.runtime.default import default_hub
from antiphon.runtime.events import AgentEvent
from antiphon.runtime.following import told_by
from antiphon.runtime.hub import Hub, Opening
from antiphon.runtime.invoking import answer_of, channel_of, check_runs, told_of


class StreamOptions(TypedDict, total=False):
    """How a turn is asked for and followed."""

    thread_id: str | None
    hub: Hub | None
    message_id: str | None
    tokens: bool


@dataclass(frozen=True)
class Agent(Declaration):
    """An agent. Register it with a hub, which runs its turns; or ask it something with `invoke`."""

    model: Model | str  # type: ignore[assignment]  # a name is given, and the model that it names is kept

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            self._set("model", self._named(self.model))
        super().__post_init__()

    def _named(self, name: str) -> Model:
        try:
            return named_model(name)
        except UsageError as error:
            raise UsageError(f"the model of {shown(self.name)}: {error}") from error

    async def invoke(
        self, text: str, *, thread_id: str | None = None, hub: Hub | None = None, message_id: str | None = None
    ) -> AgentReply:
        """Say something to the agent on a thread, and wait for its answer; `TurnFailed` if there is none.

        The message is recorded before it is answered. Should the process end, the turn is finished by the next hub
        in which the agent is registered; invoked again with the same `message_id` on the same thread, nothing is
        said twice, and the answer is the one that there is.
        """
        async with _hub(hub) as used:
            check_runs(used, self, text)
            channel = await channel_of(used, self, thread_id)
            return await answer_of(channel, self, text, message_id=message_id)

    async def channel(self, thread_id: str, hub: Hub) -> Channel:
        """The channel of a thread, as its user holds it: to look at, to cancel a turn, to settle a call in doubt."""
        if not isinstance(hub, Hub):
            raise UsageError(f"hub is {shown(hub)}; give an open Hub")
        return await channel_of(hub, self, thread_id)

    async def stream_invoke(self, text: str, **options: Unpack[StreamOptions]) -> AsyncIterator[AgentEvent]:
        """Say something to the agent on a thread, and follow its turn. `FinalStateEvent` comes last, also on failure.

        With `tokens=True` the answer comes in pieces too, as the model speaks, before it comes whole.
        """
        _check_options(options)
        async with _hub(options.get("hub")) as used:
            check_runs(used, self, text)
            channel = await channel_of(used, self, options.get("thread_id"))
            events = told_of(
                channel, self, text, message_id=options.get("message_id"), tokens=bool(options.get("tokens"))
            )
            async with aclosing(told_by(events)) as told:
                async for event in told:
                    yield event


def _hub(hub: object) -> AbstractAsyncContextManager[Hub]:
    if hub is None:
        return default_hub()
    if not isinstance(hub, Hub):
        opening = "; await it, or use `async with`" if isinstance(hub, Opening) else ""
        raise UsageError(f"hub is {shown(hub)}{opening}; give an open Hub, or None for the one of this process")
    return nullcontext(hub)


def _check_options(options: StreamOptions) -> None:
    unknown = options.keys() - StreamOptions.__optional_keys__
    if unknown:
        known = ", ".join(sorted(StreamOptions.__optional_keys__))
        raise UsageError(f"no option is called {shown(min(unknown))}; there are: {known}")
