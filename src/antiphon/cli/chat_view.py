"""A chat with an agent at a terminal, or through a pipe.

Rule 1: earlier messages without an answer are answered first.
Rule 2: without a person at the terminal, a failed turn ends the chat, and the remaining lines are not sent.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial

from antiphon.agents.progress import has_partial_answer
from antiphon.cli.chat_decisions import WaitingCallDecision, settle_doubt
from antiphon.cli.event_display import Display, DisplayEvent, DisplayNote, HandoffTracker, UserMessage, input_prompt
from antiphon.cli.line_input import Interrupts, LineSource
from antiphon.cli.store_options import MEMORY_URL, url_without_password
from antiphon.core.envelope import Envelope
from antiphon.core.errors import Denied, UsageError
from antiphon.core.text import describe
from antiphon.models.scripted import ScriptedModel
from antiphon.runtime.agent import DEFAULT_SPEAKER, Agent
from antiphon.runtime.channel import Channel
from antiphon.runtime.hub import Hub
from antiphon.runtime.turn_events import (
    AgentEvent,
    FinalStateEvent,
    NumberedEvent,
    TokenEvent,
    TurnEvents,
)
from antiphon.runtime.turn_stream import follow_turn

CTRL_C_REASON = "Ctrl-C"
CHAT_COMMANDS = {
    "/help": "what you can type",
    "/agents": "who there is",
    "/agent NAME": "talk to another agent, on a thread of its own",
    "/log": "where all of this is recorded, and how to read it",
    "/settle TEXT": "give the result of a call in doubt; `/settle again` retries it",
    "/approve NAME": "let the call leave that waits for approval; NAME decides, by default who speaks here",
    "/reject NAME": "refuse the call that waits for approval",
    "/as NAME": "speak as another person of the conversation",
    "/release": "give a conversation that a person has back to the agents; with a name, to that one",
    "/quit": "leave; so do Ctrl-C and Ctrl-D. During an answer, Ctrl-C stops the answer.",
}

ChatHandlers = Mapping[str, Callable[[str], Awaitable[object]]]
"""The functions of commands that not every conversation has; each takes the rest of the line."""


@dataclass(frozen=True)
class ChatContext:
    """The display and the input of a conversation, and where it is recorded."""

    display: Display
    lines: LineSource
    interrupts: Interrupts
    url: str
    thread_id: str
    tokens: bool

    def note(self, text: str) -> None:
        """Show a note."""
        self.display.tell(DisplayNote(text))

    def tell(self, events: Iterable[DisplayEvent]) -> None:
        """Show some events."""
        for event in events:
            self.display.tell(event)

    def stopping_turns(self, channel: Channel) -> AbstractContextManager[None]:
        """Within this block Ctrl-C cancels the turns of the channel."""
        return self.interrupts.stopping(lambda: asyncio.create_task(channel.cancel(CTRL_C_REASON)))

    def ends_with(self, line: str) -> bool:
        """Whether a person leaves with this line."""
        return self.lines.interactive and line.strip() == "/quit"

    async def run_slash_command(
        self, line: str, channel: Channel, handlers: ChatHandlers, *, hints: Collection[str] = ()
    ) -> None:
        """Run a line as a command; a mistake in it is shown."""
        word, _, rest = line.strip().partition(" ")
        try:
            if word in handlers:
                await handlers[word](rest.strip())
            elif word == "/help":
                there = {"/help", "/log", "/quit", *handlers}
                shown = [f"  {name:15} {what}" for name, what in CHAT_COMMANDS.items() if name.split()[0] in there]
                for note in (*shown, *hints):
                    self.note(note)
            elif word == "/log":
                self._show_recording(channel.channel_id)
            else:
                self.note(f"There is no {word}; /help lists what there is. To say it, begin with a blank.")
        except (UsageError, Denied) as error:
            self.note(str(error))

    def _show_recording(self, channel_id: str) -> None:
        """Where the conversation is recorded, and the command that reads it."""
        if self.url == MEMORY_URL:
            self.note("It is in memory, and goes when you leave. Begin with --store team.db to keep it.")
            return
        url = url_without_password(self.url)
        self.note(f"It is in {url}. To read it:")
        self.display.tell(DisplayNote(f"  antiphon log {channel_id} {shlex.quote(url)}", copied=True))


class AgentChat:
    """A conversation with one of some agents at a time, on a channel of its own each."""

    def __init__(self, hub: Hub, agents: tuple[Agent, ...], context: ChatContext) -> None:
        self._hub, self._agents, self._context = hub, agents, context
        self._handlers: dict[str, Callable[[str], Awaitable[object]]] = {
            "/agents": self._list,
            "/agent": self._switch_agent,
            "/settle": self._settle,
            "/approve": partial(self._decide, "approve"),
            "/reject": partial(self._decide, "reject"),
        }

    async def run(self, agent: Agent, waiting: list[str]) -> bool:
        """Chat until the input ends, unanswered messages first; False if a turn failed."""
        for each in self._agents:
            await self._hub.register(each)
        await self._talk_to(agent)
        if not await self._catch_up(waiting):
            return False
        while (line := await self._context.lines.line(input_prompt(DEFAULT_SPEAKER))) is not None:
            if self._context.ends_with(line):
                break
            if line.strip() and not await self._handle_line(line):
                return False
        return True

    async def _talk_to(self, agent: Agent) -> None:
        self._agent, self._channel = agent, await agent.channel(self._context.thread_id, self._hub)

    async def _handle_line(self, line: str) -> bool:
        """Send a line, or run it as a command; False if that ends the chat."""
        context = self._context
        if not context.lines.interactive:
            context.display.tell(UserMessage(DEFAULT_SPEAKER, line))
            return _has_answer(await self._say(line))
        if line.startswith("/"):
            hint = "A message that begins with @name is for that one of a team."
            hints = [hint] if any(agent.agents for agent in self._agents) else []
            await context.run_slash_command(line, self._channel, self._handlers, hints=hints)
            return True
        try:
            await self._say(line.strip())
        except (UsageError, Denied) as error:
            context.note(str(error))
        return True

    async def _catch_up(self, waiting: list[str]) -> bool:
        """Show the answers to earlier messages; False if that ends the chat."""
        for message in await self._messages(waiting):
            self._context.note("This was not answered yet:")
            self._context.display.tell(UserMessage(DEFAULT_SPEAKER, str(message.event_data.get("text", ""))))
            final = await self._show_answer(message)
            if not self._context.lines.interactive and not _has_answer(final):
                return False
        return True

    async def _messages(self, ids: Collection[str | None]) -> list[Envelope]:
        log = await self._hub.log(self._channel.channel_id) if ids else []
        return [envelope for envelope in log if envelope.envelope_id in ids]

    async def _say(self, text: str) -> FinalStateEvent:
        events = self._agent.stream_invoke(
            text, thread_id=self._context.thread_id, hub=self._hub, tokens=self._context.tokens
        )
        assert isinstance(events, AsyncGenerator), "so that it can be closed"
        return await self._show_events(events)

    async def _show_answer(self, message: Envelope, *, after: int = 0) -> FinalStateEvent:
        turn_events = TurnEvents(self._agent.name, lambda: self._channel.state)
        events = follow_turn(self._channel, turn_events, message, tokens=self._context.tokens)
        return await self._show_events(_events_after(events, after))

    async def _show_events(self, events: AsyncGenerator[AgentEvent, None]) -> FinalStateEvent:
        """Show a turn as it happens; its final event. Ctrl-C stops the turn."""
        handoffs, final = HandoffTracker(), None
        with self._context.stopping_turns(self._channel):
            async with aclosing(events):
                async for event in events:
                    self._context.tell(handoffs.with_handoffs(event))
                    final = event if isinstance(event, FinalStateEvent) else None
        assert final is not None, "the last event is the final one"
        return final

    async def _list(self, rest: str) -> None:
        for agent in self._agents:
            self._context.note(f"  {'*' if agent is self._agent else ' '} {describe_agent(agent)}")

    async def _switch_agent(self, rest: str) -> None:
        await self._talk_to(find_agent(self._agents, rest))
        self._context.note(f"You talk to {self._agent.name}.")
        await self._catch_up(_unanswered(self._channel))

    async def _settle(self, rest: str) -> None:
        await self._show_rest(await settle_doubt(self._hub, self._channel, rest))

    async def _decide(self, decision: str, rest: str) -> None:
        decide = WaitingCallDecision(self._hub, self._channel, decision, DEFAULT_SPEAKER)
        await self._show_rest(await decide(rest))

    async def _show_rest(self, cause: str | None) -> None:
        """Show how the turn goes on that answers this message."""
        before = self._channel.state.sequence
        [message] = await self._messages([cause])
        await self._show_answer(message, after=before)


async def unanswered_messages(url: str, agent: Agent, thread_id: str) -> list[str]:
    """The unanswered messages of a thread, read before an engine runs."""
    if url == MEMORY_URL:
        return []
    # Closing a hub closes its models, and the agent still needs its own.
    stand_in = Agent(agent.name, ScriptedModel([]))
    async with Hub.open(url, engine=None) as hub:
        return _unanswered(await stand_in.channel(thread_id, hub))


def _unanswered(channel: Channel) -> list[str]:
    return [turn.cause for turn in channel.state.owed if turn.cause]


def _has_answer(final: FinalStateEvent) -> bool:
    """Whether a turn has an answer, perhaps a partial one."""
    return final.stopped is None or has_partial_answer(final.stopped)


def find_agent(agents: tuple[Agent, ...], name: str) -> Agent:
    """The agent of this name; `UsageError` if there is none."""
    for agent in agents:
        if agent.name.lower() == name.lower():
            return agent
    there = ", ".join(agent.name for agent in agents)
    raise UsageError(f"no agent is called {describe(name)}; there are: {there}")


def describe_agent(agent: Agent) -> str:
    """The name, team and description of an agent."""
    team = f" with {', '.join(below.name for below in agent.agents)}" if agent.agents else ""
    return f"{agent.name}{team}" + (f": {agent.description}" if agent.description else "")


async def _events_after(events: AsyncGenerator[NumberedEvent, None], sequence: int) -> AsyncGenerator[AgentEvent, None]:
    """The events after a sequence, and the final one."""
    async with aclosing(events):
        async for number, event in events:
            if event is not None and (number > sequence or isinstance(event, TokenEvent | FinalStateEvent)):
                yield event
