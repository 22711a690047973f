"""Models named by a text such as `openai:gpt-5-mini`: a provider, a colon, and the provider's own name of the model.

A provider's module is imported when a model of it is named, because its HTTP client takes time to load.
"""

from __future__ import annotations

import re

from antiphon.agents.messages import Model
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_-]*")
MODEL_NAME_ADVICE = "write a provider before it, such as openai:gpt-5-mini or anthropic:claude-sonnet-5"


def named_model(name: str) -> Model:
    """The model of this name; `UsageError` if it names no known provider."""
    given: object = name
    if not isinstance(given, str):
        raise UsageError(f"the name of a model is {describe(given)}; {MODEL_NAME_ADVICE}")
    provider, colon, model = name.partition(":")
    if not colon or not PROVIDER_NAME.fullmatch(provider):
        raise UsageError(f"no model is called {describe(name)}; {MODEL_NAME_ADVICE}")
    if not model.strip():
        raise UsageError(f"{describe(name)} names a provider and no model; write one after it, such as {provider}:…")
    match provider:
        case "openai":
            from antiphon.models.openai import OpenAIModel

            return OpenAIModel(model)
        case "anthropic":
            from antiphon.models.anthropic import AnthropicModel

            return AnthropicModel(model)
        case _:
            from antiphon.models.bridge import BridgedModel

            return BridgedModel(name)
