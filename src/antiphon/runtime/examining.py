"""The rules of a new channel, read and checked before it is opened.

Rule 1: a graph may be large, and takes time to read and check. A thread does that, so that the event loop goes on; and
        one at a time, for each thread that runs Python delays the loop.
Rule 2: what is found does not depend on time: the check counts its steps.
"""

from __future__ import annotations

import asyncio

from antiphon.core.errors import RulesInvalid
from antiphon.core.events import Created
from antiphon.core.laws import Laws
from antiphon.core.opening import findings_on
from antiphon.orchestration.lawbook import is_checked, laws_for

MOST_TOLD = 10
"""How many errors one message tells."""


class Examination:
    """Checks the rules of new channels, one after the other."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def laws_of(self, created: Created) -> Laws:
        """The laws of a channel that is about to be opened; `RulesInvalid` if they are none, or wrong for it."""
        if not is_checked(created.type):
            return _examined(created)
        async with self._one:
            return await asyncio.to_thread(_examined, created)


def _examined(created: Created) -> Laws:
    laws = laws_for(created.type, created.knobs)
    wrong = [found.message for found in findings_on(laws.adapter, created) if found.level == "error"]
    if wrong:
        further = f"; and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
        raise RulesInvalid("; ".join(wrong[:MOST_TOLD]) + further)
    return laws
