"""A conversation while it happens, as text or as JSON.

Rule 1: every text passes `escape_unprintable`. Its further lines are indented, so that it cannot imitate another event.
Rule 2: streamed tokens are shown once; an answer that was not streamed is shown whole.
Rule 3: a handoff is shown as one, not as the tool call behind it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TextIO

import click
import msgspec

from antiphon.agents.declaration import DELEGATE_PREFIX
from antiphon.agents.handoff_tool import HANDOFF_TOOL_NAME
from antiphon.agents.intents import TRANSFER_PREFIX
from antiphon.cli.console_output import CommandOutput, write_json
from antiphon.cli.table_layout import Cell, escape_hidden, escape_unprintable, participant_colour
from antiphon.core.codec import to_json
from antiphon.core.conversation_events import (
    ConversationMoved,
    ConversationRefused,
    ConversationReleased,
    ConversationUnrouted,
)
from antiphon.core.envelope import Json
from antiphon.runtime.agent import DEFAULT_SPEAKER
from antiphon.runtime.conversation_text import ConversationNotice, notice_line
from antiphon.runtime.event_wording import format_arguments
from antiphon.runtime.turn_events import (
    APPROVAL,
    IN_DOUBT,
    SUSPENDED,
    AgentEvent,
    AIMessageEvent,
    ApprovalEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

HELP_TOOL = "request_help"
MAX_TOOL_TEXT_CHARS = 200
"""The limit for arguments and results of tools."""
MAX_STOP_REASON_CHARS = 600
DISPLAY_INDENT = "  "
IN_DOUBT_ADVICE = "say what became of it: `/settle TEXT` gives its result, `/settle again` retries it"
APPROVAL_CHAT_ADVICE = "`/approve NAME` lets it leave, `/reject NAME` refuses it; NAME is the person who decides"
WAITING_ADVICE = {
    APPROVAL: ("; decide with", APPROVAL_CHAT_ADVICE),
    IN_DOUBT: ("; say what became of it with", IN_DOUBT_ADVICE),
    SUSPENDED: (
        "; decide what becomes of it",
        "`/settle again` attempts the turn again, `/settle TEXT` is recorded as its answer",
    ),
}
"""For what waits for a person: where the advice of its detail begins, and the advice for a chat."""


class UserMessage(msgspec.Struct, frozen=True):
    """A message of a person."""

    agent: str
    text: str


class TurnGiven(msgspec.Struct, frozen=True):
    """The rules assign the turn."""

    agents: list[str]
    by: str
    """The previous speaker, or empty."""
    reason: str
    rule: int | None = None


class UnansweredTurn(msgspec.Struct, frozen=True):
    """A turn in a workflow ended without an answer."""

    agent: str
    stopped: str
    detail: str


class DisplayedHandoff(msgspec.Struct, frozen=True):
    """A team member hands the conversation to another."""

    agent: str
    to: str
    reason: str = ""


class DisplayNote(msgspec.Struct, frozen=True):
    """A note for a person; not shown as JSON."""

    text: str
    copied: bool = False
    """Whether it is to be copied, and must not be wrapped."""


DisplayEvent = (
    AgentEvent | UserMessage | TurnGiven | UnansweredTurn | DisplayedHandoff | DisplayNote | ConversationNotice
)

JSON_EVENT_NAMES: dict[type, str] = {
    UserMessage: "user_message",
    ToolUsageEvent: "tool_usage",
    ToolResponseEvent: "tool_response",
    TokenEvent: "token",
    AIMessageEvent: "ai_message",
    ApprovalEvent: "approval",
    FinalStateEvent: "done",
    TurnGiven: "turn",
    UnansweredTurn: "failed",
    ConversationMoved: "moved",
    ConversationRefused: "refused",
    ConversationReleased: "released",
    ConversationUnrouted: "unrouted",
}
"""The names of events in JSON; others are left out."""


class JsonDisplay:
    """One object a line."""

    open = False

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def tell(self, event: DisplayEvent) -> None:
        name = JSON_EVENT_NAMES.get(type(event))
        if name is not None:
            write_json({"event": name, **msgspec.to_builtins(event)}, file=self._out)


class TextDisplay:
    """Lines for a person, coloured on a terminal."""

    def __init__(self, out: CommandOutput, names: Sequence[str]) -> None:
        self._out, self._names = out, list(names)
        self._speaker, self._written = "", ""

    @property
    def open(self) -> bool:
        """Whether a streamed answer is unfinished."""
        return self._speaker != ""

    def tell(self, event: DisplayEvent) -> None:
        """Show one event."""
        match event:
            case TokenEvent(agent=agent, text=text):
                self._piece(agent, text)
            case AIMessageEvent(agent=agent, text=text):
                self._whole(agent, text)
            case _:
                self._end()
                write = self._out.command if isinstance(event, DisplayNote) and event.copied else self._out.line
                for words in _event_lines(event):
                    write(*words)

    def _piece(self, agent: str, text: str) -> None:
        if self._speaker != agent:
            if not text.strip():  # no line begins with a blank token
                return
            self._end()
            self._speaker = agent
            click.echo(self._label(agent), nl=False)
        self._written += text
        shown = escape_unprintable(text.replace("\r\n", "\n").replace("\t", "    "), keep="\n")
        click.echo(shown.replace("\n", f"\n{DISPLAY_INDENT}"), nl=False)

    def _whole(self, agent: str, text: str) -> None:
        if self._speaker != agent or self._written.strip() != text.strip():  # else it was shown, token by token
            self._end()
            self._piece(agent, text)
        self._end()

    def _end(self) -> None:
        if self._speaker:
            click.echo()
        self._speaker, self._written = "", ""

    def _label(self, agent: str) -> str:
        name = f"{escape_unprintable(agent)}:"
        colour = participant_colour(agent, self._names)
        if not self._out.terminal or "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb":
            return f"{name} "
        return click.style(name, dim=True) + " " if colour == "dim" else click.style(name, fg=colour, bold=True) + " "


Display = JsonDisplay | TextDisplay


def _event_lines(event: DisplayEvent) -> Iterator[list[str | Cell]]:
    """The lines of an event."""
    match event:
        case UserMessage(agent=agent, text=text):
            yield [input_prompt(agent), " ".join(text.splitlines())]
        case ToolUsageEvent() | ToolResponseEvent():
            told = _tool_line(event)
            if told:
                yield [Cell(f"{DISPLAY_INDENT}{told}", "dim")]
        case DisplayedHandoff(agent=agent, to=to, reason=reason):
            yield [DISPLAY_INDENT, Cell(f"{agent} → {to}", "bold"), Cell(f": {one_line(reason)}" * bool(reason), "dim")]
        case TurnGiven(agents=agents, by=by, reason=reason, rule=rule):
            why = one_line(reason) + ("" if rule is None else f", rule {rule}")
            yield [DISPLAY_INDENT, Cell(f"{by} → {', '.join(agents)}".lstrip(), "bold"), Cell(f"  ({why})", "dim")]
        case FinalStateEvent() | UnansweredTurn() | ApprovalEvent():
            yield from _ending_lines(event)
        case DisplayNote(text=text):
            yield [Cell(text, "dim")]
        case ConversationMoved() | ConversationRefused() | ConversationReleased() | ConversationUnrouted():
            line = one_line(notice_line(event), MAX_STOP_REASON_CHARS)
            if line:
                yield [Cell("— ", "dim"), line]
        case _:
            pass


def _ending_lines(event: FinalStateEvent | UnansweredTurn | ApprovalEvent) -> Iterator[list[str | Cell]]:
    if isinstance(event, ApprovalEvent):
        waiting = event.approval
        notes = approval_notes(waiting.tool, waiting.args, waiting.why, approvers=waiting.approvers)
        for note in notes:
            yield [DISPLAY_INDENT, Cell(note.text, "yellow")]
    elif isinstance(event, FinalStateEvent) and not event.agent and event.stopped is not None:
        yield [Cell("closed: ", "bold"), one_line(event.stopped)]
    elif event.stopped is not None:
        who = f"{event.agent} " if isinstance(event, UnansweredTurn) else ""
        their_advice, advice = ("", "") if who else WAITING_ADVICE.get(event.stopped, ("", ""))
        detail = one_line(event.detail.partition(their_advice)[0] if advice else event.detail, MAX_STOP_REASON_CHARS)
        yield [DISPLAY_INDENT, Cell(f"{who}stopped: {event.stopped}", "yellow"), f": {detail}" if detail else ""]
        if advice:
            yield [DISPLAY_INDENT, Cell(advice, "dim")]


def _tool_line(event: ToolUsageEvent | ToolResponseEvent) -> str:
    """A call or its result; empty if another event shows it."""
    if event.tool == HANDOFF_TOOL_NAME:
        return ""
    hands = event.tool == HELP_TOOL or event.tool.startswith(TRANSFER_PREFIX)
    given = event.tool.removeprefix(DELEGATE_PREFIX) if event.tool.startswith(DELEGATE_PREFIX) else ""
    match event:
        case ToolUsageEvent() if hands:
            return ""
        case ToolUsageEvent(agent=agent, args=args) if given:
            return f"{agent} gives {given} a task: {one_line(str(args.get('task', '')))}"
        case ToolUsageEvent(agent=agent, tool=tool, args=args):
            return f"{agent} calls {tool}({one_line(format_arguments(args))})"
        case ToolResponseEvent(failed=False) if hands:
            return ""
        case ToolResponseEvent(agent=agent, text=text) if hands:
            to = "help" if event.tool == HELP_TOOL else event.tool.removeprefix(TRANSFER_PREFIX)
            return f"{agent} → {to} is refused: {one_line(text)}"
        case ToolResponseEvent(text=text, failed=failed) if given:
            return f"{given} {'fails' if failed else 'reports'}: {one_line(text)}"
        case ToolResponseEvent(tool=tool, text=text, failed=failed):
            return f"{tool} {'failed' if failed else 'returned'}: {one_line(text)}"


def approval_notes(tool: str, args: Json, why: str, *, approvers: Sequence[str]) -> Iterator[DisplayNote]:
    """A call that waits for approval, with the arguments as they are: no hidden character, and nothing left out."""
    who = f"; {', '.join(approvers)} may decide" if approvers else ""
    yield DisplayNote(escape_hidden(f"waits for approval: {tool} {to_json(args).decode()}"))
    yield DisplayNote(escape_hidden(f"{why}{who}"))


class HandoffTracker:
    """Tracks the acting agent of one turn, and adds an event for each handoff."""

    def __init__(self) -> None:
        self._acting, self._why = "", ""

    def with_handoffs(self, event: AgentEvent) -> Iterator[DisplayEvent]:
        """The event, with the handoff that it implies before or after it."""
        if isinstance(event, ToolUsageEvent | TokenEvent | AIMessageEvent):
            if self._acting not in ("", event.agent):
                yield DisplayedHandoff(self._acting, event.agent, self._why)
            self._acting, self._why = event.agent, ""
        yield event
        match event:
            case ToolUsageEvent(tool=tool, args=args) if tool == HELP_TOOL:
                self._why = str(args.get("reason", ""))
            case ToolResponseEvent(agent=agent, tool=tool, failed=False) if tool.startswith(TRANSFER_PREFIX):
                self._acting = tool.removeprefix(TRANSFER_PREFIX)
                yield DisplayedHandoff(agent, self._acting)
            case _:
                pass


def input_prompt(name: str) -> str:
    """The prompt of a person."""
    return "you> " if name == DEFAULT_SPEAKER else f"{name}> "


def one_line(text: str, longest: int = MAX_TOOL_TEXT_CHARS) -> str:
    """The text on one line, cut short."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else f"{flat[:longest]}…"
