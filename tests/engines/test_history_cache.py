"""Histories are kept between turns, and the agents of one channel share one read of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from antiphon import Envelope
from antiphon.core.codec import to_json
from antiphon.core.ruleset import AdapterTraits
from antiphon.core.state import Turn
from antiphon.engines import environment
from antiphon.engines.environment import HistoryCache
from antiphon.hub.live import LiveChannel
from tests.support.envelopes import acked, created, log_of, opened, packed, said

AGENTS = [f"a{number}" for number in range(20)]


class Log:
    """A channel that counts how often its envelopes are decoded."""

    def __init__(self, agents: Sequence[str], *facts: Envelope, threaded: bool = False) -> None:
        begun = (created("alice", *(f"{name}:agent" for name in agents), ordered=False), acked(agents[0]), opened())
        self.log, self.decoded = log_of(*begun, *facts), 0
        kinds = {"alice": "human", **dict.fromkeys(agents, "agent")}
        self.state = SimpleNamespace(channel_id="c", participants=kinds, sequence=len(self.log))
        self.ruleset = SimpleNamespace(traits=AdapterTraits(threaded=threaded))

    async def read(self, after: int) -> Sequence[Envelope]:
        await asyncio.sleep(0)
        page = [each for each in self.log if each.sequence > after]
        self.decoded += len(page)
        return page


async def shown(cache: HistoryCache, log: Log, reader: str, sequence: int) -> list[str]:
    turn = Turn(turn_id=f"{sequence}/{reader}", speaker=reader, cause="e4", sequence=sequence)
    history = await cache.read(cast(LiveChannel, log), turn, named=False)
    return [message.text for message in history.messages_before(sequence)[0]]


async def test_agents_that_read_at_once_have_the_log_decoded_once() -> None:
    log, cache = Log(AGENTS, said("alice", "one"), *(said(name, "So.") for name in AGENTS)), HistoryCache()
    texts = await asyncio.gather(*(shown(cache, log, name, 4) for name in AGENTS))
    assert texts == [["one"]] * len(AGENTS)
    assert log.decoded == len(log.log)
    assert await shown(cache, log, "a3", 24) == ["one", *["So."] * len(AGENTS)]
    assert log.decoded == len(log.log)


async def test_a_reader_behind_the_shared_log_reads_the_log_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_SHARED_LOG_BYTES", 10)
    log, cache = Log(AGENTS, *(said("alice", f"message {number}") for number in range(5))), HistoryCache()
    expected = [f"message {number}" for number in range(5)]
    assert [await shown(cache, log, name, 8) for name in AGENTS] == [expected] * len(AGENTS)


async def test_a_channel_with_one_agent_is_not_kept_twice() -> None:
    log, cache = Log(["ada"], said("alice", "one")), HistoryCache()
    assert await shown(cache, log, "ada", 4) == ["one"]
    assert not cache._shared


async def test_where_messages_have_turns_a_turn_is_shown_the_answers_to_earlier_messages_alone() -> None:
    facts = (said("alice", "one"), said("alice", "two"), said("alice", "three"))
    log, cache = Log(AGENTS, *facts, threaded=True), HistoryCache()
    first, second, third = (each for each in log.log if each.sender_id == "alice" and "text" in each.event_data)
    assert await shown(cache, log, "a1", first.sequence) == ["one"]
    answers = [
        replace(packed("a1", f"to {cause.event_data['text']}"), causation_id=cause.envelope_id)
        for cause in (first, second)
    ]
    log.log = log_of(*log.log, *answers)
    log.state.sequence = len(log.log)
    assert await shown(cache, log, "a1", second.sequence) == ["one", "to one", "two", "to two"]
    assert await shown(cache, log, "a2", third.sequence) == ["one", "to one", "two", "to two", "three"]


async def test_what_was_erased_is_read_again() -> None:
    log, cache = Log(AGENTS, said("alice", "one")), HistoryCache()
    assert await shown(cache, log, "a1", 4) == ["one"]
    cache.forget("c")
    log.log = Log(AGENTS, said("alice", "gone")).log
    assert await shown(cache, log, "a1", 4) == ["gone"]


async def test_only_so_many_channels_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_SHARED_LOGS", 2)
    cache = HistoryCache()
    for number in range(5):
        log = Log(AGENTS, said("alice", "one"))
        log.state.channel_id = f"c{number}"
        assert await shown(cache, log, "a1", 4) == ["one"]
    assert list(cache._shared) == ["c3", "c4"]


@pytest.mark.parametrize(
    "nested",
    [{"note": {"text": "x" * 100}}, {"note": [["x" * 50], "x" * 50]}, {"note": {"x" * 100: 1}}],
    ids=["dict", "list", "keys"],
)
async def test_a_shared_log_is_measured_by_texts_at_every_depth(
    monkeypatch: pytest.MonkeyPatch, nested: dict[str, object]
) -> None:
    limit, count = 2000, 20
    monkeypatch.setattr(environment, "MAX_SHARED_LOG_BYTES", limit)
    monkeypatch.setattr(environment, "RECORD_OVERHEAD_BYTES", 0)
    facts = [packed("a1", f"packet {number}", set=nested) for number in range(count)]
    log, cache = Log(AGENTS, *facts), HistoryCache()
    last, expected = len(log.log), [f"packet {number}" for number in range(count)]
    assert await shown(cache, log, "a2", last) == expected
    kept = cache._shared["c"].between(0, last)
    assert sum(len(to_json(each.event_data)) for each in kept) <= limit
    assert await shown(cache, log, "a3", last) == expected
    assert log.decoded == 3 * last  # once for all agents, and by each reader, for which too little was kept


async def test_a_shared_log_within_its_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAX_SHARED_LOG_BYTES", 2000)
    log, cache = Log(AGENTS, packed("a1", "packet", set={"note": {"text": "x" * 100, "count": 7}})), HistoryCache()
    assert [await shown(cache, log, name, len(log.log)) for name in ("a2", "a3")] == [["packet"], ["packet"]]
    assert log.decoded == len(log.log)
