"""The models of a hub: those that guards choose by name, and how all of them are closed.

Rule 1: the models of an agent are closed with the hub, or when a definition that was replaced has ended its last turn.
Rule 2: a model that a guard names is made when it is first asked, and closed with the hub.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Closes, Model
from antiphon.core.errors import UsageError
from antiphon.core.text import describe, describe_error
from antiphon.engines.environment import AgentDefinitions
from antiphon.models.model_names import named_model

logger = logging.getLogger("antiphon.hub")


class NamedModels:
    """The models that guards may choose in the place of an agent's own."""

    def __init__(self) -> None:
        self._known: dict[str, Model] = {}

    def add(self, name: str, model: Model) -> None:
        """Make a model available under this name."""
        if not isinstance(name, str) or not name:
            raise UsageError(f"the name of a model is {describe(name)}; give a text")
        if not callable(model) or isinstance(model, type):
            raise UsageError(f"the model {name!r} is {describe(model)}; give a model, or an async function")
        if self._known.get(name, model) is not model:
            raise UsageError(f"there is a model {name!r} in this hub already; give another name")
        self._known[name] = model

    def find(self, name: str) -> Model:
        """The model of this name: one that was added, or one of a provider, as `openai:gpt-5-mini`."""
        if name not in self._known:
            try:
                self._known[name] = named_model(name)
            except UsageError as error:
                raise UsageError(f"{error}; or add one of yours with hub.fallback_model({name!r}, …)") from error
        return self._known[name]

    async def close(self) -> None:
        """Close them all."""
        for model in self._known.values():
            await _close_model(model)


async def close_models(agents: Iterable[Declaration], *, but: Iterable[Declaration] = ()) -> None:
    """Close the models of these agents, except those that others use. An error of one stops no other."""
    kept = _models_by_id(but)
    for key, model in _models_by_id(agents).items():
        if key not in kept:
            await _close_model(model)


async def _close_model(model: object) -> None:
    if isinstance(model, Closes):
        try:
            await model.close()
        except Exception as error:
            logger.warning("a model could not be closed: %s", describe_error(error))


async def close_replaced(definitions: AgentDefinitions, replaced: Declaration) -> None:
    """Close the models of a replaced definition when no turn runs with it, except those that others use."""
    await definitions.unused(replaced)
    if definitions.is_earlier(replaced):  # otherwise it holds again
        await close_models([replaced], but=[each for each in definitions.all() if each is not replaced])
        definitions.forget(replaced)


def _models_by_id(agents: Iterable[Declaration]) -> dict[int, object]:
    return {
        id(member.declaration.model): member.declaration.model
        for agent in agents
        for member in agent.team.members.values()
    }
