"""Antiphon: a durable runtime for teams of AI agents.

A channel is a log. Rules decide who speaks next. Guards decide what may happen.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from antiphon.agents.call_results import NOT_DONE, Call, Finish, Handoff, Reply, Usage
from antiphon.agents.messages import Answered, Asked, Objected, Request, ToolSpec, calls, says
from antiphon.agents.team import Limits
from antiphon.agents.turn_channel import AgentReply, TurnChannel, delete_context, set_context
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
    TransportRefused,
    TransportUnavailable,
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
from antiphon.core.guard import ALLOW, Allow, Ask, Change, Deny, Guard, Permission, Verdict
from antiphon.core.ruleset import Adapter, Expectation, Finding, Seats
from antiphon.core.state import Assign, Close, Decision, State, Wait
from antiphon.core.views import (
    FullTranscript,
    Message,
    NamedTranscript,
    NamedWindowedSummary,
    TokenBudget,
    WindowedSummary,
)
from antiphon.runtime.turn_events import (
    AIMessageEvent,
    ApprovalEvent,
    FinalStateEvent,
    TokenEvent,
    ToolResponseEvent,
    ToolUsageEvent,
)

if TYPE_CHECKING:
    from antiphon.agents.compensation import register_compensation
    from antiphon.agents.declaration import delegate
    from antiphon.agents.default_tools import DEFAULT_TOOLS
    from antiphon.agents.handoff_memory import HandoffMemoryProvider, SlidingWindowMemory
    from antiphon.agents.history import SummarisedTranscript
    from antiphon.agents.intents import Intent
    from antiphon.agents.progress import Progress
    from antiphon.agents.steps import END, Step, Steps
    from antiphon.agents.tool import tool
    from antiphon.agents.tool_options import Poll
    from antiphon.core.approval_rules import Approval
    from antiphon.core.conditions import (
        AllOf,
        Always,
        AnyOf,
        Approved,
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
    from antiphon.core.protection_events import ValidationResult
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
    from antiphon.core.transport import InboundMessage, OutboundReply
    from antiphon.core.verdicts import is_approved
    from antiphon.guards.access_policy import AccessPolicy
    from antiphon.guards.argument_rules import ArgumentRule
    from antiphon.guards.breaker import CircuitBreaker
    from antiphon.guards.budget import Budget
    from antiphon.guards.cost_velocity import CostVelocityMonitor
    from antiphon.guards.deadlines import Deadlines
    from antiphon.guards.deadlock import DeadlockMonitor
    from antiphon.guards.gate_checks import CheckResult, register_check
    from antiphon.guards.gate_guard import GateGuard
    from antiphon.guards.gates import Gate
    from antiphon.guards.loops import LoopDetector
    from antiphon.guards.named_guards import Tier, register_guard
    from antiphon.guards.policies import Policy, PolicyDecision, PolicyRequest, register_policy
    from antiphon.guards.retry_budget import RetryBudget
    from antiphon.guards.run_limits import DepthLimit, HopLimit, SpawnLimit, TurnLimit
    from antiphon.guards.saga import Saga
    from antiphon.hub.feed import Signal
    from antiphon.models.anthropic import AnthropicModel
    from antiphon.models.bridge import BridgedModel
    from antiphon.models.openai import OpenAIModel
    from antiphon.models.prices import price_table
    from antiphon.models.scripted import ScriptedModel
    from antiphon.orchestration.catalogue import register_adapter
    from antiphon.orchestration.conversation import ConversationPhase, ConversationState, PhaseTransition
    from antiphon.orchestration.failure_classes import classify_failure
    from antiphon.orchestration.failures import FailureDecision, decide_failure, worst_failure
    from antiphon.orchestration.graph import Transition, TransitionGraph
    from antiphon.orchestration.pipeline import ConversationPipeline, PipelineStage
    from antiphon.orchestration.predicates import register_predicate
    from antiphon.orchestration.router import ConversationRouter, RoutingConditions, RoutingRule
    from antiphon.runtime.agent import Agent
    from antiphon.runtime.cedar_policy import CedarPolicy
    from antiphon.runtime.channel import Channel
    from antiphon.runtime.channel_lifecycle import Erasure
    from antiphon.runtime.conversations import (
        HandoffHandler,
        get_conversation_state,
        set_conversation_state,
        setup_handoff,
    )
    from antiphon.runtime.gate_runs import run_gate
    from antiphon.runtime.hooks import HookEvent, HookExecution, HookResult, HookTrigger
    from antiphon.runtime.hub import Hub
    from antiphon.runtime.participant import Participant
    from antiphon.runtime.team_builders import ConversationSetup, review_loop, supervised, swarm
    from antiphon.toolsets.mcp import MCPServer
    from antiphon.transports.smtp import SmtpTransport
    from antiphon.transports.terminal import TerminalTransport
    from antiphon.transports.webhook import WebhookTransport

_LATER = {
    "agents.compensation": "register_compensation",
    "agents.declaration": "delegate",
    "agents.default_tools": "DEFAULT_TOOLS",
    "agents.handoff_memory": "HandoffMemoryProvider SlidingWindowMemory",
    "agents.history": "SummarisedTranscript",
    "agents.intents": "Intent",
    "agents.progress": "Progress",
    "agents.steps": "END Step Steps",
    "agents.tool": "tool",
    "agents.tool_options": "Poll",
    "core.approval_rules": "Approval",
    "core.conditions": (
        "AllOf Always AnyOf Approved BranchFailed ContextEquals ContextIn ContextThreshold FromSpeaker Not "
        "Once ToolCalled TransitionCondition register_condition"
    ),
    "core.protection_events": "ValidationResult",
    "core.targets": (
        "AgentTarget AgentsTarget RevertToInitiatorTarget RoundRobinTarget StayTarget TerminateTarget "
        "TransitionDecision TransitionTarget register_target"
    ),
    "core.transport": "InboundMessage OutboundReply",
    "core.verdicts": "is_approved",
    "guards.access_policy": "AccessPolicy",
    "guards.argument_rules": "ArgumentRule",
    "guards.budget": "Budget",
    "guards.cost_velocity": "CostVelocityMonitor",
    "guards.deadlines": "Deadlines",
    "guards.breaker": "CircuitBreaker",
    "guards.deadlock": "DeadlockMonitor",
    "guards.gate_checks": "CheckResult register_check",
    "guards.gate_guard": "GateGuard",
    "guards.gates": "Gate",
    "guards.loops": "LoopDetector",
    "guards.named_guards": "Tier register_guard",
    "guards.policies": "Policy PolicyDecision PolicyRequest register_policy",
    "guards.retry_budget": "RetryBudget",
    "guards.run_limits": "DepthLimit HopLimit SpawnLimit TurnLimit",
    "guards.saga": "Saga",
    "hub.feed": "Signal",
    "models.anthropic": "AnthropicModel",
    "models.bridge": "BridgedModel",
    "models.openai": "OpenAIModel",
    "models.prices": "price_table",
    "models.scripted": "ScriptedModel",
    "orchestration.catalogue": "register_adapter",
    "orchestration.conversation": "ConversationPhase ConversationState PhaseTransition",
    "orchestration.failure_classes": "classify_failure",
    "orchestration.failures": "FailureDecision decide_failure worst_failure",
    "orchestration.graph": "Transition TransitionGraph",
    "orchestration.pipeline": "ConversationPipeline PipelineStage",
    "orchestration.predicates": "register_predicate",
    "orchestration.router": "ConversationRouter RoutingConditions RoutingRule",
    "runtime.agent": "Agent",
    "runtime.cedar_policy": "CedarPolicy",
    "runtime.channel": "Channel",
    "runtime.channel_lifecycle": "Erasure",
    "runtime.conversations": "HandoffHandler get_conversation_state set_conversation_state setup_handoff",
    "runtime.gate_runs": "run_gate",
    "runtime.hooks": "HookEvent HookExecution HookResult HookTrigger",
    "runtime.hub": "Hub",
    "runtime.participant": "Participant",
    "runtime.team_builders": "ConversationSetup review_loop supervised swarm",
    "toolsets.mcp": "MCPServer",
    "transports.smtp": "SmtpTransport",
    "transports.terminal": "TerminalTransport",
    "transports.webhook": "WebhookTransport",
}
"""What is loaded when it is first asked for: what runs things, and what steers workflows. The core is there at once."""

__all__: list[str] = []
__all__ += ["ALLOW", "AIMessageEvent", "AccessPolicy", "Adapter", "Agent", "AgentReply", "AgentTarget", "AgentsTarget"]
__all__ += ["AllOf", "Allow", "Always", "Answered", "AnthropicModel", "AntiphonError", "AnyOf", "Approval"]
__all__ += ["ApprovalEvent", "Approved", "ArgumentRule", "Ask", "Asked", "Assign", "BadName", "BadUrl", "BranchFailed"]
__all__ += ["BridgedModel", "Budget", "Call", "CedarPolicy", "Change", "Channel", "CheckResult", "CircuitBreaker"]
__all__ += ["Close", "Conflict", "ContextEquals", "ContextIn", "ContextThreshold", "ConversationPhase"]
__all__ += ["ConversationPipeline", "ConversationRouter", "ConversationSetup", "ConversationState"]
__all__ += ["DeadlockMonitor"]
__all__ += ["DEFAULT_TOOLS", "END", "CostVelocityMonitor", "Deadlines", "Decision", "Denied", "Deny", "DepthLimit"]
__all__ += ["EV_CHANNEL_CLOSED", "EV_CHANNEL_EXPIRED", "EV_CHANNEL_INVITE", "EV_CHANNEL_INVITE_ACK"]
__all__ += ["EV_CHANNEL_INVITE_REJECT", "EV_CHANNEL_OPENED", "EV_CONTEXT_SET", "EV_EXPECTATION_VIOLATED", "EV_PACKET"]
__all__ += ["EV_TASK_COMPLETED", "EV_TASK_EXPIRED", "EV_TASK_FAILED", "EV_TASK_PROGRESS", "EV_TASK_STARTED", "EV_TEXT"]
__all__ += ["EngineError", "Envelope", "Erasure", "Expectation", "FailureDecision", "FinalStateEvent", "Finding"]
__all__ += ["Finish", "FromSpeaker", "FullTranscript", "Gate", "GateGuard", "Guard", "Handoff", "HandoffHandler"]
__all__ += ["HandoffMemoryProvider", "HookEvent", "HookExecution", "HookResult", "HookTrigger", "HopLimit", "Hub"]
__all__ += ["IdReused", "InboundMessage", "Intent", "Limits", "LogCorrupt", "LoopDetector", "MCPServer", "Message"]
__all__ += ["NOT_DONE", "ModelError", "ModelRefused", "ModelUnavailable", "NamedTranscript", "NamedWindowedSummary"]
__all__ += ["Not", "Objected", "Once", "OpenAIModel", "OutboundReply", "OutcomeUnknown", "Participant", "Permission"]
__all__ += ["PhaseTransition", "PipelineStage", "Policy", "PolicyDecision", "PolicyRequest", "Poll", "Priority"]
__all__ += ["Progress", "Reply", "ReplyMalformed", "Request", "RetryBudget", "RevertToInitiatorTarget"]
__all__ += [
    "RoundRobinTarget",
    "RoutingConditions",
    "RoutingRule",
    "RulesInvalid",
    "Saga",
    "ScriptedModel",
    "Seats",
    "Signal",
]
__all__ += ["SlidingWindowMemory", "SlowConsumer", "SmtpTransport", "SpawnLimit", "State", "StayTarget", "Step"]
__all__ += ["Steps", "StoreError", "StoreGone", "StoreRefused", "StoreUnavailable", "SummarisedTranscript"]
__all__ += ["TerminalTransport", "TerminateTarget", "Tier", "TokenBudget", "TokenEvent", "TooLarge", "ToolCalled"]
__all__ += ["ToolResponseEvent", "ToolSpec", "ToolUsageEvent", "Transition", "TransitionCondition"]
__all__ += ["TransitionDecision", "TransitionGraph", "TransitionTarget", "TransportRefused", "TransportUnavailable"]
__all__ += ["TurnChannel", "TurnFailed", "TurnLimit", "UnknownApproval", "UnknownChannel", "UnknownParticipant"]
__all__ += ["Usage", "UsageError", "ValidationResult", "Verdict", "Wait", "WaitTimeout", "WebhookTransport"]
__all__ += ["WindowedSummary", "calls", "classify_failure", "decide_failure", "delegate", "delete_context"]
__all__ += [
    "get_conversation_state",
    "is_approved",
    "price_table",
    "register_adapter",
    "register_check",
    "register_compensation",
]
__all__ += ["register_condition", "register_guard", "register_policy", "register_predicate", "register_target"]
__all__ += ["review_loop", "run_gate", "says", "set_context", "set_conversation_state", "setup_handoff", "supervised"]
__all__ += ["swarm", "tool", "visible_to", "worst_failure"]

if not TYPE_CHECKING:  # a checker of types knows the names from above

    def __getattr__(name: str) -> object:
        module = next((module for module, names in _LATER.items() if name in names.split()), None)
        if module is None:
            raise AttributeError(f"module 'antiphon' has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"antiphon.{module}"), name)
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__} - {"import_module", "TYPE_CHECKING"})
