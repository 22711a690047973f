"""The progress of a turn, which its steps pass on, and the effects that it yields to its driver, with their results.

Rule 1: the progress is a value. A step returns another; what it does not change stays.
Rule 2: everything in it follows from the log, the replies of models and the results of tools, so that a turn that is
        run again takes the same way to the same place.
Rule 3: each effect says at which call index its journal entry stands. A model call takes one index, a message takes one
        for each tool call, an async step takes one and a sync step none, and a prompt takes one only if a summary was
        made for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy

import msgspec

from antiphon.agents.call_results import NO_USAGE, Call, Handoff, Reply, StepChanges, ToolResult, Usage, one_reply
from antiphon.agents.messages import Request, TurnExchange
from antiphon.core.codec import Malformed, check_json, check_text, copy_json, digest_of
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.core.views import Message

MemberPath = tuple[str, ...]
"""A place in a team: the names from the lead down to the member."""

EMPTY_REPLY = "empty_reply"
INVALID_OUTPUT = "invalid_output"
MAX_HANDOFFS = "max_handoffs"
MAX_MODEL_CALLS = "max_model_calls"
MAX_STEPS = "max_steps"
MAX_TOKENS = "max_tokens"
TURN_STOP_REASONS = frozenset({EMPTY_REPLY, INVALID_OUTPUT, MAX_HANDOFFS, MAX_MODEL_CALLS, MAX_STEPS, MAX_TOKENS})
"""How a turn may be stopped that has an answer all the same, though a partial one."""
DENIED_PREFIX = "denied:"
"""What stops a turn begins with this if a guard has denied a call: `denied:budget`."""
BLOCKED = f"{DENIED_PREFIX}blocked"
"""A hook has refused the answer of a turn, so that it has none."""


def has_partial_answer(stopped: str) -> bool:
    """Whether a turn that was stopped by this has an answer all the same."""
    return stopped in TURN_STOP_REASONS or (is_denied(stopped) and stopped != BLOCKED)


def is_denied(stopped: str | None) -> bool:
    """Whether this stops a turn because a guard has denied a call."""
    return stopped is not None and stopped.startswith(DENIED_PREFIX)


STEP_FIELDS = ("system", "history", "notes", "reply", "answer")
"""The fields that a user-defined step may change."""


class Progress(msgspec.Struct, frozen=True):
    """How far a turn has come."""

    path: MemberPath
    """The active agent, by the names of those above it."""
    heard: str | None = None
    """The last message of a person since the lead last spoke, if there is any."""
    last_active: MemberPath = ()
    """The member that answered last, below the lead; empty if the lead did."""
    routed: bool = False
    """Whether it is settled who begins."""
    system: str = ""
    """The system prompt."""
    history: Sequence[Message] = ()
    """What was said before, as the active agent is shown it."""
    past: str = ""
    """The digest of the history."""
    exchange: TurnExchange = ()
    """What models asked for in this turn, and what they were answered."""
    reply: Reply | None = None
    """What the model answered last; None once what it asked for has been called."""
    answer: str | None = None
    """What the turn ends with; None while that is not known."""
    answered_by_step: str = ""
    """The user-defined step that found the answer, if one did and it was not known before."""
    notes: Json = msgspec.field(default_factory=dict)
    """Values that user-defined steps pass to each other. They are gone when the turn ends."""
    stopped: str | None = None
    """The named limit that ends it."""
    handoff: Handoff | None = None
    """Who else in the channel gets the turn."""
    finish: str | None = None
    """Why there is nothing left to do."""
    usage: Usage = NO_USAGE
    tools: tuple[str, ...] = ()
    """The tools that were called and did not fail, in the order the models named them."""
    index: int = 0
    """The position of the next call."""
    asked: int = 0
    """How often a model was asked."""
    hops: int = 0
    """How often another member of the team became active, by the choice of a model."""
    refused: int = 0
    """How often that was refused because it had happened too often."""
    repairs: int = 0
    """How often the model was asked to correct the shape of its answer."""
    partial: str = ""
    """The last thing that a model said."""

    @property
    def agent(self) -> str:
        """The active agent."""
        return self.path[-1]

    @property
    def lead(self) -> str | None:
        """The lead of the active agent; None for the lead of the team."""
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def messages(self) -> list[Message]:
        """What was said before, as (role, text) pairs."""
        return list(self.history)

    def replace(self, **changes: object) -> Progress:
        """The same, but for these: `system`, `history`, `notes`, `reply` or `answer`."""
        unknown = changes.keys() - set(STEP_FIELDS)
        if unknown:
            raise UsageError(f"a step cannot change {describe(min(unknown))}; it can change: {', '.join(STEP_FIELDS)}")
        return msgspec.structs.replace(
            self, **{name: _check_step_field(name, value) for name, value in changes.items()}
        )

    def detached(self) -> Progress:
        """A copy: changes to its lists and dicts change nothing here."""
        return msgspec.structs.replace(
            self, history=list(self.history), notes=copy_json(self.notes), reply=deepcopy(self.reply)
        )


def _check_step_field(name: str, value: object) -> object:
    """What a step gives for a field, as it is kept; `UsageError` if it cannot be."""
    check, advice = _FIELDS[name]
    try:
        return check(value)
    except Malformed as error:
        raise UsageError(f"the {name} that a step gives cannot be recorded: {error}") from error
    except TypeError as error:
        raise UsageError(f"the {name} that a step gives is {describe(value)}; give {advice}") from error


def _check_field_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    check_text(value)
    return value


def _check_field_history(value: object) -> list[Message]:
    if not isinstance(value, list | tuple) or not all(isinstance(message, list | tuple) for message in value):
        raise TypeError
    return [Message(*map(_check_field_text, message)) for message in value]


def _check_field_notes(value: object) -> Json:
    if not isinstance(value, dict):
        raise TypeError
    check_json(value)
    return value


def _check_field_reply(value: object) -> Reply | None:
    if value is None:
        return None
    reply = one_reply(value)
    check_json([reply.text, *([call.name, call.args, call.call_id] for call in reply.calls)])
    return reply


_FIELDS: dict[str, tuple[Callable[[object], object], str]] = {
    "system": (_check_field_text, "a text"),
    "history": (_check_field_history, "a list of (role, text) pairs"),
    "notes": (_check_field_notes, "a dict"),
    "reply": (_check_field_reply, "says(…), calls(…) or None"),
    "answer": (lambda value: None if value is None else _check_field_text(value), "a text or None"),
}
"""What checks the value that a step gives for a field, and what it should give."""


def changes_between(before: Progress, after: Progress) -> StepChanges:
    """What a step has changed."""
    same = after.history is before.history or list(after.history) == list(before.history)
    gone = (name for name in ("reply", "answer") if getattr(after, name) is None and getattr(before, name) is not None)
    return StepChanges(
        after.system if after.system != before.system else None,
        None if same else [Message(*message) for message in after.history],
        after.notes if after.notes != before.notes else None,
        after.reply if after.reply != before.reply else None,
        after.answer if after.answer != before.answer else None,
        tuple(gone),
    )


def apply_changes(progress: Progress, changes: StepChanges) -> Progress:
    """The progress with these changes."""
    given: dict[str, object] = dict.fromkeys(changes.gone)
    given |= {name: value for name in STEP_FIELDS if (value := getattr(changes, name)) is not None}
    if changes.history is not None:
        given["past"] = digest_of([progress.past, changes.history])
    return msgspec.structs.replace(progress, **given)


StepFunction = Callable[[Progress], Progress | Awaitable[Progress | None] | None]
"""A user-defined step. None changes nothing."""


class AskModel(msgspec.Struct, frozen=True):
    """Ask the model of the active agent."""

    index: int
    request: Request
    path: MemberPath


class CallTool(msgspec.Struct, frozen=True):
    """Call a tool of the active agent."""

    index: int
    call: Call
    path: MemberPath
    hops: int = 0
    """How many handoffs the turn has made before it."""


class PreparePrompt(msgspec.Struct, frozen=True):
    """Render the prompt of a member that becomes active. A summary, if one is due, is made at this index."""

    index: int
    path: MemberPath


class PreparedPrompt(msgspec.Struct, frozen=True):
    """The system prompt and the history of a member that becomes active."""

    system: str = ""
    history: Sequence[Message] = ()
    past: str = ""
    """The digest of the whole history."""
    summarised: Reply | None = None
    """The summary that was made for it, if one was: it has taken a call index."""


class RunStep(msgspec.Struct, frozen=True):
    """Run a user-defined step. The changes of an async one are recorded in the journal at this index."""

    index: int
    name: str
    function: StepFunction
    progress: Progress

    @property
    def waits(self) -> bool:
        """Whether it may touch the world, and so must not be run again once it has returned."""
        return inspect.iscoroutinefunction(self.function)


HANDOFF_IGNORED, HANDOFF_IMPOSSIBLE, TOO_MANY_HANDOFFS = "ignored", "impossible", "too_many"
"""Why a handoff is declined."""


class CallDenied(msgspec.Struct, frozen=True):
    """A guard has denied a call, and the turn ends with that."""

    reason: str
    answer: str = ""
    """What the agent says instead; "" for what it has said so far."""


class SettledHandoffs(msgspec.Struct, frozen=True):
    """The results of a message with at most one handoff left."""

    results: tuple[ToolResult, ...]
    place: MemberPath | None = None
    """The member of the team that becomes active."""
    denied: CallDenied | None = None
    """Set if the denial of one of the calls ends the turn."""


Effect = AskModel | tuple[CallTool, ...] | PreparePrompt | RunStep
"""What a turn needs next: the model, tools that may all be called at once, a prompt, or a user-defined step."""
EffectResult = Reply | SettledHandoffs | PreparedPrompt | StepChanges | CallDenied
"""The result of each, in the same order; of any but tool calls it may be a denial."""
