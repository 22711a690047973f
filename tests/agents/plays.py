"""A turn of a team, played by hand: models and tools give what the test says, steps are run."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import NamedTuple, cast

from antiphon import Agent, Progress, Reply, Request
from antiphon.agents.calling import Returned
from antiphon.agents.loop import Said, take_turn
from antiphon.agents.progress import Changes, Path, changes_between
from antiphon.agents.scene import Manner
from antiphon.agents.wanted import AskModel, CallTool, Enter, Entered, Given, RunStep, Wanted
from antiphon.core.views import Message

DAY = "2026-01-31"
HISTORY = [Message("user", "What is there?")]
THERE = Manner(lambda handoff: None, DAY)
"""Everybody can be handed the turn."""
ALONE = Manner(lambda handoff: f"Nobody called {handoff.target} is here.", DAY)
"""Nobody else takes part."""


class Play(NamedTuple):
    """What a turn wanted, and what it came to."""

    wanted: list[Wanted]
    said: Said

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

    def __init__(self, agent: Agent, replies: Sequence[Reply], results: Mapping[str, Returned]) -> None:
        self._agent, self._replies, self._results = agent, list(replies), results

    def give(self, wanted: Wanted) -> Given:
        match wanted:
            case AskModel():
                assert self._replies, "a model is asked more often than it can answer"
                return self._replies.pop(0)
            case Enter(path=path):
                prompt = self._agent.team.members[path].declaration.system_prompt
                return Entered(prompt if isinstance(prompt, str) else str(prompt(HISTORY)), HISTORY, "p")
            case RunStep():
                return ran(wanted)
            case _:
                return tuple(self._called(call) for call in wanted)

    def _called(self, wanted: CallTool) -> Returned:
        """What the test says; transfers and requests for help do what they do."""
        name = wanted.call.name
        if name in self._results:
            return self._results[name]
        if name.startswith("transfer_to_"):
            target = name.removeprefix("transfer_to_")
            return Returned(f"Conversation transferred to {target}.", transfer=target)
        if name == "request_help":
            return Returned(str(wanted.call.args["reason"]), transfer=wanted.path[-2])
        return Returned(f"{name} done")


def ran(wanted: RunStep) -> Changes:
    """What a step changes, which waits for nothing."""
    after: object = wanted.function(wanted.progress)
    if wanted.waits:
        try:
            cast("Coroutine[object, object, object]", after).send(None)
        except StopIteration as end:
            after = end.value
    return changes_between(wanted.progress, after) if isinstance(after, Progress) else Changes()


def play(
    agent: Agent,
    *replies: Reply,
    results: Mapping[str, Returned] | None = None,
    heard: str | None = None,
    stored: Path = (),
    manner: Manner = ALONE,
) -> Play:
    """A turn of an agent, whose models give these replies one after the other, whoever is asked."""
    stage = Stage(agent, replies, results or {})
    turn = take_turn(agent.team, Progress((agent.name,), heard, stored), manner)
    wanted = [next(turn)]
    try:
        while True:
            wanted.append(turn.send(stage.give(wanted[-1])))
    except StopIteration as end:
        said: Said = end.value
    assert not stage._replies, "the turn ended before the models had given everything"
    return Play(wanted, said)


def _words(wanted: Wanted) -> list[str]:
    match wanted:
        case AskModel(path=path):
            return [f"ask {path[-1]}"]
        case Enter(path=path):
            return [f"enter {path[-1]}"]
        case RunStep(name=name):
            return [name]
        case _:
            return [call.call.name for call in wanted]
