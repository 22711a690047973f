"""A chat with an agent at a terminal, or through a pipe.

Rule 1: what was said before and not answered is answered first.
Rule 2: without a person, a turn that fails ends the chat, and what stands behind it is not said.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from antiphon.agents.messages import Reply, Request, says
from antiphon.agents.routine import LIMITS
from antiphon.cli.chat import Handovers, Note, Show, Shown, UserMessage, prompt_of
from antiphon.cli.keyboard import Interrupts, Lines
from antiphon.cli.options import shown_url
from antiphon.core.errors import Denied, UsageError
from antiphon.core.words import shown
from antiphon.runtime.agent import Agent
from antiphon.runtime.approvals import PersonDecision, decide
from antiphon.runtime.channel import Channel
from antiphon.runtime.deciding import approval_id_of
from antiphon.runtime.events import AgentEvent, FinalStateEvent
from antiphon.runtime.following import Numbered, following, told_by, with_tokens
from antiphon.runtime.hub import Hub
from antiphon.runtime.invoking import USER
from antiphon.runtime.told import Told

MEMORY = "memory:"
CANCELLED = "Ctrl-C"
COMMANDS = {
    "/help": "what you can type",
    "/agents": "who there is",
    "/agent NAME": "talk to another agent, on a thread of its own",
    "/log": "where all of this is recorded, and how to read it",
    "/settle TEXT": "say what a call in doubt came to; `/settle again` has it made again",
    "/quit": "leave; so do Ctrl-C and Ctrl-D. While somebody answers, Ctrl-C stops that.",
}


class Place(NamedTuple):
    """Where a conversation is held."""

    url: str
    thread_id: str
    tokens: bool


class Ways(NamedTuple):
    """How a conversation is shown, and where what is said comes from."""

    show: Show
    lines: Lines
    interrupts: Interrupts


class Means(NamedTuple):
    """What a conversation needs to be held."""

    hub: Hub
    show: Show
    lines: Lines
    interrupts: Interrupts


class Chat:
    """A conversation with one of some agents at a time."""

    def __init__(self, agents: tuple[Agent, ...], place: Place, means: Means) -> None:
        self._agents, self._place = agents, place
        self._hub, self._show, self._lines, self._interrupts = means
        self._agent = agents[0]
        self._channel: Channel | None = None
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/agents": self._list,
            "/agent": self._turn_to,
            "/log": self._log,
            "/settle": self._settle,
        }

    async def run(self, agent: Agent, waiting: list[str]) -> bool:
        """Talk until nothing is left to say, what waits for an answer first; whether all went well."""
        for each in self._agents:
            await self._hub.register(each)
        self._agent, self._channel = agent, await agent.channel(self._place.thread_id, self._hub)
        if not await self._catch_up(waiting):
            return False
        while (line := await self._lines.line(prompt_of(USER))) is not None:
            if not line.strip():
                continue
            if line.strip() == "/quit" and self._lines.interactive:
                break
            if not await self._took(line):
                return False
        return True

    async def _took(self, line: str) -> bool:
        """Do what a line asks for; False if that ends the chat."""
        if not self._lines.interactive:
            self._show.tell(UserMessage(USER, line))
            return fine(await self._say(line))
        word, _, rest = line.strip().partition(" ")
        try:
            if not line.startswith("/"):
                await self._say(line.strip())
            elif word in self._commands:
                await self._commands[word](rest.strip())
            else:
                self._note(f"There is no {word}; /help lists what there is. To say it, begin with a blank.")
        except (UsageError, Denied) as error:
            self._note(str(error))
        return True

    async def _catch_up(self, waiting: list[str]) -> bool:
        """Show the answers to what was said before; False if that ends the chat."""
        if not waiting:
            return True
        for envelope in await self._hub.log(self._held.channel_id):
            if envelope.envelope_id in waiting:
                self._note("This was not answered yet:")
                self._show.tell(UserMessage(USER, str(envelope.event_data.get("text", ""))))
                told = Told(self._agent.name, lambda: self._held.state)
                final = await self._followed(following(self._held, told, envelope), told)
                if not self._lines.interactive and not fine(final):
                    return False
        return True

    async def _say(self, text: str) -> FinalStateEvent:
        events = self._agent.stream_invoke(
            text, thread_id=self._place.thread_id, hub=self._hub, tokens=self._place.tokens
        )
        assert isinstance(events, AsyncGenerator), "so that it can be closed"
        return await self._shown(events)

    async def _followed(self, events: AsyncGenerator[Numbered, None], told: Told) -> FinalStateEvent:
        numbered = with_tokens(self._held, told, events) if self._place.tokens else events
        return await self._shown(told_by(numbered))

    async def _shown(self, events: AsyncGenerator[AgentEvent, None]) -> FinalStateEvent:
        """Show a turn as it happens, and how it ended. Ctrl-C stops it."""
        handovers, final = Handovers(), None
        with self._interrupts.stopping(self._cancel):
            async with aclosing(events):
                async for event in events:
                    self._tell(handovers.around(event))
                    final = event if isinstance(event, FinalStateEvent) else None
        assert final is not None, "the last event is the final one"
        return final

    def _tell(self, events: Iterable[Shown]) -> None:
        for event in events:
            self._show.tell(event)

    def _cancel(self) -> None:
        self._cancelling = asyncio.create_task(self._held.cancel(CANCELLED))

    async def _help(self, rest: str) -> None:
        for command, what in COMMANDS.items():
            self._note(f"  {command:13} {what}")
        if any(agent.agents for agent in self._agents):
            self._note("A message that begins with @name is for that one of a team.")

    async def _list(self, rest: str) -> None:
        for agent in self._agents:
            self._note(f"  {'*' if agent is self._agent else ' '} {described(agent)}")

    async def _turn_to(self, rest: str) -> None:
        self._agent = named(self._agents, rest)
        self._channel = await self._agent.channel(self._place.thread_id, self._hub)
        self._note(f"You talk to {self._agent.name}.")
        await self._catch_up([turn.cause for turn in self._held.state.owed if turn.cause])

    async def _log(self, rest: str) -> None:
        for note in whereabouts(self._place.url, self._held.channel_id):
            self._show.tell(note)

    async def _settle(self, rest: str) -> None:
        cause = await settled(self._held, rest)
        before = self._held.state.sequence
        [message] = [each for each in await self._hub.log(self._held.channel_id) if each.envelope_id == cause]
        told = Told(self._agent.name, lambda: self._held.state)
        events = following(self._held, told, message)
        await self._followed(_behind(events, before), told)

    @property
    def _held(self) -> Channel:
        assert self._channel is not None, "it is held before anything is said"
        return self._channel

    def _note(self, text: str) -> None:
        self._show.tell(Note(text))


async def unanswered(url: str, agent: Agent, thread_id: str) -> list[str]:
    """The messages on a thread that no answer has come to, while nobody answers."""
    if url == MEMORY:
        return []
    stand_in = Agent(agent.name, _silent)  # a hub that closes lets go of its models, and these are needed yet
    async with Hub.open(url, engine=None) as hub:
        channel = await stand_in.channel(thread_id, hub)
        return [turn.cause for turn in channel.state.owed if turn.cause]


async def settled(channel: Channel, word: str) -> str | None:
    """Settle the first call in doubt, or the first suspended turn; the message that its turn answers.

    `UsageError` if there is neither.
    """
    state = channel.state
    turn = next((turn for turn in state.owed if turn.waits_for_person), None)
    if turn is None:
        raise UsageError("No call is in doubt here.")
    if not word:
        raise UsageError("Say what became of it: `/settle again`, or `/settle` and what the call came to.")
    if turn.suspended:
        choice = PersonDecision("approve") if word == "again" else PersonDecision("respond", text=word)
        desk, by = channel._desk, channel._speaker
        kind = state.participants.get(by, "service")
        await decide(desk, approval_id_of(state, turn, None), choice, by=by, kind=kind)
        return turn.cause
    if word == "again":
        await channel.settle(turn.turn_id, turn.doubts[0], again=True)
    else:
        await channel.settle(turn.turn_id, turn.doubts[0], result=word)
    return turn.cause


async def _silent(request: Request) -> Reply:
    return says("")


def fine(final: FinalStateEvent) -> bool:
    """Whether a turn has an answer, if only a partial one."""
    return final.stopped is None or final.stopped in LIMITS


def named(agents: tuple[Agent, ...], name: str) -> Agent:
    """The agent of this name; `UsageError` if there is none."""
    for agent in agents:
        if agent.name.lower() == name.lower():
            return agent
    there = ", ".join(agent.name for agent in agents)
    raise UsageError(f"no agent is called {shown(name)}; there are: {there}")


def described(agent: Agent) -> str:
    """An agent, its team and what it is for."""
    team = f" with {', '.join(below.name for below in agent.agents)}" if agent.agents else ""
    return f"{agent.name}{team}" + (f": {agent.description}" if agent.description else "")


def whereabouts(url: str, channel_id: str) -> list[Note]:
    """Where a conversation is recorded, and how it is read."""
    if url == MEMORY:
        return [Note("It is in memory, and goes when you leave. Begin with --store team.db to keep it.")]
    command = f"  antiphon log {channel_id} {shlex.quote(shown_url(url))}"
    return [Note(f"It is in {shown_url(url)}. To read it:"), Note(command, copied=True)]


async def _behind(events: AsyncGenerator[Numbered, None], sequence: int) -> AsyncGenerator[Numbered, None]:
    """Only what stands behind a place in the log, and the end."""
    async with aclosing(events):
        async for place, event in events:
            if place > sequence or isinstance(event, FinalStateEvent):
                yield place, event
