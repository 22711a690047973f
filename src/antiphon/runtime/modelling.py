"""The models of the agents that a hub runs: looked at before the first turn, let go of after the last."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from antiphon.agents.declaration import Declaration
from antiphon.agents.messages import Closes, Forewarns
from antiphon.core.errors import UsageError
from antiphon.core.words import told
from antiphon.engines.definitions import Definitions
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


async def close_models(agents: Iterable[Declaration], *, but: Iterable[Declaration] = ()) -> None:
    """Let the models of these agents go, except those that others have. One that fails at that stops no other."""
    kept = _models(but)
    for key, model in _models(agents).items():
        if key not in kept and isinstance(model, Closes):
            try:
                await model.close()
            except Exception as error:
                log.warning("a model could not be closed: %s", told(error))


async def close_replaced(definitions: Definitions, replaced: Declaration) -> None:
    """Let the models of a replaced definition go when no turn runs with it, except those that others have."""
    await definitions.unused(replaced)
    if definitions.is_earlier(replaced):  # otherwise it holds again
        await close_models([replaced], but=[each for each in definitions.all() if each is not replaced])
        definitions.forget(replaced)


def _models(agents: Iterable[Declaration]) -> dict[int, object]:
    return {
        id(member.declaration.model): member.declaration.model
        for agent in agents
        for member in agent.team.members.values()
    }
