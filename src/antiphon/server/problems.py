"""Errors as answers: a status, a stable word to branch on, and a sentence.

Rule 1: whatever is not there, or not for whoever asks, is the same 404.
Rule 2: what went wrong inside is logged, and told as nothing but that.
Rule 3: a message is a sentence of ours. The text of an exception that is not ours, a path or a key is never part of it,
        nor is a key that the request itself has put where a name belongs.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from antiphon.core.codec import Malformed, to_json
from antiphon.core.disclosure import LOG, disclosed, sentence_of
from antiphon.core.errors import (
    AntiphonError,
    Denied,
    LogCorrupt,
    OutcomeUnknown,
    StoreGone,
    StoreUnavailable,
    TooLarge,
    TurnFailed,
    UnknownChannel,
    UsageError,
)
from antiphon.hub.redacting import redacted

log = logging.getLogger("antiphon.server")

JSON = "application/json"
CHAT = "/v1/"
"""Below this path errors have the form that clients of chat completions know."""
DENIALS = {
    "too_large": 413,
    **dict.fromkeys(("not_a_participant", "not_a_person", "not_a_writer", "forged_sender", "wrong_scope"), 403),
    **dict.fromkeys(
        (
            "bad_audience",
            "bad_causation",
            "bad_event_type",
            "bad_number",
            "bad_priority",
            "bad_text",
            "malformed",
            "not_json",
            "reserved_event",
            "reserved_field",
            "too_deep",
            "unknown_audience",
            "unknown_causation",
        ),
        422,
    ),
}
"""The status of a refusal by its reason; that something is not possible now is 409."""
TURNS = {
    "model_error": 502,
    "model_timeout": 504,
    **dict.fromkeys(("in_doubt", "suspended", "rejected", "cancelled", "channel_closed"), 409),
}
"""The status of a turn that failed, by its reason; what else can go wrong is wrong with the agent itself."""
AGAIN = {"retry-after": "1"}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong."""

    reason: str
    """A stable word to branch on."""
    message: str
    channel_id: str = ""
    agent: str = ""
    """The agent that was active when a turn failed."""


GONE = Fault("store_gone", "the file of the store is gone; the server must be started again")
"""The message of `store_gone`, in an answer or in the last event of a stream."""


class Problem(msgspec.Struct, frozen=True):
    """What is answered instead of what was asked for."""

    error: Fault


class ChatFault(msgspec.Struct, frozen=True):
    """What went wrong, as clients of chat completions know it."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    """A stable word to branch on."""


class ChatProblem(msgspec.Struct, frozen=True):
    """What clients of chat completions are answered instead of what they asked for."""

    error: ChatFault


class Refused(AntiphonError):
    """A request cannot be answered as it is, for a reason that only matters over HTTP."""

    def __init__(self, status: int, reason: str, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.reason, self.close = status, reason, close


def problem(
    status: int, reason: str, message: str, *, path: str = "", channel_id: str = "", agent: str = ""
) -> Response:
    """The answer that something went wrong."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else AGAIN if status in (429, 503) else None
    message = redacted(message)
    body: object = Problem(Fault(reason, message, channel_id, agent))
    if path.startswith(CHAT):
        kind = KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
        body = ChatProblem(ChatFault(message, kind, code=reason))
    return Response(to_json(body), status, headers=headers, media_type=JSON)


def _refused(error: Refused, path: str) -> Response:
    answer = problem(error.status, error.reason, str(error), path=path)
    if error.close:
        answer.headers["connection"] = "close"
    return answer


def problem_of(error: BaseException, *, path: str, closing: bool) -> Response:
    """What an error is told as. One that nobody foresaw is logged."""
    match error:
        case Refused():
            return _refused(error, path)
        case Denied():
            status = DENIALS.get(error.reason, 409)
            return problem(status, error.reason, _denial(error), path=path, channel_id=error.channel_id)
        case TurnFailed():
            status = TURNS.get(error.reason, 500)
            where, who = error.channel_id, error.agent
            words = str(TurnFailed(error.reason, where, disclosed(error.reason, error.detail)))
            return problem(status, error.reason, words, path=path, channel_id=where, agent=who)
        case UnknownChannel():
            return problem(404, "unknown_channel", str(error), path=path)
        case UsageError() if closing:
            return problem(503, "stopping", "the server stops; ask again soon, with the same message_id", path=path)
        case UsageError() if _is_own(error):
            return problem(422, "bad_request", str(error), path=path)
        case UsageError():
            log.warning("a request to %s is refused: %s", path, error)
            return problem(422, "bad_request", f"the request does not fit the server; {LOG}", path=path)
        case TooLarge():
            return problem(413, "too_large", str(error), path=path)
        case LogCorrupt():
            log.warning("a request to %s is refused: %s", path, error)
            return problem(409, "quarantined", sentence_of("quarantined"), path=path, channel_id=error.channel_id)
        case _:
            return _inside(error, path)


def _denial(denied: Denied) -> str:
    """What is told of a refusal. What rules of a user's raised is logged instead."""
    if denied.reason != "rules_failed":
        return str(denied)
    log.warning("the rules of %s failed: %s", denied.channel_id, denied.detail)
    return str(Denied(denied.reason, denied.channel_id, sentence_of(denied.reason)))


def _is_own(error: UsageError) -> bool:
    """Whether an error's words are ours. Those of one that stems from another error may repeat that one's."""
    cause = error.__cause__
    while isinstance(cause, AntiphonError | Malformed | msgspec.ValidationError):
        cause = cause.__cause__
    return cause is None


def _inside(error: BaseException, path: str) -> Response:
    """What went wrong in here, of which whoever asked learns no more than what to do."""
    if isinstance(error, StoreGone):
        return problem(503, GONE.reason, GONE.message, path=path)
    if isinstance(error, StoreUnavailable | OutcomeUnknown):
        log.warning("the store cannot be used: %s", error)
        return problem(503, "store_unavailable", "the store cannot be used now; try again", path=path)
    log.error("a request to %s failed", path, exc_info=error)
    return problem(500, "failed", "something went wrong; the server's log says what", path=path)
