"""What the stable reasons mean, and what can be done about them, in words.

A reason is looked up by its first word: `hop_limit:5` is a `hop_limit`, and `denied:loop` a `loop`.
"""

from __future__ import annotations

from typing import NamedTuple

from antiphon.agents.progress import DENIED_PREFIX


class ReasonMeaning(NamedTuple):
    """What a reason means, as the rest of a sentence, and what can be done about it."""

    means: str
    remedy: str = ""


MEANINGS: dict[str, ReasonMeaning] = {
    # Guards that deny calls
    "loop": ReasonMeaning(
        "the agent repeats itself",
        "change what the agent is told, or raise `threshold` of LoopDetector in the knob `guards` of the next channel",
    ),
    "budget": ReasonMeaning(
        "the budget is used up, or the call could exceed it",
        "open the next channel with a larger Budget or CostVelocityMonitor, or let a person approve the call",
    ),
    "breaker_open": ReasonMeaning(
        "the circuit breaker is open after failures in a row",
        "wait until it tries again (`antiphon log --audit` shows when), and mend what fails meanwhile",
    ),
    "deadline": ReasonMeaning("the time for it was over", "give more time: Deadlines(…) or the knob `expectations`"),
    "policy": ReasonMeaning("a policy does not allow it", "change the policy, or let a person do it"),
    "retry_budget": ReasonMeaning(
        "too many retries were made already, of all channels together", "wait until the provider answers again"
    ),
    "hop_limit": ReasonMeaning(
        "so many handoffs followed each other without a person or code speaking",
        "say something as a person or from code, which starts the count anew, or raise HopLimit(most=…)",
    ),
    "depth_limit": ReasonMeaning("tasks would be given too deep", "raise DepthLimit(most=…), or give fewer tasks"),
    "spawn_limit": ReasonMeaning("the run has given too many tasks", "raise SpawnLimit(most=…), or give fewer tasks"),
    "blocked": ReasonMeaning("a gate or a hook did not let it pass", "change the text so that it passes"),
    # Handoffs that are not possible
    "not_a_participant": ReasonMeaning("it names a participant that is not in this channel"),
    "not_in_turn": ReasonMeaning("the speaker did not have the turn"),
    "others_have_the_turn": ReasonMeaning("others have the turn at the same time, and have not answered"),
    "target_not_found": ReasonMeaning("it names an agent that is not in this channel"),
    "transition_not_allowed": ReasonMeaning("the rules of the conversation do not allow this transition"),
    # Turns that ended without an answer
    "not_run": ReasonMeaning(
        "no hub in which the agent is registered has run the turn",
        "start a program that registers the agent on this store",
    ),
    "model_error": ReasonMeaning("the model could not be asked, or its reply was of no use"),
    "turn_error": ReasonMeaning("the program raised an error while it ran the turn", "mend the error in the detail"),
    "step_error": ReasonMeaning("a step of the agent raised an error", "mend the step"),
    "prompt_error": ReasonMeaning("the system prompt could not be made", "mend the function that makes it"),
    "summary_error": ReasonMeaning("older messages could not be summed up"),
    "too_large": ReasonMeaning("it is larger than an envelope may be"),
    "tools_required": ReasonMeaning("the model calls no tools, which are required", "use a model that calls tools"),
    "idempotency_conflict": ReasonMeaning("the turn was run again, and asked for something else than before"),
    "rejected": ReasonMeaning("a person has decided against it"),
    "cancelled": ReasonMeaning("it was cancelled"),
    "turn_failed": ReasonMeaning("the turn that was to answer failed, and no person was there to go on"),
    # Limits of a turn
    "empty_reply": ReasonMeaning("the model answered nothing"),
    "invalid_output": ReasonMeaning("the answer does not have the shape that is wanted"),
    "max_handoffs": ReasonMeaning("the limit of handoffs in one turn was reached", "raise Limits(handoffs=…)"),
    "max_model_calls": ReasonMeaning("the limit of model calls in one turn was reached"),
    "max_steps": ReasonMeaning("the limit of steps in one turn was reached"),
    "max_tokens": ReasonMeaning("the model reached its limit of tokens"),
    # Why a channel ends or pauses
    "max_turns": ReasonMeaning(
        "the limit of turns is reached", "raise max_turns of the graph, or TurnLimit(most=…), in the next channel"
    ),
    "expectation_violated": ReasonMeaning("something that was expected did not happen in time"),
    "invite_rejected": ReasonMeaning("a participant declined the invitation"),
    "expired": ReasonMeaning("the time to live of the channel was over", "open the next one with a longer ttl"),
    "nobody_is_next": ReasonMeaning("the rules name nobody who is next"),
    "unknown_speaker": ReasonMeaning("the rules name a speaker that is not in this channel"),
    "rules_failed": ReasonMeaning("the rules raised an error", "mend the rule; `antiphon log --audit` shows its error"),
    "refused": ReasonMeaning("the first message was refused by the rules of today"),
    "unattended": ReasonMeaning(
        "agents have spoken that often in a row, and no person or code in between",
        "say something as a person or from code: the conversation then goes on",
    ),
    "aborted": ReasonMeaning("a person or code ended the run in failure"),
    "deadlock": ReasonMeaning("the participants made no progress together", "change what they are told, or the rules"),
    "answered": ReasonMeaning("the question was answered, which ends a consultation"),
    "erased": ReasonMeaning("its content was erased"),
    # Drafts that were refused
    "not_expected_speaker": ReasonMeaning("another participant had the turn", "wait for the turn"),
    "channel_closed": ReasonMeaning("the channel had ended", "open another"),
    "not_a_writer": ReasonMeaning("the context variable names its writers, and the sender is none of them"),
    "decided": ReasonMeaning("a person had decided before"),
    "not_a_person": ReasonMeaning("only people may decide"),
    "stale_decision": ReasonMeaning("the decision was about something that had changed meanwhile"),
}
"""By the first word of a reason."""


def meaning_of(reason: str) -> ReasonMeaning | None:
    """What a reason means; None if it is one of a user's own."""
    return MEANINGS.get(reason.removeprefix(DENIED_PREFIX).partition(":")[0])


def explain_reason(reason: str) -> str:
    """A reason with its meaning: `hop_limit:5 (so many handoffs …)`."""
    found = meaning_of(reason)
    return reason if found is None else f"{reason} ({found.means})"
