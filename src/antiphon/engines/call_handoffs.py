"""The handoffs of one message: which of them counts, and why the others do not.

Rule 1: which handoff counts is decided before the results are recorded. The result of an unsafe call alone does not
        wait for that: losing it would cost more than a handoff that is recorded and does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from antiphon.agents.call_results import Handoff, ToolOutcome, ToolResult
from antiphon.agents.progress import CallTool, SettledHandoffs
from antiphon.agents.team import settle_handoffs
from antiphon.core.conversation_events import EV_CONVERSATION_REFUSED, ConversationRefused
from antiphon.core.envelope import match_name
from antiphon.core.protection_events import EV_LIMIT_REACHED
from antiphon.core.ruleset import ConversationHandoffs
from antiphon.engines.environment import TurnRun
from antiphon.engines.journal import TurnJournal
from antiphon.engines.prepared_calls import PreparedCall, awaits_settlement
from antiphon.guards.run_limits import OTHERS_HAVE_TURN, HopLimit, hop_refusal


class KeepOutcome(Protocol):
    """Keeps the outcome of a call for the journal."""

    def __call__(self, journal: TurnJournal, ready: PreparedCall, outcome: ToolOutcome) -> ToolOutcome: ...


def settle_message(
    journal: TurnJournal,
    wanted: Sequence[CallTool],
    found: Mapping[int, ToolOutcome],
    *,
    made: Sequence[PreparedCall],
    keep: KeepOutcome,
) -> SettledHandoffs:
    """Decide which handoff counts, and keep the results that waited for the decision."""
    run, first = journal.run, wanted[0]
    results = tuple(found[each.index].returned for each in wanted)
    if run.live.ruleset.traits.handoffs is not None:
        results = tuple(map(_as_briefing, results))
    refusal = _handoff_refusals(run)
    settled = settle_handoffs(run.team, first.path, results, hops=first.hops, refusal=refusal)
    returned = dict(zip((each.index for each in wanted), settled.results, strict=True))
    places = {each.index: place for place, each in enumerate(wanted)}
    for each in made:
        outcome, result = found[each.wanted.index], returned[each.wanted.index]
        if awaits_settlement(each, outcome.returned):
            keep(journal, each, msgspec.structs.replace(outcome, returned=result))
        handoff = results[places[each.wanted.index]].handoff if result.declined else None
        if handoff is not None:
            _keep_refusal(journal, refusal, handoff)
    return settled


def _keep_refusal(journal: TurnJournal, refusal: _RefusedHandoffs | _HandoffsInChannel, handoff: Handoff) -> None:
    """Have it recorded that a handoff was refused, if its channel does that, or if it was one too many."""
    if isinstance(refusal, _RefusedHandoffs) and handoff in refusal.refused:
        journal.keep(EV_CONVERSATION_REFUSED, refusal.refused[handoff])
        reason = refusal.refused[handoff].reason
    else:
        reason = refusal.reasons.get(handoff, "") if isinstance(refusal, _HandoffsInChannel) else ""
    reached = hop_refusal(reason, journal.run.agent.name, handoff.target)
    if reached is not None:
        journal.keep(EV_LIMIT_REACHED, reached)


def _as_briefing(result: ToolResult) -> ToolResult:
    """The result whose summary, if it hands a conversation over, is for the next agent, and no answer to the people."""
    if result.handoff is None or result.handoff.briefing:
        return result
    return msgspec.structs.replace(result, handoff=msgspec.structs.replace(result.handoff, briefing=True))


class _RefusedHandoffs:
    """Says why a handoff is not possible in a routed conversation, and keeps what was refused."""

    def __init__(self, run: TurnRun, handoffs: ConversationHandoffs) -> None:
        self._run, self._handoffs = run, handoffs
        self.refused: dict[Handoff, ConversationRefused] = {}

    def __call__(self, handoff: Handoff) -> str | None:
        live, speaker = self._run.live, self._run.agent.name
        memory = live.ruleset.adapter_memory(live.fold)
        target, phase = handoff.target, handoff.phase
        found = self._handoffs.objection(memory, live.state, speaker=speaker, target=target, phase=phase)
        if found is None:
            self.refused.pop(handoff, None)
            return None
        self.refused[handoff] = ConversationRefused(speaker, target, found.reason, phase)
        return found.advice


class _HandoffsInChannel:
    """Says why a handoff is not possible in a channel that is no routed conversation, and keeps the stable reasons."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self.reasons: dict[Handoff, str] = {}

    def __call__(self, handoff: Handoff) -> str | None:
        live, speaker = self._run.live, self._run.agent.name
        state = live.state
        if not self._run.ends_in_packet:
            return f"Nobody can be handed anything in a {state.type} channel; answer yourself."
        target = match_name(handoff.target, state.participants)
        if target is None:
            known = ", ".join(state.participants)
            return f"Nobody called {handoff.target!r} takes part here; there are: {known}."
        limit = next((guard for guard in live.ruleset.guards if isinstance(guard, HopLimit)), HopLimit())
        why = limit.refusal(state, speaker, target)
        if why == OTHERS_HAVE_TURN:
            return "Others have the turn together with you, so that you cannot give it away; answer yourself."
        if why is None:
            return None
        self.reasons[handoff] = why
        return f"There have been {limit.most} handoffs in a row, the limit; answer yourself."


def _handoff_refusals(run: TurnRun) -> _RefusedHandoffs | _HandoffsInChannel:
    """Says why a handoff is not possible in this channel, in words for a model; None if it is."""
    handoffs = run.live.ruleset.traits.handoffs
    return _HandoffsInChannel(run) if handoffs is None else _RefusedHandoffs(run, handoffs)
