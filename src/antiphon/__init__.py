"""Antiphon: a durable runtime for teams of AI agents.

A channel is a log. Rules decide who speaks next. Guards decide what may happen.
"""

from antiphon.agents.context import TurnChannel, delete_context, set_context
from antiphon.agents.declaration import Limits
from antiphon.agents.messages import Answered, Asked, Call, Reply, Request, ToolSpec, Usage, calls, says
from antiphon.agents.results import NOT_DONE, Finish, Handoff
from antiphon.agents.tool import tool
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
    OutcomeUnknown,
    ReplyMalformed,
    RulesInvalid,
    SlowConsumer,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TooLarge,
    TurnFailed,
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
from antiphon.core.rules import Adapter, Expectation, Seats
from antiphon.core.state import State
from antiphon.core.views import FullTranscript, Message, NamedTranscript, NamedWindowedSummary, WindowedSummary
from antiphon.hub.feed import Signal
from antiphon.models.scripted import ScriptedModel
from antiphon.orchestration.lawbook import register_adapter
from antiphon.runtime.agent import Agent
from antiphon.runtime.channel import Channel
from antiphon.runtime.events import (
    AgentReply,
    AIMessageEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)
from antiphon.runtime.hub import Hub
from antiphon.runtime.participant import Participant

__all__ = [
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
    "Answered",
    "AntiphonError",
    "Asked",
    "Assign",
    "BadName",
    "BadUrl",
    "Call",
    "Channel",
    "Close",
    "Conflict",
    "Decision",
    "Denied",
    "EngineError",
    "Envelope",
    "Expectation",
    "FinalStateEvent",
    "Finish",
    "FullTranscript",
    "Handoff",
    "Hub",
    "IdReused",
    "Limits",
    "LogCorrupt",
    "Message",
    "ModelError",
    "NamedTranscript",
    "NamedWindowedSummary",
    "OutcomeUnknown",
    "Participant",
    "Priority",
    "Reply",
    "ReplyMalformed",
    "Request",
    "RulesInvalid",
    "ScriptedModel",
    "Seats",
    "Signal",
    "SlowConsumer",
    "State",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TokenEvent",
    "TooLarge",
    "ToolResponseEvent",
    "ToolSpec",
    "ToolUsageEvent",
    "TurnChannel",
    "TurnFailed",
    "UnknownChannel",
    "UnknownParticipant",
    "Usage",
    "UsageError",
    "Wait",
    "WaitTimeout",
    "WindowedSummary",
    "calls",
    "delete_context",
    "register_adapter",
    "says",
    "set_context",
    "tool",
    "visible_to",
]
