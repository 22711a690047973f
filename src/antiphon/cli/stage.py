"""A workflow at a terminal: agents talk as a graph says, and a person takes part.

Rule 1: whoever takes part and is no agent is spoken for by the person at the terminal.
Rule 2: what is shown comes from the channel's log, in its order. Pieces of an answer are shown once their call has
        been, and of one speaker at a time.
Rule 3: while a person edits a line nothing is shown; it is shown afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple

from antiphon.cli.acts import Acts, said_by
from antiphon.cli.chat import Note, prompt_of
from antiphon.cli.program import Opened
from antiphon.cli.rules import everybody_in
from antiphon.cli.talk import CANCELLED, COMMANDS, MEMORY, Means, Place, settled, whereabouts
from antiphon.core.envelope import Envelope
from antiphon.core.errors import AntiphonError, Denied, UsageError
from antiphon.core.events import Json
from antiphon.hub.feed import Signal
from antiphon.orchestration.graph import TransitionGraph
from antiphon.orchestration.workflow import Workflow
from antiphon.runtime.agent import Agent
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import FinalStateEvent
from antiphon.runtime.hub import Hub
from antiphon.runtime.invoking import USER
from antiphon.runtime.participant import Participant

KEY = "thread_id"
"""The context variable by which a channel is found again."""
HERE = [command for command in COMMANDS if not command.startswith("/agent")]


class Mark(Enum):
    """What may come beside envelopes and pieces of text."""

    OVER = "nothing comes any more"
    BEGUN = "somebody begins to type"
    SENT = "what somebody said is recorded, or refused"


Heard = Envelope | Signal | Mark | AntiphonError


class Cast(NamedTuple):
    """Who takes part, and in what."""

    names: list[str]
    """The creator first."""
    people: list[str]
    agents: tuple[Agent, ...]
    graph: TransitionGraph


def cast_of(opened: Opened) -> Cast:
    """Who takes part: whom the file lists, or else everybody whom its graph names and every agent, a person first."""
    graph = opened.graph
    assert graph is not None, "it is asked for a graph"
    agents = [agent.name for agent in opened.agents]
    names = list(opened.participants or dict.fromkeys([*everybody_in(graph), *agents]))
    people = [name for name in names if name not in agents]
    if not people:
        people = [USER if USER not in agents else "you"]
        names = [*people, *names]
    if not opened.participants:
        first = next((name for name in (USER, graph.initial_speaker) if name in people), people[0])
        names = [first, *(name for name in names if name != first)]
    return Cast(names, people, opened.agents, graph)


async def perform(cast: Cast, place: Place, means: Means) -> bool:
    """Hold the conversation until its channel closes or the person leaves; whether all went well."""
    held = {name: await means.hub.register(name, kind="human") for name in cast.people}
    held |= {agent.name: await means.hub.register(agent) for agent in cast.agents}
    channel = await _found(cast, place, means.hub, person=held[cast.people[0]])
    if channel is None:
        knobs: Json = {"graph": cast.graph.to_dict()}
        first, *others = cast.names
        opened = await held[first].open(
            type=Workflow.name, target=others, knobs=knobs, context_vars={KEY: place.thread_id}
        )
        channel = opened.channel_id
    people = {name: await held[name].channel(channel) for name in cast.people}
    return await Stage(people, place, means).run()


async def _found(cast: Cast, place: Place, hub: Hub, *, person: Participant) -> str | None:
    """The channel in which this conversation was left."""
    graph = cast.graph.to_dict()
    for row in reversed(await hub.channels(status="active", participant=person.name)):
        if row.type != Workflow.name or row.participants != cast.names:
            continue
        state = (await person.channel(row.channel_id)).state
        if state.context_vars.get(KEY) == place.thread_id and state.knobs.get("graph") == graph:
            return row.channel_id
    return None


class Stage:
    """One channel, shown as it goes on, and the person who takes part in it."""

    def __init__(self, people: dict[str, Channel], place: Place, means: Means) -> None:
        self._people, self._place = people, place
        self._hub, self._show, self._lines, self._interrupts = means
        self._channel = next(iter(people.values()))
        self._acts = Acts(self._channel)
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._ahead: deque[Signal] = deque()
        self._typed: list[tuple[str, str]] = []
        """What is on the screen already, because it was typed there."""
        self._sending: set[asyncio.Task[None]] = set()
        self._shown = 0

    async def run(self) -> bool:
        """Show and ask, until the channel closes or the person leaves; whether all went well."""
        async with self._listening():
            outcome = None
            while outcome is None:
                outcome = await self._step()
        return outcome

    async def _step(self) -> bool | None:
        """Take a line from whoever is asked or has typed one, or show what comes next; the outcome, if that is all."""
        asked = self._asked()
        line = None if asked else self._lines.whole()
        if asked or line is not None:
            return None if await self._take(asked or self._first, line, aside=asked is None) else True
        with self._interrupts.stopping(self._cancel):
            item = await self._next()
        if item is Mark.OVER:
            await asyncio.gather(*self._sending)  # whoever spoke too late is told
            return self._lines.interactive or not self._acts.failed
        if item is Mark.BEGUN:
            return None if await self._take(self._first, self._lines.whole(), aside=True) else True
        self._hear(item)
        return False if self._acts.failed and not self._lines.interactive else None

    async def _next(self) -> Heard:
        """What comes next from the channel, or that somebody types.

        While an answer is shown in pieces, only a whole line counts as typed: there is no place to edit one.
        """
        heard = asyncio.create_task(self._heard.get())
        begun = asyncio.create_task(self._lines.begun(whole=self._show.open))
        try:
            await asyncio.wait({heard, begun}, return_when=asyncio.FIRST_COMPLETED)
            item = heard.result() if heard.done() else Mark.BEGUN
        finally:
            begun.cancel()
            heard.cancel()
        if isinstance(item, BaseException):
            raise item
        return item

    def _hear(self, item: Heard) -> None:
        if isinstance(item, Signal):
            self._ahead.append(item)
        elif isinstance(item, Envelope):
            self._shown = item.sequence
            self._tell(item)
        while self._ahead and self._acts.has_begun(self._ahead[0]):
            for event in self._acts.of_signal(self._ahead.popleft()):
                self._show.tell(event)

    def _tell(self, envelope: Envelope) -> None:
        events, said = list(self._acts.of(envelope)), said_by(envelope)
        if said in self._typed:
            self._typed.remove(said)
            return
        for event in events:
            self._show.tell(event)

    def _asked(self) -> str | None:
        """The person who has the turn, if everything before it has been shown."""
        state = self._channel.state
        if state.ended or self._shown < state.sequence or self._sending:
            return None
        return next((name for name in state.speakers if name in self._people), None)

    @property
    def _first(self) -> str:
        """Who puts in a word."""
        return next(iter(self._people))

    async def _take(self, name: str, line: str | None, *, aside: bool = False) -> bool:
        """Do what a person wants who has typed this line, or types one now; False if they leave."""
        typed_now = line is None
        if line is None:
            line = await self._lines.line(prompt_of(name))
        if line is None or (line.strip() == "/quit" and self._lines.interactive):
            self._show.tell(FinalStateEvent("", channel_id=self._channel.channel_id))
            if not self._channel.state.ended:
                kept = "" if self._place.url == MEMORY else " The same command goes on from here."
                self._note(("You leave." if aside else f"{name} has the turn, and says nothing more.") + kept)
            return False
        if line.startswith("/") and self._lines.interactive:
            await self._do(line)
        elif line.strip():
            if typed_now and self._lines.interactive:
                self._typed.append((name, line.strip()))
            self._say(name, line.strip())
        return True

    def _say(self, name: str, text: str) -> None:
        """Say something; while somebody has the turn it waits."""
        task = asyncio.create_task(self._send(name, text))
        self._sending.add(task)

        def sent(task: asyncio.Task[None]) -> None:
            self._sending.discard(task)
            self._heard.put_nowait(Mark.SENT)

        task.add_done_callback(sent)

    async def _send(self, name: str, text: str) -> None:
        try:
            await self._people[name].send(text)
        except (Denied, UsageError) as error:
            self._typed = [each for each in self._typed if each != (name, text)]
            self._note(f"That was not said: {error}")

    async def _do(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        try:
            match word:
                case "/help":
                    for command in HERE:
                        self._note(f"  {command:13} {COMMANDS[command]}")
                case "/log":
                    for note in whereabouts(self._place.url, self._channel.channel_id):
                        self._show.tell(note)
                case "/settle":
                    await settled(self._channel, rest.strip())
                case _:
                    self._note(f"There is no {word}; /help lists what there is. To say it, begin with a blank.")
        except (UsageError, Denied) as error:
            self._note(str(error))

    def _cancel(self) -> None:
        self._cancelling = asyncio.create_task(self._channel.cancel(CANCELLED))

    def _note(self, text: str) -> None:
        self._show.tell(Note(text))

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._follow())]
        if self._place.tokens:
            tasks.append(asyncio.create_task(self._overhear()))
        try:
            yield
        finally:
            for task in (*tasks, *self._sending):
                task.cancel()
            await asyncio.gather(*tasks, *self._sending, return_exceptions=True)

    async def _follow(self) -> None:
        end: Heard = Mark.OVER
        try:
            async for envelope in self._hub.subscribe(self._channel.channel_id):
                self._heard.put_nowait(envelope)
        except AntiphonError as error:
            end = error
        self._heard.put_nowait(end)

    async def _overhear(self) -> None:
        async for signal in self._hub.signals(self._channel.channel_id):
            self._heard.put_nowait(signal)
