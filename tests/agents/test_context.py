"""A channel in the hands of a tool: what it reads, and what it writes to the context."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon import Denied, Envelope, State, UsageError, delete_context, set_context
from antiphon.agents.turn_channel import NO_CONTEXT_CHANGE, TurnChannel, merge_context_changes
from antiphon.core.event_data import Deny
from antiphon.core.events import ContextSet
from antiphon.core.evolve import merge_context
from antiphon.guards.standard_guards import ContextWriters

STATE = State(channel_id="here", participants={"alice": "service", "ada": "agent"}, context_vars={"a": 1, "b": [2]})


def allowing(draft: Envelope) -> Deny | None:
    return None


def by_writers(draft: Envelope) -> Deny | None:
    """Only alice writes `budget`."""
    verdict = ContextWriters({"budget": frozenset({"alice"})}).judge(None, STATE, draft)
    return verdict if isinstance(verdict, Deny) else None


def held(before: ContextSet = NO_CONTEXT_CHANGE, judge: Callable[[Envelope], Deny | None] = allowing) -> TurnChannel:
    return TurnChannel(STATE, "ada", judge, before=before)


def test_what_a_tool_knows_of_its_channel() -> None:
    channel = held()
    assert (channel.channel_id, channel.speaker, channel.state) == ("here", "ada", STATE)
    assert (channel.context_vars, channel.written) == ({"a": 1, "b": [2]}, NO_CONTEXT_CHANGE)


@pytest.mark.parametrize(
    ("before", "act", "context", "written"),
    [
        (NO_CONTEXT_CHANGE, lambda channel: None, {"a": 1, "b": [2]}, NO_CONTEXT_CHANGE),
        (NO_CONTEXT_CHANGE, lambda channel: channel.set_context(c=3), {"a": 1, "b": [2], "c": 3}, ContextSet({"c": 3})),
        (
            NO_CONTEXT_CHANGE,
            lambda channel: channel.set_context(a=7, b=8),
            {"a": 7, "b": 8},
            ContextSet({"a": 7, "b": 8}),
        ),
        (NO_CONTEXT_CHANGE, lambda channel: channel.set_context(), {"a": 1, "b": [2]}, NO_CONTEXT_CHANGE),
        (NO_CONTEXT_CHANGE, lambda channel: channel.delete_context("a"), {"b": [2]}, ContextSet({}, ["a"])),
        (NO_CONTEXT_CHANGE, lambda channel: channel.delete_context("a", "x"), {"b": [2]}, ContextSet({}, ["a", "x"])),
        (NO_CONTEXT_CHANGE, lambda channel: channel.delete_context(), {"a": 1, "b": [2]}, NO_CONTEXT_CHANGE),
        (
            NO_CONTEXT_CHANGE,
            lambda channel: (channel.set_context(a=7), channel.delete_context("a")),
            {"b": [2]},
            ContextSet({}, ["a"]),
        ),
        (
            NO_CONTEXT_CHANGE,
            lambda channel: (channel.delete_context("a"), channel.set_context(a=7)),
            {"a": 7, "b": [2]},
            ContextSet({"a": 7}, ["a"]),
        ),
        (ContextSet({"c": 3}, ["a"]), lambda channel: None, {"b": [2], "c": 3}, NO_CONTEXT_CHANGE),
        (ContextSet({"c": 3}), lambda channel: channel.delete_context("c"), {"a": 1, "b": [2]}, ContextSet({}, ["c"])),
        (ContextSet({"a": 3}), lambda channel: channel.set_context(a=4), {"a": 4, "b": [2]}, ContextSet({"a": 4})),
        (ContextSet({}, ["a"]), lambda channel: channel.set_context(a=9), {"a": 9, "b": [2]}, ContextSet({"a": 9})),
    ],
)
def test_what_is_written_is_read(
    before: ContextSet, act: Callable[[TurnChannel], object], context: dict[str, object], written: ContextSet
) -> None:
    channel = held(before)
    act(channel)
    assert channel.context_vars == context
    assert channel.written == written
    assert channel.state == STATE


async def test_writing_is_done_at_once_and_may_be_awaited() -> None:
    channel = held()
    done = channel.set_context(c=3)
    assert channel.context_vars["c"] == 3
    assert await done is None
    assert await channel.delete_context("c") is None
    await set_context(channel, d=4)
    await delete_context(channel, "a")
    set_context(channel, e=5)
    assert channel.context_vars == {"b": [2], "d": 4, "e": 5}


@pytest.mark.parametrize("act", [lambda held: held.set_context(budget=7), lambda held: held.delete_context("budget")])
def test_what_the_speaker_may_not_write_is_denied(act: Callable[[TurnChannel], object]) -> None:
    channel = held(judge=by_writers)
    channel.set_context(free=1)
    with pytest.raises(Denied, match="budget") as denied:
        act(channel)
    assert (denied.value.reason, denied.value.channel_id) == ("not_a_writer", "here")
    assert denied.value.detail == "'ada' may not write the context variable 'budget'"
    assert channel.written == ContextSet({"free": 1})


def test_the_draft_that_is_judged_is_the_one_the_speaker_would_send() -> None:
    drafts: list[Envelope] = []

    def noting(draft: Envelope) -> Deny | None:
        drafts.append(draft)
        return None

    channel = held(judge=noting)
    channel.set_context(c=3)
    channel.delete_context("a")
    edges = [(each.sender_id, each.event_type, each.audience) for each in drafts]
    assert edges == [("ada", "ag2.context.set", None)] * 2
    assert [each.event_data for each in drafts] == [{"set": {"c": 3}, "delete": []}, {"set": {}, "delete": ["a"]}]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "nan is no JSON number"),
        (float("inf"), "inf is no JSON number"),
        (10**100, "an integer has more than 100 digits"),
        ("a\x00b", "a text contains a NUL character"),
        ("\ud800", "half a surrogate pair"),
        ((1, 2), "tuple is no JSON value"),
        ({1: 2}, "a key is 1"),
        ([[float("nan")]], "nan is no JSON number"),
        (list(range(10_001)), "more than 10000 values"),
    ],
)
def test_what_is_no_json_is_refused(value: object, why: str) -> None:
    channel = held()
    with pytest.raises(UsageError, match=f"the context cannot hold this: .*{why}"):
        channel.set_context(c=value)
    assert channel.written == NO_CONTEXT_CHANGE


def test_what_is_no_json_is_not_even_judged() -> None:
    def judging(draft: Envelope) -> Deny | None:
        raise AssertionError("it was judged")

    with pytest.raises(UsageError):
        held(judge=judging).set_context(c=float("nan"))


def test_a_tool_shares_nothing_with_the_channel() -> None:
    channel = held()
    mine = [1]
    channel.set_context(mine=mine)
    mine.append(2)
    channel.context_vars["mine"].append(3)  # type: ignore[attr-defined]
    channel.context_vars["b"].append(3)  # type: ignore[attr-defined]
    channel.state.context_vars["b"].append(3)  # type: ignore[attr-defined]
    channel.state.participants["mallory"] = "human"
    assert channel.context_vars == {"a": 1, "b": [2], "mine": [1]}
    assert (channel.state, STATE.context_vars) == (STATE, {"a": 1, "b": [2]})


@pytest.mark.parametrize("value", [object(), range(3), {1, 2}, b"x", float("nan"), "\ud800"])
def test_what_the_context_cannot_hold(value: object) -> None:
    channel = TurnChannel(STATE, "ada", allowing)
    with pytest.raises(UsageError, match="the context cannot hold this"):
        channel.set_context(a=value)
    assert channel.written == NO_CONTEXT_CHANGE


def test_a_key_is_a_text() -> None:
    with pytest.raises(UsageError, match="the context cannot hold this"):
        TurnChannel(STATE, "ada", allowing).delete_context(7)  # type: ignore[arg-type]  # on purpose


def test_what_is_written_shares_nothing_with_its_giver() -> None:
    given = [1]
    channel = TurnChannel(STATE, "ada", allowing)
    channel.set_context(a=given)
    given.append(2)
    assert channel.written.set == {"a": [1]}


# Laws

keys = st.sampled_from(["a", "b", "c"])
contexts = st.dictionaries(keys, st.integers(0, 9))
updates = st.builds(ContextSet, contexts, st.lists(keys, max_size=3))


@given(contexts, updates, updates)
def test_two_changes_joined_do_what_both_do(context: dict[str, object], one: ContextSet, two: ContextSet) -> None:
    state = State(context_vars=context)
    assert merge_context(state, merge_context_changes(one, two)) == merge_context(merge_context(state, one), two)


@given(updates, updates, updates)
def test_it_does_not_matter_what_is_joined_first(one: ContextSet, two: ContextSet, three: ContextSet) -> None:
    assert merge_context_changes(merge_context_changes(one, two), three) == merge_context_changes(
        one, merge_context_changes(two, three)
    )


@given(updates)
def test_nothing_joined_changes_nothing(one: ContextSet) -> None:
    assert merge_context_changes(one, NO_CONTEXT_CHANGE) == one
    state = State(context_vars={"a": 1})
    assert merge_context(state, merge_context_changes(NO_CONTEXT_CHANGE, one)) == merge_context(state, one)


@given(contexts, updates, st.lists(updates, max_size=4))
def test_what_a_tool_reads_is_what_will_be_recorded(
    context: dict[str, object], before: ContextSet, writes: list[ContextSet]
) -> None:
    state = State(context_vars=context)
    channel = TurnChannel(state, "ada", allowing, before=before)
    for write in writes:
        channel.delete_context(*write.delete)
        channel.set_context(**write.set)
    recorded = merge_context(merge_context(state, before), channel.written)
    assert channel.context_vars == recorded.context_vars
    assert merge_context(state, merge_context_changes(before, channel.written)) == recorded
