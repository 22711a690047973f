"""A turn of a team, played by hand: models and tools give what the test says, steps are run."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import NamedTuple, cast

from antiphon import Agent, Handoff, Progress, Reply, Request
from antiphon.agents.call_results import StepChanges, ToolResult
from antiphon.agents.loop import TurnResult, take_turn
from antiphon.agents.progress import (
    AskModel,
    CallTool,
    Effect,
    EffectResult,
    MemberPath,
    PreparedPrompt,
    PreparePrompt,
    RunStep,
    changes_between,
)
from antiphon.agents.team import HandoffRefusal, settle_handoffs
from antiphon.core.views import Message

DAY = "2026-01-31"
HISTORY = [Message("user", "What is there?")]


def there(handoff: Handoff) -> str | None:
    """Everybody can be handed the turn."""
    return None


def alone(handoff: Handoff) -> str | None:
    """Nobody else takes part."""
    return f"Nobody called {handoff.target} is here."


class Play(NamedTuple):
    """What a turn wanted, and what it came to."""

    wanted: list[Effect]
    said: TurnResult

    @property
    def trace(self) -> list[str]:
        """What it wanted, in words: who is asked, which tools are called, which steps are run."""
        return [word for each in self.wanted for word in _words(each)]

    @property
    def requests(self) -> list[Request]:
        """What the models were sent."""
        return [each.request for each in self.wanted if isinstance(each, AskModel)]

    @property
    def positions(self) -> list[int]:
        """The positions of everything that it wanted."""
        return [
            index
            for each in self.wanted
            for index in ([call.index for call in each] if isinstance(each, tuple) else [each.index])
        ]


class Stage:
    """Gives a turn what it wants."""

    def __init__(
        self, agent: Agent, replies: Sequence[Reply], results: Mapping[str, ToolResult], refusal: HandoffRefusal
    ) -> None:
        self._agent, self._replies, self._results, self._refusal = agent, list(replies), results, refusal

    def give(self, wanted: Effect) -> EffectResult:
        match wanted:
            case AskModel():
                assert self._replies, "a model is asked more often than it can answer"
                return self._replies.pop(0)
            case PreparePrompt(path=path):
                prompt = self._agent.team.members[path].declaration.system_prompt
                return PreparedPrompt(prompt if isinstance(prompt, str) else str(prompt(HISTORY)), HISTORY, "p")
            case RunStep():
                return ran(wanted)
            case _:
                called, first = [self._called(call) for call in wanted], wanted[0]
                return settle_handoffs(self._agent.team, first.path, called, hops=first.hops, refusal=self._refusal)

    def _called(self, wanted: CallTool) -> ToolResult:
        """What the test says; transfers and requests for help do what they do."""
        name = wanted.call.name
        if name in self._results:
            return self._results[name]
        if name.startswith("transfer_to_"):
            target = name.removeprefix("transfer_to_")
            return ToolResult(f"Conversation transferred to {target}.", transfer=target)
        if name == "request_help":
            return ToolResult(str(wanted.call.args["reason"]), transfer=wanted.path[-2])
        return ToolResult(f"{name} done")


def ran(wanted: RunStep) -> StepChanges:
    """What a step changes, which waits for nothing."""
    after: object = wanted.function(wanted.progress)
    if wanted.waits:
        try:
            cast("Coroutine[object, object, object]", after).send(None)
        except StopIteration as end:
            after = end.value
    return changes_between(wanted.progress, after) if isinstance(after, Progress) else StepChanges()


def play(
    agent: Agent,
    *replies: Reply,
    results: Mapping[str, ToolResult] | None = None,
    heard: str | None = None,
    last_active: MemberPath = (),
    refusal: HandoffRefusal = alone,
) -> Play:
    """A turn of an agent, whose models give these replies one after the other, whoever is asked."""
    stage = Stage(agent, replies, results or {}, refusal)
    turn = take_turn(agent.team, Progress((agent.name,), heard, last_active), DAY)
    wanted = [next(turn)]
    try:
        while True:
            wanted.append(turn.send(stage.give(wanted[-1])))
    except StopIteration as end:
        said: TurnResult = end.value
    assert not stage._replies, "the turn ended before the models had given everything"
    return Play(wanted, said)


def _words(wanted: Effect) -> list[str]:
    match wanted:
        case AskModel(path=path):
            return [f"ask {path[-1]}"]
        case PreparePrompt(path=path):
            return [f"enter {path[-1]}"]
        case RunStep(name=name):
            return [name]
        case _:
            return [call.call.name for call in wanted]
