"""What is customary in a channel: what an agent is shown there, what its turn ends in, to whom it can hand the turn."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.agents.history import History
from antiphon.agents.loop import Said
from antiphon.agents.progress import Progress
from antiphon.agents.results import Handoff
from antiphon.agents.team import read_path
from antiphon.core.events import EV_CONTEXT_SET, EV_PACKET, EV_TEXT, ContextSet, Json, Routing, data_of
from antiphon.core.rules import Shows
from antiphon.core.state import State, Turn
from antiphon.core.views import FullTranscript, NamedTranscript, View
from antiphon.core.words import spelt
from antiphon.guards.handoffs import OTHERS, HandoffLimit
from antiphon.hub.live import LiveChannel


def in_packets(live: LiveChannel) -> bool:
    """Whether a turn ends in a packet here; otherwise it ends in a text."""
    return bool(getattr(live.laws.adapter, "packets", False))


def view_of(live: LiveChannel) -> View:
    """What an agent is shown that says nothing else itself."""
    count, adapter = len(live.state.participants), live.laws.adapter
    if isinstance(adapter, Shows):
        return adapter.view(count)
    return FullTranscript() if count <= 2 else NamedTranscript()


def refusing(live: LiveChannel, speaker: str) -> Callable[[Handoff], str | None]:
    """Says why a handoff is not possible in this channel, in words for a model; None if it is."""
    limit = next((guard for guard in live.laws.guards if isinstance(guard, HandoffLimit)), HandoffLimit())

    def refusal(handoff: Handoff) -> str | None:
        state = live.state
        if not in_packets(live):
            return f"Nobody can be handed anything in a {state.type} channel; answer yourself."
        target = spelt(handoff.target, state.participants)
        if target is None:
            known = ", ".join(state.participants)
            return f"Nobody called {handoff.target!r} takes part here; there are: {known}."
        why = limit.refusal(state, speaker, target)
        if why == OTHERS:
            return "Others have the turn together with you, so that you cannot give it away; answer yourself."
        return None if why is None else f"There have been {limit.most} handoffs in a row, the limit; answer yourself."

    return refusal


def texts_of(said: Said, context: ContextSet, *, who: str) -> list[tuple[str, Json]]:
    """What a turn ends in where it ends in a text: what it wrote to the context, then what it says."""
    text: Json = {"text": said.text, "agent": who} if who else {"text": said.text}
    if said.stopped is not None:
        text["stopped"] = said.stopped
    spoken: list[tuple[str, Json]] = [(EV_TEXT, text)]
    return [(EV_CONTEXT_SET, data_of(context)), *spoken] if context.set or context.delete else spoken


def hearers_of(state: State, turn: Turn, said: Said, *, chosen: tuple[str, ...] | None) -> list[str] | None:
    """Whom an answer is for: as a tool has chosen, else those who heard what it answers; None is everybody.

    A participant that is handed the turn hears what it is handed.
    """
    if chosen is not None or turn.audience is None:
        return list(chosen or ()) or None
    target = None if said.handoff is None else spelt(said.handoff.target, state.participants)
    return list(dict.fromkeys((*turn.audience, *([] if target is None else [target]))))


def packet_of(live: LiveChannel, said: Said, context: ContextSet, *, who: str, private: bool) -> list[tuple[str, Json]]:
    """What a turn ends in where it ends in a packet: all of it as one fact.

    What a private packet writes to the context is recorded before it: context variables are everybody's.
    """
    named: frozenset[str] | None = getattr(live.laws.adapter, "routing_tools", None)
    handoff = said.handoff or Handoff("")
    routing = Routing(
        tool=next((tool for tool in said.tools if named is None or tool in named), None),
        target=handoff.target or None,
        reason=handoff.reason,
        summary=handoff.summary,
        finish=said.finish,
        stopped=said.stopped,
    )
    apart = private and bool(context.set or context.delete)
    updates = data_of(ContextSet() if apart else context)
    packet: Json = {"body": said.text, "routing": data_of(routing), "context_updates": updates}
    spoken: list[tuple[str, Json]] = [(EV_PACKET, {**packet, "agent": who} if who else packet)]
    return [(EV_CONTEXT_SET, data_of(context)), *spoken] if apart else spoken


def beginning(state: State, turn: Turn, history: History) -> Progress:
    """How a turn begins: who is asked, who answered last, and what a person said that is to be answered."""
    name = turn.speaker
    people = frozenset(who for who, kind in state.participants.items() if kind == "human")
    return Progress((name,), history.heard(turn.sequence, people), read_path(state.active.get(name, ""))[1:])


def day_of(state: State, turn: Turn, history: History) -> str:
    """The day on which what is to be answered was said, the same for every attempt."""
    voice = history.voice(turn.cause)
    return (state.created_at if voice is None else voice.at)[:10]
