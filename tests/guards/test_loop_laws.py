"""The detector against the plain definition of a loop, for calls and texts in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.protection_events import EV_LOOP_DETECTED
from tests.guards.looping import LoopScene
from tests.support.pure_channel import PureChannel

letters = st.sampled_from("ABC")
limits = st.integers(2, 6).flatmap(lambda window: st.tuples(st.just(window), st.integers(2, window)))


def is_loop(calls: str, window: int, threshold: int) -> bool:
    """Whether the last of these calls is one too many, by looking at all of them."""
    if calls[-window:].count(calls[-1]) >= threshold:
        return True
    return any(
        len(calls) >= period * threshold and calls[-period * threshold :] == calls[-period:] * threshold
        for period in (2, 3)
    )


@given(st.text(letters, min_size=1, max_size=20), limits)
def test_the_first_call_that_is_denied_is_the_first_loop(calls: str, limit: tuple[int, int]) -> None:
    window, threshold = limit
    desk = LoopScene({"name": "loop", "window": window, "threshold": threshold})
    expected = next((at for at in range(1, len(calls) + 1) if is_loop(calls[:at], window, threshold)), None)
    became = [desk.call(q=letter) for letter in calls[:expected]]
    assert became == ["made"] * (len(calls) if expected is None else expected - 1) + ["denied"] * (expected is not None)


@given(st.lists(st.tuples(st.sampled_from(["bob", "cat"]), letters), max_size=24))
def test_agents_do_not_disturb_each_other(calls: list[tuple[str, str]]) -> None:
    together = LoopScene()
    became = [(who, together.call(who, q=letter)) for who, letter in calls]
    for agent in ("bob", "cat"):
        alone = LoopScene()
        expected = [alone.call(agent, q=letter) for who, letter in calls if who == agent]
        assert [outcome for who, outcome in became if who == agent] == expected


@given(st.text(letters, max_size=16), st.data())
def test_calls_that_start_again_change_nothing(calls: str, data: st.DataObject) -> None:
    once, again = LoopScene(), LoopScene()
    for letter in calls:
        outcome = once.call(q=letter)
        assert again.call(q=letter) == outcome
        if outcome == "made" and data.draw(st.booleans()):
            assert again.start_at(again.index, "bob", "search", {"q": letter}) == "made"
    assert [loop["key"] for loop in once.trips] == [loop["key"] for loop in again.trips]


@given(st.text(letters, min_size=1, max_size=14))
def test_a_text_is_a_loop_when_it_is_the_third_among_the_last_five(texts: str) -> None:
    channel = PureChannel("conversation", "cat:agent", "bob:agent", guards=["loop"])
    tripped = False
    for place, letter in enumerate(texts, 1):
        recorded = channel.says("bob", f"This is text {letter}.")
        loop = texts[:place][-5:].count(letter) >= 3
        assert (EV_LOOP_DETECTED.removeprefix("antiphon.") in recorded) == loop
        assert (recorded[-1] == "channel.paused") == (loop and tripped)
        tripped = tripped or loop
        if recorded[-1] == "channel.paused":
            return
