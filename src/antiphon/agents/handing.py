"""Which handoff of a message counts.

Rule 1: at most one does: the first that is possible, and none beside a `Finish`. The others are told why not, so that
        every call has a result.
Rule 2: the decision is the same whoever takes it and how often: whoever records results takes it before they are
        recorded, so that everybody is told what the model is told; the loop takes it for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from antiphon.agents.calling import Returned
from antiphon.agents.progress import Path
from antiphon.agents.results import Handoff
from antiphon.agents.team import Member, Team
from antiphon.core.words import spelt

Refusal = Callable[[Handoff], str | None]
"""Why a handoff to somebody else in the channel is not possible; None if it is."""

IGNORED, IMPOSSIBLE, TOO_MANY = "ignored", "impossible", "too_many"
"""Why a handoff is declined."""


class Settled(msgspec.Struct, frozen=True):
    """The results of a message with at most one handoff left."""

    results: tuple[Returned, ...]
    place: Path | None = None
    """Who of the team becomes active."""

    @property
    def at_limit(self) -> bool:
        """Whether a handoff was declined because there had been too many."""
        return any(result.declined == TOO_MANY for result in self.results)


def settled(team: Team, path: Path, results: Sequence[Returned], *, hops: int, refusal: Refusal) -> Settled:
    """Let one handoff stand, and decline the rest."""
    member = team.members[path]
    results = [_found(member, result, refusal) for result in results]
    kept = list(results)
    if any(result.finish is not None for result in results):
        return Settled(tuple(_ignored(result, "it is finished") for result in results))
    for number, result in enumerate(results):
        if result.target is None:
            continue
        declined = _declined(team, member, result, hops=hops, refusal=refusal)
        if declined is None:
            why = f"the turn goes to {result.target}"
            rest = (_ignored(later, why) for later in results[number + 1 :])
            return Settled((*kept[: number + 1], *rest), member.reach.get(result.target))
        kept[number] = declined
    return Settled(tuple(kept))


def _found(member: Member, result: Returned, refusal: Refusal) -> Returned:
    """The result with the name as the team spells it, if it hands over to an agent of the team in another case.

    A participant of the channel that can be handed the turn is meant first.
    """
    handoff = result.handoff
    target = None if handoff is None else spelt(handoff.target, member.reach)
    if handoff is None or target is None or target == handoff.target or refusal(handoff) is None:
        return result
    return msgspec.structs.replace(result, handoff=msgspec.structs.replace(handoff, target=target))


def _declined(team: Team, member: Member, result: Returned, *, hops: int, refusal: Refusal) -> Returned | None:
    """The result when this handoff is not possible; None if it is."""
    most = team.limits.handoffs
    if result.target in member.reach:
        there = "has been 1 handoff" if most == 1 else f"have been {most} handoffs"
        why = f"There {there} in this turn, the limit; answer yourself."
        return None if hops < most else _told(result, why, TOO_MANY)
    why_not = refusal(result.handoff) if result.handoff else f"There is no {result.target} to turn to."
    return None if why_not is None else _told(result, why_not, IMPOSSIBLE)


def _ignored(result: Returned, why: str) -> Returned:
    return result if result.target is None else _told(result, f"Ignored: {why}.", IGNORED)


def _told(result: Returned, why: str, declined: str) -> Returned:
    return Returned(why, failed=True, usage=result.usage, declined=declined)
