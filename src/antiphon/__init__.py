"""Antiphon: a durable runtime for teams of AI agents.

A channel is a log. Rules decide who speaks next. Guards decide what may happen.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from antiphon.agents.limits import Limits
from antiphon.agents.messages import Answered, Asked, Call, Objected, Reply, Request, ToolSpec, Usage, calls, says
from antiphon.agents.results import NOT_DONE, AgentReply, Finish, Handoff
from antiphon.core.decision import Assign, Close, Decision, Wait
from antiphon.core.envelope import Envelope, Priority, visible_to
from antiphon.core.errors import (
    AntiphonError,
    BadName,
    BadUrl,
    Conflict,
    Denied,
    EngineError,
    IdReused,
    LogCorrupt,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    OutcomeUnknown,
    ReplyMalformed,
    RulesInvalid,
    SlowConsumer,
    StoreError,
    StoreGone,
    StoreRefused,
    StoreUnavailable,
    TooLarge,
    TurnFailed,
    UnknownApproval,
    UnknownChannel,
    UnknownParticipant,
    UsageError,
    WaitTimeout,
)
from antiphon.core.events import (
    EV_CHANNEL_CLOSED,
    EV_CHANNEL_EXPIRED,
    EV_CHANNEL_INVITE,
    EV_CHANNEL_INVITE_ACK,
    EV_CHANNEL_INVITE_REJECT,
    EV_CHANNEL_OPENED,
    EV_CONTEXT_SET,
    EV_EXPECTATION_VIOLATED,
    EV_PACKET,
    EV_TASK_COMPLETED,
    EV_TASK_EXPIRED,
    EV_TASK_FAILED,
    EV_TASK_PROGRESS,
    EV_TASK_STARTED,
    EV_TEXT,
)
from antiphon.core.rules import Adapter, Expectation, Finding, Seats
from antiphon.core.state import State
from antiphon.core.summaries import SummarisedTranscript
from antiphon.core.views import (
    FullTranscript,
    Message,
    NamedTranscript,
    NamedWindowedSummary,
    TokenBudget,
    WindowedSummary,
)
from antiphon.runtime.events import (
    AIMessageEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

if TYPE_CHECKING:
    from antiphon.agents.context import TurnChannel, delete_context, set_context
    from antiphon.agents.defaults import DEFAULT_TOOLS
    from antiphon.agents.delegating import delegate
    from antiphon.agents.intents import Intent
    from antiphon.agents.progress import Progress
    from antiphon.agents.steps import END, Step, Steps
    from antiphon.agents.tool import tool
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
        register_condition,
    )
    from antiphon.core.targets import (
        AgentsTarget,
        AgentTarget,
        RevertToInitiatorTarget,
        RoundRobinTarget,
        StayTarget,
        TerminateTarget,
        TransitionDecision,
        TransitionTarget,
        register_target,
    )
    from antiphon.hub.feed import Signal
    from antiphon.models.anthropic import AnthropicModel
    from antiphon.models.bridge import BridgedModel
    from antiphon.models.openai import OpenAIModel
    from antiphon.models.prices import price_table
    from antiphon.models.scripted import ScriptedModel
    from antiphon.orchestration.graph import Transition, TransitionGraph
    from antiphon.orchestration.lawbook import register_adapter
    from antiphon.runtime.agent import Agent
    from antiphon.runtime.approvals import Approval
    from antiphon.runtime.channel import Channel
    from antiphon.runtime.erasing import Erasure
    from antiphon.runtime.hub import Hub
    from antiphon.runtime.participant import Participant
    from antiphon.toolsets.mcp import MCPServer

_LATER = {
    "antiphon.agents.context": (
        "TurnChannel",
        "delete_context",
        "set_context",
    ),
    "antiphon.agents.defaults": ("DEFAULT_TOOLS",),
    "antiphon.agents.delegating": ("delegate",),
    "antiphon.agents.intents": ("Intent",),
    "antiphon.agents.progress": ("Progress",),
    "antiphon.agents.steps": ("END", "Step", "Steps"),
    "antiphon.agents.tool": ("tool",),
    "antiphon.hub.feed": ("Signal",),
    "antiphon.models.bridge": ("BridgedModel",),
    "antiphon.models.prices": ("price_table",),
    "antiphon.models.anthropic": ("AnthropicModel",),
    "antiphon.models.openai": ("OpenAIModel",),
    "antiphon.models.scripted": ("ScriptedModel",),
    "antiphon.orchestration.lawbook": ("register_adapter",),
    "antiphon.runtime.agent": ("Agent",),
    "antiphon.runtime.approvals": ("Approval",),
    "antiphon.runtime.channel": ("Channel",),
    "antiphon.runtime.erasing": ("Erasure",),
    "antiphon.runtime.hub": ("Hub",),
    "antiphon.runtime.participant": ("Participant",),
    "antiphon.toolsets.mcp": ("MCPServer",),
    "antiphon.core.conditions": (
        "AllOf",
        "Always",
        "AnyOf",
        "BranchFailed",
        "ContextEquals",
        "ContextIn",
        "ContextThreshold",
        "FromSpeaker",
        "Not",
        "Once",
        "ToolCalled",
        "TransitionCondition",
        "register_condition",
    ),
    "antiphon.core.targets": (
        "AgentsTarget",
        "AgentTarget",
        "RevertToInitiatorTarget",
        "RoundRobinTarget",
        "StayTarget",
        "TerminateTarget",
        "TransitionDecision",
        "TransitionTarget",
        "register_target",
    ),
    "antiphon.orchestration.graph": ("Transition", "TransitionGraph"),
}
"""What is loaded when it is first asked for: what runs things, and what steers workflows. The core is there at once."""

__all__ = [
    "DEFAULT_TOOLS",
    "END",
    "EV_CHANNEL_CLOSED",
    "EV_CHANNEL_EXPIRED",
    "EV_CHANNEL_INVITE",
    "EV_CHANNEL_INVITE_ACK",
    "EV_CHANNEL_INVITE_REJECT",
    "EV_CHANNEL_OPENED",
    "EV_CONTEXT_SET",
    "EV_EXPECTATION_VIOLATED",
    "EV_PACKET",
    "EV_TASK_COMPLETED",
    "EV_TASK_EXPIRED",
    "EV_TASK_FAILED",
    "EV_TASK_PROGRESS",
    "EV_TASK_STARTED",
    "EV_TEXT",
    "NOT_DONE",
    "AIMessageEvent",
    "Adapter",
    "Agent",
    "AgentReply",
    "AgentTarget",
    "AgentsTarget",
    "AllOf",
    "Always",
    "Answered",
    "AnthropicModel",
    "AntiphonError",
    "AnyOf",
    "Approval",
    "Asked",
    "Assign",
    "BadName",
    "BadUrl",
    "BranchFailed",
    "BridgedModel",
    "Call",
    "Channel",
    "Close",
    "Conflict",
    "ContextEquals",
    "ContextIn",
    "ContextThreshold",
    "Decision",
    "Denied",
    "EngineError",
    "Envelope",
    "Erasure",
    "Expectation",
    "FinalStateEvent",
    "Finding",
    "Finish",
    "FromSpeaker",
    "FullTranscript",
    "Handoff",
    "Hub",
    "IdReused",
    "Intent",
    "Limits",
    "LogCorrupt",
    "MCPServer",
    "Message",
    "ModelError",
    "ModelRefused",
    "ModelUnavailable",
    "NamedTranscript",
    "NamedWindowedSummary",
    "Not",
    "Objected",
    "Once",
    "OpenAIModel",
    "OutcomeUnknown",
    "Participant",
    "Priority",
    "Progress",
    "Reply",
    "ReplyMalformed",
    "Request",
    "RevertToInitiatorTarget",
    "RoundRobinTarget",
    "RulesInvalid",
    "ScriptedModel",
    "Seats",
    "Signal",
    "SlowConsumer",
    "State",
    "StayTarget",
    "Step",
    "Steps",
    "StoreError",
    "StoreGone",
    "StoreRefused",
    "StoreUnavailable",
    "SummarisedTranscript",
    "TerminateTarget",
    "TokenBudget",
    "TokenEvent",
    "TooLarge",
    "ToolCalled",
    "ToolResponseEvent",
    "ToolSpec",
    "ToolUsageEvent",
    "Transition",
    "TransitionCondition",
    "TransitionDecision",
    "TransitionGraph",
    "TransitionTarget",
    "TurnChannel",
    "TurnFailed",
    "UnknownApproval",
    "UnknownChannel",
    "UnknownParticipant",
    "Usage",
    "UsageError",
    "Wait",
    "WaitTimeout",
    "WindowedSummary",
    "calls",
    "delegate",
    "delete_context",
    "price_table",
    "register_adapter",
    "register_condition",
    "register_target",
    "says",
    "set_context",
    "tool",
    "visible_to",
]

if not TYPE_CHECKING:  # a checker of types knows the names from above

    def __getattr__(name: str) -> object:
        module = next((module for module, names in _LATER.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
        globals()[name] = getattr(import_module(module), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"import_module", "TYPE_CHECKING"})
