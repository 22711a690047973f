"""Models by name: `openai:gpt-5-mini`, `anthropic:claude-sonnet-5`, and what the bridge knows.

Rule 1: a name is resolved where the agent is declared, so that a wrong one is told there. Nothing is asked yet.
Rule 2: what speaks to a provider is loaded when it is named.
"""

from __future__ import annotations

import re

from antiphon.agents.messages import Model
from antiphon.core.errors import UsageError
from antiphon.core.words import shown

PROVIDER = re.compile(r"[a-z][a-z0-9_-]*")
ADVICE = "write a provider before it, such as openai:gpt-5-mini or anthropic:claude-sonnet-5"


def named_model(name: str) -> Model:
    """The model of this name; `UsageError` if no provider can be known from it."""
    given: object = name
    if not isinstance(given, str):
        raise UsageError(f"the name of a model is {shown(given)}; {ADVICE}")
    provider, colon, model = name.partition(":")
    if not colon or not PROVIDER.fullmatch(provider):
        raise UsageError(f"no model is called {shown(name)}; {ADVICE}")
    if not model.strip():
        raise UsageError(f"{shown(name)} names a provider and no model; write one after it, such as {provider}:…")
    match provider:
        case "openai":
            from antiphon.models.openai import OpenAIModel

            return OpenAIModel(model)
        case "anthropic":
            from antiphon.models.anthropic import AnthropicModel

            return AnthropicModel(model)
        case _:
            from antiphon.models.bridge import bridged

            return bridged(name)
