"""How far a turn has come: the one value that its steps hand on.

Rule 1: it is a value. A step gives back another; what it does not change stays.
Rule 2: everything in it follows from the log, the replies of models and the results of tools, so that a turn that is
        run again comes by the same way to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import msgspec

from antiphon.agents.messages import NO_USAGE, Exchange, Reply, Usage
from antiphon.agents.replies import one_reply
from antiphon.agents.results import Handoff
from antiphon.core.codec import Malformed, check_json, check_text, copied, digest_of
from antiphon.core.errors import UsageError
from antiphon.core.events import Json
from antiphon.core.views import Message
from antiphon.core.words import shown

Path = tuple[str, ...]
"""A place in a team: the names from whoever was asked down to whoever is meant."""

YOURS = ("system", "history", "notes", "reply", "answer")
"""What a step of a user's may change."""


class Progress(msgspec.Struct, frozen=True):
    """How far a turn has come."""

    path: Path
    """Who is active, by the names of those above it."""
    heard: str | None = None
    """The last thing that a person said since whoever was asked last spoke, if there is any."""
    stored: Path = ()
    """Who answered last, below whoever was asked; empty if that one did."""
    routed: bool = False
    """Whether it is settled who begins."""
    system: str = ""
    """What the model is told first."""
    history: Sequence[Message] = ()
    """What was said before, as the active agent is shown it."""
    past: str = ""
    """The digest of the history."""
    exchange: Exchange = ()
    """What models asked for in this turn, and what they were answered."""
    reply: Reply | None = None
    """What the model answered last; None once what it asked for has been called."""
    answer: str | None = None
    """What the turn ends with; None while that is not known."""
    found_by: str = ""
    """The step of yours that found the answer, if one did and it was not known before."""
    notes: Json = msgspec.field(default_factory=dict)
    """Whatever steps of yours want to tell each other. It is gone when the turn ends."""
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
    """How often somebody else in the team became active, by the choice of a model."""
    refused: int = 0
    """How often that was refused because it had happened too often."""
    repairs: int = 0
    """How often the model was told that its answer does not have the shape that is wanted."""
    partial: str = ""
    """The last thing that a model said."""

    @property
    def agent(self) -> str:
        """Who is active."""
        return self.path[-1]

    @property
    def lead(self) -> str | None:
        """Whom the active agent works for; None for whoever was asked."""
        return self.path[-2] if len(self.path) > 1 else None

    @property
    def messages(self) -> list[Message]:
        """What was said before, as (role, text) pairs."""
        return list(self.history)

    def replace(self, **changes: object) -> Progress:
        """The same, but for these: `system`, `history`, `notes`, `reply` or `answer`."""
        unknown = changes.keys() - set(YOURS)
        if unknown:
            raise UsageError(f"a step cannot change {shown(min(unknown))}; it can change: {', '.join(YOURS)}")
        return msgspec.structs.replace(self, **{name: _checked(name, value) for name, value in changes.items()})

    def detached(self) -> Progress:
        """A copy: what somebody does to the lists and dicts in it changes nothing here."""
        return msgspec.structs.replace(
            self, history=list(self.history), notes=copied(self.notes), reply=deepcopy(self.reply)
        )


def _checked(name: str, value: object) -> object:
    """What a step gives for a field, as it is kept; `UsageError` if it cannot be."""
    try:
        return _READERS[name](value)
    except Malformed as error:
        raise UsageError(f"the {name} that a step gives cannot be recorded: {error}") from error
    except TypeError as error:
        raise UsageError(f"the {name} that a step gives is {shown(value)}; give {_WANTED[name]}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    check_text(value)
    return value


def _history(value: object) -> list[Message]:
    if not isinstance(value, list | tuple) or not all(isinstance(message, list | tuple) for message in value):
        raise TypeError
    return [Message(*map(_text, message)) for message in value]


def _notes(value: object) -> Json:
    if not isinstance(value, dict):
        raise TypeError
    check_json(value)
    return value


def _reply(value: object) -> Reply | None:
    if value is None:
        return None
    reply = one_reply(value)
    check_json([reply.text, *([call.name, call.args, call.call_id] for call in reply.calls)])
    return reply


_READERS: dict[str, Callable[[object], object]] = {
    "system": _text,
    "history": _history,
    "notes": _notes,
    "reply": _reply,
    "answer": lambda value: None if value is None else _text(value),
}
_WANTED = {
    "system": "a text",
    "history": "a list of (role, text) pairs",
    "notes": "a dict",
    "reply": "says(…), calls(…) or None",
    "answer": "a text or None",
}


class Changes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a step of a user's has changed, as the journal keeps it."""

    system: str | None = None
    history: list[Message] | None = None
    notes: Json | None = None
    reply: Reply | None = None
    answer: str | None = None
    gone: tuple[str, ...] = ()
    """What it has taken away: the reply or the answer."""


def changes_between(before: Progress, after: Progress) -> Changes:
    """What a step has changed."""
    same = after.history is before.history or list(after.history) == list(before.history)
    gone = (name for name in ("reply", "answer") if getattr(after, name) is None and getattr(before, name) is not None)
    return Changes(
        after.system if after.system != before.system else None,
        None if same else [Message(*message) for message in after.history],
        after.notes if after.notes != before.notes else None,
        after.reply if after.reply != before.reply else None,
        after.answer if after.answer != before.answer else None,
        tuple(gone),
    )


def changed(progress: Progress, changes: Changes) -> Progress:
    """The progress with these changes."""
    given: dict[str, object] = dict.fromkeys(changes.gone)
    given |= {name: value for name in YOURS if (value := getattr(changes, name)) is not None}
    if changes.history is not None:
        given["past"] = digest_of([progress.past, changes.history])
    return msgspec.structs.replace(progress, **given)
