"""What `antiphon run` does: a conversation with the agents of a Python file, as its graph or router says if it has one.

Rule 1: with `--json` nothing but JSON goes to standard output; what the file itself prints goes to standard error.
Rule 2: however the conversation ends (command, key or signal), everything is closed and the terminal is restored.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TypedDict

import click

from antiphon.cli.chat_view import AgentChat, ChatContext, describe_agent, find_agent, unanswered_messages
from antiphon.cli.console_output import select_output
from antiphon.cli.event_display import Display, JsonDisplay, TextDisplay
from antiphon.cli.line_input import Interrupts, KeyboardLines, LineSource, ReadLines, given_lines, piped_lines
from antiphon.cli.program import Program, ProgramRoster, load_program, program_roster
from antiphon.cli.store_options import MEMORY_URL, STORE_VARIABLE, url_without_password
from antiphon.cli.table_layout import escape_unprintable
from antiphon.cli.workflow_view import WorkflowView
from antiphon.core.envelope import Json
from antiphon.runtime.agent import Agent
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import Participant

CHANNEL_KEY_VARIABLE = "thread_id"
"""The context variable by which a channel is found again."""


class RunOptions(TypedDict):
    """The arguments of the command."""

    path: str
    store: str | None
    agent: str | None
    messages: Sequence[str]
    thread_id: str
    tokens: bool | None
    as_json: bool


def run_program(options: RunOptions) -> bool:
    """Execute the file and hold the conversation; False if a turn failed."""
    json_display = JsonDisplay(sys.stdout) if options["as_json"] else None
    with redirect_stdout(sys.stderr) if json_display else nullcontext():
        program = load_program(options["path"])
        ruled = "a graph" if program.graph is not None else "a router" if program.routing is not None else ""
        if options["agent"] is not None and ruled:
            raise click.UsageError(f"{options['path']} defines {ruled}, which says who speaks; leave --agent out")
        return asyncio.run(_run_conversation(options, program, json_display))


async def _run_conversation(options: RunOptions, program: Program, display: Display | None) -> bool:
    interrupts, source = Interrupts(), _line_source(options)
    live = display is None and sys.stdout.isatty()
    tokens = live if options["tokens"] is None else options["tokens"]
    try:
        async with program.open() as agents:
            roster = program_roster(program, agents)
            members = [member.name for agent in agents for member in agent.team.members.values()]
            names = dict.fromkeys([*members, *(roster.names if roster else [])])  # in the order of their colours
            display = display or TextDisplay(select_output(), list(names))
            with interrupts.handle_signals(), source as lines:
                url = options["store"] or MEMORY_URL
                context = ChatContext(display, lines, interrupts, url, options["thread_id"], tokens)
                return await (
                    _run_channel(roster, agents, context)
                    if roster is not None
                    else _run_chat(program.title, agents, context, name=options["agent"])
                )
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not interrupts.left or task is None:
            raise
        task.uncancel()
        return isinstance(source, KeyboardLines) and sys.stdin.isatty()  # which it is no more if it went away


def _line_source(options: RunOptions) -> AbstractContextManager[LineSource]:
    """The keyboard, if both ends are a terminal; else the lines that are given, or piped."""
    if options["messages"] or sys.stdin is None:
        return nullcontext(ReadLines(given_lines(options["messages"])))
    if options["as_json"] or not sys.stdin.isatty() or not sys.stdout.isatty():
        return nullcontext(ReadLines(piped_lines()))
    return KeyboardLines()


def _announce_conversation(context: ChatContext, who: str) -> None:
    """Show the participants and the store: on the display, or on standard error if there is no person."""
    memory = f"In memory, and gone at the end; to keep it: --store team.db, or {STORE_VARIABLE}."
    where = memory if context.url == MEMORY_URL else f"Kept in {url_without_password(context.url)}."
    if context.lines.interactive:
        context.note(f"{who} /help lists what you can type.")
        context.note(where)
    elif isinstance(context.display, TextDisplay):
        click.echo(escape_unprintable(where), err=True)


async def _run_chat(title: str, agents: tuple[Agent, ...], context: ChatContext, *, name: str | None) -> bool:
    agent = agents[0] if name is None else find_agent(agents, name)
    waiting = await unanswered_messages(context.url, agent, context.thread_id)
    _announce_conversation(context, f"{title}: you talk to {describe_agent(agent)}.")
    async with Hub.open(context.url) as hub:
        return await AgentChat(hub, agents, context).run(agent, waiting)


async def _run_channel(roster: ProgramRoster, agents: tuple[Agent, ...], context: ChatContext) -> bool:
    """Hold the conversation until its channel closes or the person leaves; False if a turn failed."""
    names, people = roster.names, roster.people
    _announce_conversation(context, f"{roster.title}: {', '.join(names)} talk; you are {', '.join(people)}.")
    async with Hub.open(context.url) as hub:
        held = {name: await hub.register(name, kind="human") for name in people}
        held |= {agent.name: await hub.register(agent) for agent in agents}
        channel_id = await _find_channel(hub, held[people[0]], roster, thread_id=context.thread_id)
        if channel_id is None:
            variables: Json = {CHANNEL_KEY_VARIABLE: context.thread_id}
            opened = await held[names[0]].open(
                type=roster.type, target=names[1:], knobs=roster.knobs, context_vars=variables
            )
            channel_id = opened.channel_id
        channels = {name: await held[name].channel(channel_id) for name in people}
        return await WorkflowView(hub, channels, context).run()


async def _find_channel(hub: Hub, person: Participant, roster: ProgramRoster, *, thread_id: str) -> str | None:
    """The open channel of this conversation, if there is one."""
    for row in reversed(await hub.channels(status="active", participant=person.name)):
        if row.type != roster.type or row.participants != roster.names:
            continue
        state = (await person.channel(row.channel_id)).state
        same = all(state.knobs.get(name) == value for name, value in roster.knobs.items())
        if same and state.context_vars.get(CHANNEL_KEY_VARIABLE) == thread_id:
            return row.channel_id
    return None
