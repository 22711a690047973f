"""Conditions and targets in words, for logs, drawings and complaints."""

from __future__ import annotations

from antiphon.core.codec import to_json
from antiphon.core.conditions import (
    AllOf,
    Always,
    AnyOf,
    BranchFailed,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    FromSpeaker,
    Not,
    Once,
    ToolCalled,
    TransitionCondition,
)
from antiphon.core.targets import (
    AgentsTarget,
    AgentTarget,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    TransitionTarget,
)
from antiphon.core.words import shown


def as_words(condition: TransitionCondition) -> str:
    """A condition as a phrase: `from triage and urgent = true`."""
    match condition:
        case AllOf(parts):
            return " and ".join(_inside(part) for part in parts)
        case AnyOf(parts):
            return " or ".join(_inside(part) for part in parts)
        case Not(inner):
            return f"not {_inside(inner)}"
        case Once(inner):
            return f"once {_inside(inner)}"
        case _:
            return _leaf(condition)


def _inside(condition: TransitionCondition) -> str:
    words = as_words(condition)
    return f"({words})" if isinstance(condition, AllOf | AnyOf) else words


def _leaf(condition: TransitionCondition) -> str:
    match condition:
        case Always():
            return "always"
        case FromSpeaker(agent_id):
            return f"from {agent_id}"
        case ToolCalled(tool_name):
            return f"{tool_name} called"
        case ContextEquals(key, None):
            return f"{key} unset"
        case ContextEquals(key, value):
            return f"{key} = {_json(value)}"
        case ContextIn(key, values):
            return f"{key} in {_json(list(values))}"
        case ContextThreshold(key, op, value):
            return f"{key} {op} {_json(value)}"
        case BranchFailed(agent_id):
            return f"the branch of {agent_id} failed" if agent_id else "a branch failed"
        case _:
            return _own(condition)


def told_target(target: TransitionTarget) -> str:
    """A target as a phrase: `to bob`."""
    match target:
        case AgentTarget(agent_id):
            return f"to {agent_id}"
        case AgentsTarget(agent_ids):
            return f"to {' and '.join(agent_ids)} at once"
        case RoundRobinTarget():
            return "to the next in the round"
        case StayTarget():
            return "to the same speaker"
        case RevertToInitiatorTarget():
            return "to whoever opened the channel"
        case TerminateTarget(reason):
            return f"end: {reason}"
        case _:
            return _own(target)


def _own(value: TransitionCondition | TransitionTarget) -> str:
    """Something that is not ours, as it shows itself; if it does not, by its name."""
    return value.name if type(value).__repr__ is object.__repr__ else shown(value)


def _json(value: object) -> str:
    try:
        return to_json(value).decode()
    except (TypeError, ValueError):
        return shown(value)
