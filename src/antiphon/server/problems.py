"""Errors as responses: a status, a stable reason to branch on, and a sentence.

Rule 1: what does not exist, and what the key may not see, are the same 404.
Rule 2: an internal error is logged; the response says only that there was one.
Rule 3: a message is a sentence of ours. It never holds the text of a foreign exception, a path, or a key, not even one
        that the request itself put where a name belongs.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from antiphon.core.codec import Malformed, to_json
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
from antiphon.core.redaction import LOG_ADVICE, failure_sentence, public_detail
from antiphon.hub.known_secrets import redact_text

logger = logging.getLogger("antiphon.server")

JSON_TYPE = "application/json"
CHAT_PATH = "/v1/"
"""Below this path errors have the form of chat completions."""
DENIAL_STATUSES = {
    "too_large": 413,
    **dict.fromkeys(
        ("not_a_participant", "not_a_person", "not_a_writer", "not_an_approver", "forged_sender", "wrong_scope"), 403
    ),
    **dict.fromkeys(("bad_audience", "bad_causation", "bad_event_type", "bad_number", "bad_priority", "bad_text"), 422),
    **dict.fromkeys(("malformed", "not_json", "reserved_event", "reserved_field", "too_deep"), 422),
    **dict.fromkeys(("unknown_audience", "unknown_causation"), 422),
}
"""The status of a denial by its reason; 409 for all others."""
TURN_STATUSES = {
    "model_error": 502,
    "model_timeout": 504,
    **dict.fromkeys(("in_doubt", "suspended", "rejected", "cancelled", "channel_closed"), 409),
}
"""The status of a failed turn by its reason; 500 for all others, which are faults of the agent."""
RETRY_HEADERS = {"retry-after": "1"}
CHAT_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong."""

    reason: str
    """A stable word to branch on."""
    message: str
    channel_id: str = ""
    agent: str = ""
    """The agent that was active when a turn failed."""


STORE_GONE_FAULT = Fault("store_gone", "the file of the store is gone; the server must be started again")
"""In a response, or in the last event of a stream."""


class Problem(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: Fault


class ChatFault(msgspec.Struct, frozen=True):
    """What went wrong, in the form of chat completions."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None
    """A stable word to branch on."""


class ChatProblem(msgspec.Struct, frozen=True):
    """The body of an error response, in the form of chat completions."""

    error: ChatFault


class RequestRefused(AntiphonError):
    """A request is refused, for a reason that only matters over HTTP."""

    def __init__(self, status: int, reason: str, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.reason, self.close = status, reason, close


def problem_response(status: int, fault: Fault, *, path: str) -> Response:
    """An error response."""
    headers = {"www-authenticate": "Bearer"} if status == 401 else RETRY_HEADERS if status in (429, 503) else None
    fault = replace(fault, message=redact_text(fault.message))
    body: object = Problem(fault)
    if path.startswith(CHAT_PATH):
        kind = CHAT_ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        body = ChatProblem(ChatFault(fault.message, kind, code=fault.reason))
    return Response(to_json(body), status, headers=headers, media_type=JSON_TYPE)


def error_response(error: BaseException, *, path: str, closing: bool) -> Response:
    """The response for an error. An unexpected one is logged."""
    status, fault = _fault_of(error, path, closing=closing)
    answer = problem_response(status, fault, path=path)
    if isinstance(error, RequestRefused) and error.close:
        answer.headers["connection"] = "close"
    return answer


def _usage_fault(error: UsageError, path: str, *, closing: bool) -> tuple[int, Fault]:
    if isinstance(error, UnknownChannel):
        return 404, Fault("unknown_channel", str(error))
    if closing:
        return 503, Fault("stopping", "the server stops; ask again soon, with the same message_id")
    if _is_own_error(error):
        return 422, Fault("bad_request", str(error))
    logger.warning("a request to %s is refused: %s", path, error)
    return 422, Fault("bad_request", f"the request does not fit the server; {LOG_ADVICE}")


def _fault_of(error: BaseException, path: str, *, closing: bool) -> tuple[int, Fault]:
    match error:
        case RequestRefused():
            return error.status, Fault(error.reason, str(error))
        case UsageError():
            return _usage_fault(error, path, closing=closing)
        case Denied():
            status = DENIAL_STATUSES.get(error.reason, 409)
            return status, Fault(error.reason, _denial_text(error), error.channel_id)
        case TurnFailed():
            where = error.channel_id
            words = str(TurnFailed(error.reason, where, public_detail(error.reason, error.detail)))
            return TURN_STATUSES.get(error.reason, 500), Fault(error.reason, words, where, error.agent)
        case TooLarge():
            return 413, Fault("too_large", str(error))
        case LogCorrupt():
            logger.warning("a request to %s is refused: %s", path, error)
            return 409, Fault("quarantined", failure_sentence("quarantined"), error.channel_id)
        case StoreGone():
            return 503, STORE_GONE_FAULT
        case StoreUnavailable() | OutcomeUnknown():
            logger.warning("the store cannot be used: %s", error)
            return 503, Fault("store_unavailable", "the store cannot be used now; try again")
        case _:
            logger.error("a request to %s failed", path, exc_info=error)
            return 500, Fault("failed", "something went wrong; the server's log says what")


def _denial_text(denied: Denied) -> str:
    """The text of a denial. What user-defined rules raised is logged instead."""
    if denied.reason != "rules_failed":
        return str(denied)
    logger.warning("the rules of %s failed: %s", denied.channel_id, denied.detail)
    return str(Denied(denied.reason, denied.channel_id, failure_sentence(denied.reason)))


def _is_own_error(error: UsageError) -> bool:
    """Whether an error's text is ours. One caused by a foreign error may repeat that error's text."""
    cause = error.__cause__
    while isinstance(cause, AntiphonError | Malformed | msgspec.ValidationError):
        cause = cause.__cause__
    return cause is None
