"""A request for a chat completion, understood: who is asked, what was said before, and what is said now.

Rule 1: what an agent could not do as asked is refused by its name. Nothing that matters is passed over.
Rule 2: an agent's prompt is its owner's. What a client calls a system message is something that the user said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from antiphon.core.codec import digest_of
from antiphon.core.views import Message
from antiphon.core.words import shown
from antiphon.runtime.invoking import ASSISTANT
from antiphon.server.chat_shapes import ChatMessage, ChatRequest
from antiphon.server.problems import Refused
from antiphon.server.shapes import LONGEST
from antiphon.server.verbs import Visit

NAME_HEADER = "x-thread-id"
KEY_HEADER = "idempotency-key"
ROLES = {"system": "system", "developer": "system", "user": "user", ASSISTANT: ASSISTANT}
OWN_TOOLS = "an agent has tools of its own, and calls them itself"
OWN_OUTPUT = "an agent answers in the form that it was declared with"
ONE_ANSWER = "an agent gives one answer, in words"


class Field(NamedTuple):
    """Something that a client may say, if it says nothing by it."""

    name: str
    is_harmless: Callable[[object], bool]
    why: str


def _is_empty(value: object) -> bool:
    return not value


def _is_no_choice(value: object) -> bool:
    return value in (None, "none", "auto")


FIELDS = (
    Field("tools", _is_empty, OWN_TOOLS),
    Field("tool_choice", _is_no_choice, OWN_TOOLS),
    Field("functions", _is_empty, OWN_TOOLS),
    Field("function_call", _is_no_choice, OWN_TOOLS),
    Field("web_search_options", lambda value: value is None, OWN_TOOLS),
    Field("response_format", lambda value: value in (None, {"type": "text"}), OWN_OUTPUT),
    Field("modalities", lambda value: value in (None, ["text"]), ONE_ANSWER),
    Field("audio", lambda value: value is None, ONE_ANSWER),
    Field("n", lambda value: value in (None, 1), ONE_ANSWER),
    Field("logprobs", _is_empty, "an agent may have asked several models for its answer, or none"),
    Field("top_logprobs", _is_empty, "an agent may have asked several models for its answer, or none"),
)


class Conversation(msgspec.Struct, frozen=True):
    """What was said before, and what is said now."""

    earlier: tuple[Message, ...]
    text: str

    def seeds(self) -> list[Message]:
        """The earlier messages as a new channel imports them: those with a text, in the roles of the client."""
        return [message for message in self.earlier if message.text]

    def answered(self, text: str) -> tuple[Message, ...]:
        """The whole conversation when this is the answer."""
        return (*self.earlier, Message("user", self.text), Message(ASSISTANT, text))


def conversation_of(request: ChatRequest) -> Conversation:
    """The conversation of a request; `Refused` if it asks for something that no agent could do."""
    for field in FIELDS:
        value: object = getattr(request, field.name)
        if not field.is_harmless(value):
            raise _unsupported(f"{field.name} is {shown(value)}, which is not taken here: {field.why}; leave it out")
    *earlier, last = [_message(each, place) for place, each in enumerate(request.messages)]
    if last.role != "user":
        said = request.messages[-1].role
        raise _unsupported(f"the last of the messages has the role {said!r}; end with what the user says")
    return Conversation(tuple(earlier), last.text)


def digest(visit: Visit, request: ChatRequest, messages: Sequence[Message]) -> str:
    """A conversation as one number: of whom, with whom, and what was said. White space around that does not count."""
    said = [[role, text.strip()] for role, text in messages]
    return digest_of([visit.principal.name, request.model, request.user, said])


def thread_id_of(visit: Visit, request: ChatRequest) -> str | None:
    """The thread that a request names; None if it names none."""
    named = header_of(visit, NAME_HEADER)
    given = (request.metadata or {}).get("thread_id")
    if given is None:
        return named
    if not isinstance(given, str) or not 0 < len(given) <= LONGEST:
        raise Refused(422, "bad_thread", f"metadata.thread_id is {shown(given)}; give 1 to {LONGEST} characters")
    if named not in (None, given):
        raise Refused(422, "bad_thread", f"X-Thread-Id is {named!r} and metadata.thread_id {given!r}; give one of them")
    return given


def key_of(visit: Visit) -> str | None:
    """What makes a request repeatable; None if nothing does."""
    return header_of(visit, KEY_HEADER)


def header_of(visit: Visit, name: str) -> str | None:
    """A header, if it is given; `Refused` if it is too long, or empty."""
    value = visit.request.headers.get(name)
    if value is not None and not 0 < len(value) <= LONGEST:
        raise Refused(422, "bad_header", f"{name} has {len(value)} characters; give 1 to {LONGEST}")
    return value


def wants_events(request: ChatRequest) -> bool:
    """Whether a stream is to tell of tools and handoffs."""
    return (request.metadata or {}).get("antiphon_events") in ("true", True)


def _message(message: ChatMessage, place: int) -> Message:
    where = f"messages[{place}]"
    role = ROLES.get(message.role)
    if message.role in ("tool", "function"):
        raise _unsupported(f"{where} has the role {message.role!r}, which is not taken here: {OWN_TOOLS}")
    if role is None:
        raise _unsupported(f"{where} has the role {shown(message.role)}; there are: {', '.join(ROLES)}")
    if message.tool_calls or message.function_call:
        raise _unsupported(f"{where} calls tools, which is not taken here: {OWN_TOOLS}")
    return Message(role, _content(message, where))


def _content(message: ChatMessage, where: str) -> str:
    content = message.content
    if content is None and message.role != ASSISTANT:
        raise _unsupported(f"{where} has no content; give a text")
    if content is None or isinstance(content, str):
        return content or ""
    wrong = next((part.type for part in content if part.type != "text"), None)
    if wrong is not None:
        raise _unsupported(f"{where} has a part of the type {shown(wrong)}; only 'text' is taken here")
    return "\n".join(part.text for part in content)


def _unsupported(message: str) -> Refused:
    return Refused(400, "unsupported", message)
