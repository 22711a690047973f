"""The models of the agents that a hub runs: looked at before the first turn, let go of after the last."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Closes, Forewarns
from antiphon.core.errors import UsageError
from antiphon.core.words import told
from antiphon.hub.redacting import KNOWN

log = logging.getLogger("antiphon.hub")


def check_models(agent: Declaration) -> None:
    """`UsageError` if a model of the agent's team knows already that it cannot be asked."""
    KNOWN.know_environment()  # models take their keys from there
    for member in agent.team.members.values():
        model: object = member.declaration.model
        if isinstance(model, Forewarns):
            try:
                model.check()
            except UsageError as error:
                raise UsageError(f"the model of {member.name!r}: {error}") from error


async def close_models(agents: Iterable[Declaration]) -> None:
    """Let the models of these agents go. One that fails at that stops no other."""
    models: dict[int, object] = {
        id(member.declaration.model): member.declaration.model
        for agent in agents
        for member in agent.team.members.values()
    }
    for model in models.values():
        if isinstance(model, Closes):
            try:
                await model.close()
            except Exception as error:
                log.warning("a model could not be closed: %s", told(error))
