"""Antiphon: a durable runtime for teams of AI agents.

A channel is a log. Rules decide who speaks next. Guards decide what may happen.
"""

from antiphon.core.decision import Assign, Close, Decision, Wait
from antiphon.core.envelope import Envelope, Priority, visible_to
from antiphon.core.errors import (
    AntiphonError,
    BadName,
    BadUrl,
    Conflict,
    Denied,
    IdReused,
    LogCorrupt,
    OutcomeUnknown,
    RulesInvalid,
    SlowConsumer,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TooLarge,
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
from antiphon.orchestration.lawbook import register_adapter
from antiphon.runtime.channel import Channel
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
    "Adapter",
    "AntiphonError",
    "Assign",
    "BadName",
    "BadUrl",
    "Channel",
    "Close",
    "Conflict",
    "Decision",
    "Denied",
    "Envelope",
    "Expectation",
    "FullTranscript",
    "Hub",
    "IdReused",
    "LogCorrupt",
    "Message",
    "NamedTranscript",
    "NamedWindowedSummary",
    "OutcomeUnknown",
    "Participant",
    "Priority",
    "RulesInvalid",
    "Seats",
    "SlowConsumer",
    "State",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "TooLarge",
    "UnknownChannel",
    "UnknownParticipant",
    "UsageError",
    "Wait",
    "WaitTimeout",
    "WindowedSummary",
    "register_adapter",
    "visible_to",
]
