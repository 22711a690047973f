"""A conversation as it is shown while it happens: for a person, or as JSON for a program.

Rule 1: everything that others have said passes `printable`. What they say on further lines is set in, so that it cannot
        be taken for something else.
Rule 2: what comes in pieces is shown in pieces, once; what is not shown in pieces is shown whole.
Rule 3: a handover is told as what it is, not as the tool that brought it about.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Protocol, TextIO

import click
import msgspec

from antiphon.agents.delegating import DELEGATE
from antiphon.agents.intents import TRANSFER
from antiphon.cli.output import Cell, Output
from antiphon.cli.plain import printable
from antiphon.cli.telling import colour_of
from antiphon.core.events import Json
from antiphon.runtime.events import (
    AgentEvent,
    AIMessageEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from antiphon.runtime.invoking import USER
from antiphon.runtime.told import IN_DOUBT, SUSPENDED

HELP = "request_help"
LONGEST = 200
"""How much is shown of what a tool was asked and has answered."""
LONGEST_REASON = 600
SET_IN = "  "
DECIDING = "`/settle again` attempts the turn again, `/settle TEXT` is recorded as its answer"
SETTLING = "say what became of it: `/settle TEXT` is what it came to, `/settle again` has it made again"


class UserMessage(msgspec.Struct, frozen=True):
    """A person said something."""

    agent: str
    text: str


class TurnGiven(msgspec.Struct, frozen=True):
    """The rules have given the turn to these, and why."""

    agents: list[str]
    by: str
    """Who spoke before, if anybody did."""
    reason: str
    rule: int | None = None


class Unanswered(msgspec.Struct, frozen=True):
    """A turn in a workflow ended without an answer."""

    agent: str
    stopped: str
    detail: str


class Handover(msgspec.Struct, frozen=True):
    """One of a team hands the conversation to another."""

    agent: str
    to: str
    reason: str = ""


class Note(msgspec.Struct, frozen=True):
    """Something that a person should know. Programs are not told."""

    text: str
    copied: bool = False
    """Whether it is there to be copied, and must not be broken."""


Shown = AgentEvent | UserMessage | TurnGiven | Unanswered | Handover | Note

NAMES: dict[type, str] = {
    UserMessage: "user_message",
    ToolUsageEvent: "tool_usage",
    ToolResponseEvent: "tool_response",
    TokenEvent: "token",
    AIMessageEvent: "ai_message",
    FinalStateEvent: "done",
    TurnGiven: "turn",
    Unanswered: "failed",
}
"""What each is called in JSON. What has no name here is not told there."""


class Show(Protocol):
    """Takes what happens, in order."""

    @property
    def open(self) -> bool:
        """Whether somebody is in the middle of a line."""
        ...

    def tell(self, event: Shown) -> None:
        """Show this."""
        ...


class JsonShow:
    """One object a line."""

    open = False

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, event: Shown) -> None:
        name = NAMES.get(type(event))
        if name is not None:
            fields: Json = {"event": name, **msgspec.to_builtins(event)}
            click.echo(json.dumps(fields, separators=(",", ":")), file=self._out)


class TextShow:
    """Lines for a person, coloured on a terminal."""

    def __init__(self, out: Output, names: Sequence[str]) -> None:
        self._out, self._names = out, list(names)
        self._speaker, self._written = "", ""

    @property
    def open(self) -> bool:
        """Whether somebody is in the middle of a line."""
        return self._speaker != ""

    def tell(self, event: Shown) -> None:
        """Show this."""
        match event:
            case TokenEvent(agent=agent, text=text):
                self._piece(agent, text)
            case AIMessageEvent(agent=agent, text=text):
                self._whole(agent, text)
            case _:
                self._end()
                write = self._out.command if isinstance(event, Note) and event.copied else self._out.line
                for words in _lines(event):
                    write(*words)

    def _piece(self, agent: str, text: str) -> None:
        if self._speaker != agent:
            if not text.strip():  # nobody begins with nothing
                return
            self._end()
            self._speaker = agent
            self._write(self._label(agent))
        self._written += text
        self._write(set_in(text))

    def _whole(self, agent: str, text: str) -> None:
        if self._speaker == agent and self._written.strip() == text.strip():  # it has been shown as it came
            self._end()
            return
        self._end()
        self._piece(agent, text)
        self._end()

    def _end(self) -> None:
        if self._speaker:
            self._write("\n")
        self._speaker, self._written = "", ""

    def _label(self, agent: str) -> str:
        name = f"{printable(agent)}:"
        colour = colour_of(agent, self._names)
        if not self._out.terminal or not _has_colours():
            return f"{name} "
        return click.style(name, dim=True) + " " if colour == "dim" else click.style(name, fg=colour, bold=True) + " "

    def _write(self, text: str) -> None:
        click.echo(text, nl=False)


def _lines(event: Shown) -> Iterator[list[str | Cell]]:
    """What is shown of something on lines of its own."""
    match event:
        case UserMessage(agent=agent, text=text):
            yield [prompt_of(agent), " ".join(text.splitlines())]
        case ToolUsageEvent() | ToolResponseEvent():
            told = _of_tool(event)
            if told:
                yield [Cell(f"{SET_IN}{told}", "dim")]
        case Handover(agent=agent, to=to, reason=reason):
            yield [SET_IN, Cell(f"{agent} → {to}", "bold"), Cell(f": {one_line(reason)}" if reason else "", "dim")]
        case TurnGiven() as given:
            yield [SET_IN, Cell(_moved(given), "bold"), Cell(f"  ({one_line(given.reason)}{_rule(given)})", "dim")]
        case FinalStateEvent() | Unanswered():
            yield from _ended(event)
        case Note(text=text):
            yield [Cell(text, "dim")]
        case _:
            pass


def _ended(event: FinalStateEvent | Unanswered) -> Iterator[list[str | Cell]]:
    match event:
        case FinalStateEvent(stopped=None):
            pass
        case FinalStateEvent(agent="", stopped=reason):
            yield [Cell("closed: ", "bold"), one_line(reason or "")]
        case FinalStateEvent(stopped=stopped, detail=detail) if stopped == IN_DOUBT:
            yield [SET_IN, Cell("stopped: in_doubt", "yellow"), f": {one_line(doubt_of(detail), LONGEST_REASON)}"]
            yield [SET_IN, Cell(SETTLING, "dim")]
        case FinalStateEvent(stopped=stopped, detail=detail) if stopped == SUSPENDED:
            why = detail.partition("; decide what becomes of it")[0]
            yield [SET_IN, Cell("stopped: suspended", "yellow"), f": {one_line(why, LONGEST_REASON)}"]
            yield [SET_IN, Cell(DECIDING, "dim")]
        case FinalStateEvent(stopped=stopped, detail=detail):
            yield [SET_IN, Cell(f"stopped: {stopped}", "yellow"), _because(detail)]
        case Unanswered(agent=agent, stopped=stopped, detail=detail):
            yield [SET_IN, Cell(f"{agent} stopped: {stopped}", "yellow"), _because(detail)]


def _of_tool(event: ToolUsageEvent | ToolResponseEvent) -> str:
    """A call or what it came to; nothing if it is told in another way."""
    hands, to = is_handing(event.tool), event.tool.removeprefix(TRANSFER)
    given = event.tool.removeprefix(DELEGATE) if event.tool.startswith(DELEGATE) else ""
    match event:
        case ToolUsageEvent() if hands:
            return ""
        case ToolUsageEvent(agent=agent, args=args) if given:
            return f"{agent} gives {given} a task: {one_line(str(args.get('task', '')))}"
        case ToolUsageEvent(agent=agent, tool=tool, args=args):
            return f"{agent} calls {tool}({one_line(arguments(args))})"
        case ToolResponseEvent(failed=False) if hands:
            return ""
        case ToolResponseEvent(agent=agent, text=text) if hands:
            return f"{agent} → {to if to != HELP else 'help'} is refused: {one_line(text)}"
        case ToolResponseEvent(text=text, failed=failed) if given:
            return f"{given} {'fails' if failed else 'reports'}: {one_line(text)}"
        case ToolResponseEvent(tool=tool, text=text, failed=failed):
            return f"{tool} {'failed' if failed else 'returned'}: {one_line(text)}"


def _moved(given: TurnGiven) -> str:
    to = ", ".join(given.agents)
    return f"{given.by} → {to}" if given.by else f"→ {to}"


def _rule(given: TurnGiven) -> str:
    return "" if given.rule is None else f", rule {given.rule}"


def _because(detail: str) -> str:
    return f": {one_line(detail, LONGEST_REASON)}" if detail else ""


class Handovers:
    """Who acts in one turn, so that it is told when another takes over."""

    def __init__(self) -> None:
        self._acting, self._why = "", ""

    def around(self, event: AgentEvent) -> Iterator[Shown]:
        """The event, with the handover that it shows before or behind it."""
        if isinstance(event, ToolUsageEvent | TokenEvent | AIMessageEvent):
            if self._acting not in ("", event.agent):
                yield Handover(self._acting, event.agent, self._why)
            self._acting, self._why = event.agent, ""
        yield event
        match event:
            case ToolUsageEvent(tool=tool, args=args) if tool == HELP:
                self._why = str(args.get("reason", ""))
            case ToolResponseEvent(agent=agent, tool=tool, failed=False) if tool.startswith(TRANSFER):
                self._acting = tool.removeprefix(TRANSFER)
                yield Handover(agent, self._acting)
            case _:
                pass


def is_handing(tool: str) -> bool:
    """Whether this is one of the tools by which a team hands a conversation over."""
    return tool == HELP or tool.startswith(TRANSFER)


def prompt_of(name: str) -> str:
    """What stands before what a person says."""
    return "you> " if name == USER else f"{name}> "


def arguments(args: Json) -> str:
    """The arguments of a call, as they would be written."""
    return ", ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in args.items())


def doubt_of(detail: str) -> str:
    """What is in doubt, without how a program settles it."""
    return detail.partition("; say what became of it with")[0]


def one_line(text: str, longest: int = LONGEST) -> str:
    """The text on one line, cut short."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[:longest]}…"


def set_in(text: str) -> str:
    """The text as it may be shown, further lines set in."""
    return printable(text.replace("\r\n", "\n").replace("\t", "    "), keep="\n").replace("\n", f"\n{SET_IN}")


def _has_colours() -> bool:
    return "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"
