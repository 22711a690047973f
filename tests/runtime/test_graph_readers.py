"""A large graph is read by a thread wherever a channel begins: when it is opened, loaded or forked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from antiphon import AgentTarget, Envelope, Hub, State, TerminateTarget, Transition, TransitionGraph, register_condition
from antiphon.runtime.participant import Participant

readers: list[str] = []
"""The threads in which conditions were made, by name."""
MAIN = threading.main_thread().name


@register_condition
@dataclass(frozen=True)
class Watched:
    """A condition that notes which thread has made it."""

    name: ClassVar[str] = "watched_of_graph_readers"
    number: int

    def __post_init__(self) -> None:
        readers.append(threading.current_thread().name)

    def evaluate(self, state: State, envelope: Envelope) -> bool:
        return False


@pytest.fixture
def knobs() -> Iterator[dict[str, object]]:
    rules = [Transition(Watched(number), AgentTarget("bob")) for number in range(500)]
    data = TransitionGraph("ann", rules, AgentTarget("bob"), max_turns=9).to_dict()
    readers.clear()
    yield {"graph": data}
    readers.clear()


@pytest.mark.parametrize("may_run", [True, False])
async def test_opening(knobs: dict[str, object], *, may_run: bool) -> None:
    async with Hub.open("memory:", engine=None) as hub:
        for name in ("ann", "bob"):
            await hub.register(name)
        ann = Participant(hub.core, "ann", "service", may_run=may_run)
        await ann.open(type="workflow", target="bob", knobs=knobs)
        assert len(readers) >= 500
        assert MAIN not in readers


@pytest.mark.parametrize("texts", [1, 600], ids=["from its beginning", "from its snapshot"])
async def test_loading_and_forking(knobs: dict[str, object], tmp_path: Path, texts: int) -> None:
    url = f"sqlite:///{tmp_path}/graphs.db"
    del knobs["graph"]["max_turns"]  # type: ignore[attr-defined]
    async with Hub.open(url, engine=None) as hub:
        ann, _ = [await hub.register(name) for name in ("ann", "bob")]
        channel = await ann.open(type="workflow", target="bob", knobs=knobs)
        for number in range(texts):
            await channel.set_context(number=number)
    async with Hub.open(url, engine=None) as hub:
        ann = await hub.register("ann")
        readers.clear()
        loaded = await ann.channel(channel.channel_id)
        assert len(readers) >= 500
        await loaded.fork(at=loaded.state.sequence)
        assert len(readers) >= 1000
        assert MAIN not in readers


def test_the_main_thread_is_noticed() -> None:
    readers.clear()
    TransitionGraph("ann", [Transition(Watched(1), AgentTarget("bob"))], TerminateTarget("over"))
    assert readers == [MAIN]
