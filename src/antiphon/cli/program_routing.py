"""The routed conversation that a user-defined Python file defines: a router or a pipeline, and its handoffs.

A pipeline that comes without handoffs brings its own: its phases, and which of them may follow which.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid, UsageError
from antiphon.core.text import describe
from antiphon.orchestration.handoff_rules import HandoffRules, check_handoff_rules
from antiphon.orchestration.pipeline import ConversationPipeline
from antiphon.orchestration.router import ConversationRouter
from antiphon.runtime.conversation_defaults import CONVERSATION_NAME
from antiphon.runtime.conversations import HandoffHandler

ROUTING_VARIABLES = ("router", "pipeline")
MAX_NAME_CHARS = 48


class ProgramRouting(msgspec.Struct, frozen=True):
    """How the messages of a conversation are routed and handed over."""

    router: ConversationRouter
    handoff: HandoffRules | None = None
    """None if the file says nothing of handoffs: any agent may hand over to any."""
    name: str = CONVERSATION_NAME
    """What clients call the conversation: the title of the file, as a name."""
    pipeline: ConversationPipeline | None = None
    """The pipeline that the router was made of, if the file defines one."""

    @property
    def knobs(self) -> Json:
        """The knobs of a routed channel."""
        handoff: Json = {} if self.handoff is None else {"handoff": self.handoff.to_dict()}
        return {"router": self.router.to_dict(), **handoff}


def routing_from(path: str, found: Mapping[str, object]) -> ProgramRouting | None:
    """The routing that the variables of a file define; None if they define none."""
    defined = [name for name in ROUTING_VARIABLES if found.get(name) is not None]
    handoff = found.get("handoff")
    if not defined:
        if handoff is not None:
            raise UsageError(f"{path} defines handoff without a router or a pipeline; add one, or leave handoff out")
        return None
    if found.get("graph") is not None:
        raise UsageError(
            f"{path} defines a graph and a {defined[0]}; keep the graph if its rules say who speaks after whom, "
            f"or the {defined[0]} if each message of a person is routed to one agent"
        )
    if len(defined) == 2:
        raise UsageError(f"{path} defines a router and a pipeline; keep one of them: pipeline.to_router() is a router")
    try:
        pipeline = _pipeline_of(found["pipeline"]) if defined == ["pipeline"] else None
        router = _router_of(found["router"]) if pipeline is None else pipeline.to_router()
        rules = _handoff_rules_of(handoff, pipeline)
        if rules is not None:
            check_handoff_rules(rules, router)
    except RulesInvalid as error:
        raise RulesInvalid(f"{path}: {error}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return ProgramRouting(router, rules, _name_of(found.get("title")), pipeline)


def _router_of(value: object) -> ConversationRouter:
    if isinstance(value, ConversationPipeline):
        raise UsageError("router is a ConversationPipeline; call it pipeline")
    if not isinstance(value, ConversationRouter | dict):
        raise UsageError(f"router is {describe(value)}; give a ConversationRouter, or what its to_dict() gives")
    return ConversationRouter.loads(value)


def _pipeline_of(value: object) -> ConversationPipeline:
    if not isinstance(value, ConversationPipeline | dict):
        raise UsageError(f"pipeline is {describe(value)}; give a ConversationPipeline, or what its to_dict() gives")
    return ConversationPipeline.loads(value)


def _handoff_rules_of(value: object, pipeline: ConversationPipeline | None) -> HandoffRules | None:
    if value is None and pipeline is not None:
        allowed = pipeline.get_allowed_transitions()
        return HandoffRules(phase_map=pipeline.get_phase_map(), allowed_transitions=allowed)
    if isinstance(value, HandoffHandler):
        return value.rules
    if value is not None and not isinstance(value, dict):
        raise UsageError(f"handoff is {describe(value)}; give a HandoffHandler, or what its to_dict() gives")
    return None if value is None else HandoffRules.loads(value)


def _name_of(title: object) -> str:
    """A title as a name; the usual name if there is none, or nothing of it may stand in a name."""
    if not isinstance(title, str):
        return CONVERSATION_NAME
    return re.sub(r"[^A-Za-z0-9_]+", "-", title).strip("-_").lower()[:MAX_NAME_CHARS].rstrip("-_") or CONVERSATION_NAME
