"""What participants are shown of a failure: a stable reason and a sentence of ours. The details are for operators.

Rule 1: the text of an exception may hold anything: a path, a prompt, a key. No participant is shown one.
Rule 2: the log keeps the details, and the operator's view shows them.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.core.envelope import Envelope
from antiphon.core.events import EV_CHANNEL_INVITE_REJECT, EV_TURN_FAILED

OWN_WORDS = frozenset(
    {
        "cancelled",
        "channel_closed",
        "deadline",
        "idempotency_conflict",
        "in_doubt",
        "model_timeout",
        "not_run",
        "poisoned",
        "rejected",
        "too_large",
        "tools_required",
    }
)
"""The reasons whose details are sentences of ours, or of a participant, and hold no text of an exception."""
SENTENCES = {
    "call_lost": "a tool call was in flight when its process ended, and cannot be made now",
    "model_error": "the model could not be asked, or its answer could not be used",
    "prompt_error": "the agent's system prompt could not be made",
    "quarantined": "the channel's log is damaged, and cannot be used",
    "rules_failed": "the rules of the channel failed",
    "step_error": "a step of the agent failed",
    "summary_error": "the conversation could not be summarised",
    "turn_error": "the agent failed",
}
REFUSED = "refused:"
LOG = "an operator finds the details in the log"
TOOL_FAILED = f"the tool failed; {LOG}"
NOT_ACCEPTED = "the decision on the invitation failed"


def sentence_of(reason: str) -> str:
    """What a participant is told of a failure with this reason."""
    kind = "refused" if reason.startswith(REFUSED) else reason
    known = SENTENCES.get(kind) or ("the answer was refused" if kind == "refused" else "the turn failed")
    return f"{known}; {LOG}"


def disclosed(reason: str, detail: str) -> str:
    """The detail of a failure as a participant is shown it."""
    return detail if reason in OWN_WORDS or not detail else sentence_of(reason)


def as_seen(envelope: Envelope) -> Envelope:
    """An envelope as participants are shown it, if they may see it at all."""
    data = envelope.event_data
    match envelope.event_type, data:
        case str(kind), {"reason": str(reason), "detail": str(detail)} if kind == EV_TURN_FAILED:
            shown = disclosed(reason, detail)
            return envelope if shown == detail else replace(envelope, event_data={**data, "detail": shown})
        case str(kind), {"reason": str(reason)} if kind == EV_CHANNEL_INVITE_REJECT and reason:
            return replace(envelope, event_data={**data, "reason": NOT_ACCEPTED})
        case _:
            return envelope
