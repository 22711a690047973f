"""Closes the models of agents: with the hub, or when a definition that was replaced has ended its last turn."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Closes
from antiphon.core.text import describe_error
from antiphon.engines.environment import AgentDefinitions

logger = logging.getLogger("antiphon.hub")


async def close_models(agents: Iterable[Declaration], *, but: Iterable[Declaration] = ()) -> None:
    """Close the models of these agents, except those that others use. An error of one stops no other."""
    kept = _models_by_id(but)
    for key, model in _models_by_id(agents).items():
        if key not in kept and isinstance(model, Closes):
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
