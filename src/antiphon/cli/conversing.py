"""What `antiphon run` does with a file: it opens what is needed, and closes it whatever happens.

Rule 1: with `--json` nothing but JSON goes to standard output; what the file itself prints goes to standard error.
Rule 2: whoever leaves, by command, key or signal, leaves everything closed and the terminal as it was.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from typing import NamedTuple

import click

from antiphon.agents.declaration import Declaration
from antiphon.cli.chat import JsonShow, Note, Show, TextShow
from antiphon.cli.keyboard import Given, Interrupts, Keyboard, Lines, Piped
from antiphon.cli.options import VARIABLE, shown_url
from antiphon.cli.output import output
from antiphon.cli.plain import printable
from antiphon.cli.program import Opened, Program, load
from antiphon.cli.stage import cast_of, perform
from antiphon.cli.talk import MEMORY, Chat, Means, Place, Ways, described, named, unanswered
from antiphon.runtime.hub import Hub


class Wishes(NamedTuple):
    """What was typed."""

    path: str
    store: str | None
    agent: str | None
    messages: Sequence[str]
    thread_id: str
    tokens: bool | None
    as_json: bool

    @property
    def url(self) -> str:
        """Where what is said is kept."""
        return self.store or MEMORY

    @property
    def interactive(self) -> bool:
        """Whether a person types and reads."""
        typed = sys.stdin is not None and sys.stdin.isatty()
        return not self.as_json and not self.messages and typed and sys.stdout.isatty()

    @property
    def place(self) -> Place:
        """Where the conversation is held."""
        live = not self.as_json and sys.stdout.isatty()
        return Place(self.url, self.thread_id, live if self.tokens is None else self.tokens)


def converse(wishes: Wishes) -> bool:
    """Run the file and hold the conversation; whether all went well."""
    out = sys.stdout
    with redirect_stdout(sys.stderr) if wishes.as_json else nullcontext():
        program = load(wishes.path)
        if wishes.agent is not None and program.graph is not None:
            raise click.UsageError(f"{wishes.path} defines a graph, which says who speaks; leave --agent out")
        return asyncio.run(_held(wishes, program, JsonShow(out) if wishes.as_json else None))


async def _held(wishes: Wishes, program: Program, show: Show | None) -> bool:
    task = asyncio.current_task()
    assert task is not None, "it runs in one"
    left = False

    def leave() -> None:
        nonlocal left
        if not left:  # once: what is being closed is not to be interrupted
            left = True
            task.cancel()

    interrupts = Interrupts(leave)
    try:
        async with program.opened() as opened:
            with interrupts.heard(), _lines(wishes) as lines:
                ways = Ways(show or TextShow(output(), _names(opened)), lines, interrupts)
                return await _opened(wishes, opened, ways)
    except asyncio.CancelledError:
        if not left:
            raise
        task.uncancel()
        return wishes.interactive


async def _opened(wishes: Wishes, opened: Opened, ways: Ways) -> bool:
    if opened.graph is None:
        agent = opened.agents[0] if wishes.agent is None else named(opened.agents, wishes.agent)
        waiting = await unanswered(wishes.url, agent, wishes.thread_id)
        _begin(wishes, ways.show, f"{opened.title}: you talk to {described(agent)}.")
        async with Hub.open(wishes.url) as hub:
            return await Chat(opened.agents, wishes.place, Means(hub, *ways)).run(agent, waiting)
    cast = cast_of(opened)
    _begin(wishes, ways.show, f"{opened.title}: {', '.join(cast.names)} talk; you are {', '.join(cast.people)}.")
    async with Hub.open(wishes.url) as hub:
        return await perform(cast, wishes.place, Means(hub, *ways))


def _begin(wishes: Wishes, show: Show, who: str) -> None:
    """Say who is here, and where it is kept: to a person here, otherwise beside what is said."""
    memory = f"In memory, and gone at the end; to keep it: --store team.db, or {VARIABLE}."
    where = memory if wishes.url == MEMORY else f"Kept in {shown_url(wishes.url)}."
    if wishes.interactive:
        show.tell(Note(f"{who} /help lists what you can type."))
        show.tell(Note(where))
    elif not wishes.as_json:
        click.echo(printable(where), err=True)


@contextmanager
def _lines(wishes: Wishes) -> Iterator[Lines]:
    if not wishes.interactive:
        yield Given(wishes.messages) if wishes.messages or sys.stdin is None else Piped()
        return
    keyboard: AbstractContextManager[Keyboard] = Keyboard()
    with keyboard as lines:
        yield lines


def _names(opened: Opened) -> list[str]:
    """Everybody who may be shown, in an order that gives them their colours."""
    below = [name for agent in opened.agents for name in _team(agent)]
    people = cast_of(opened).names if opened.graph is not None else []
    return list(dict.fromkeys([*below, *people]))


def _team(agent: Declaration) -> list[str]:
    return [member.name for member in agent.team.members.values()]
