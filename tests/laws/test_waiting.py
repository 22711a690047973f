"""Drafts that wait: the urgent first, equals in order, and nobody overtaken more than 64 times."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon import Priority
from antiphon.hub.admission import MAX_TIMES_OVERTAKEN, PriorityQueue

BACKGROUND, NORMAL, URGENT = Priority.BACKGROUND, Priority.NORMAL, Priority.URGENT

moves = st.lists(
    st.tuples(st.just("put"), st.sampled_from(Priority), st.integers(1, 90))
    | st.tuples(st.just("take"), st.just(NORMAL), st.integers(1, 120)),
    max_size=12,
)


@dataclass
class Draft:
    arrival: int
    priority: Priority
    overtaken: int = 0
    by_higher: int = 0


@dataclass
class Counted:
    """A queue beside a plain list of who waits, in which every overtaking is counted by hand."""

    queue: PriorityQueue[Draft] = field(default_factory=PriorityQueue)
    waiting: list[Draft] = field(default_factory=list)
    taken: list[Draft] = field(default_factory=list)
    arrivals: int = 0

    def put(self, priority: Priority, count: int) -> None:
        for _ in range(count):
            self.arrivals += 1
            draft = Draft(self.arrivals, priority)
            self.waiting.append(draft)
            self.queue.put(draft, priority)

    def take(self, count: int) -> None:
        for draft in self.queue.take(count):
            self._check(draft)
            self.waiting.remove(draft)
            self.taken.append(draft)
            for other in self.waiting:
                other.overtaken += other.arrival < draft.arrival

    def _check(self, draft: Draft) -> None:
        earlier = [other for other in self.waiting if other.arrival < draft.arrival]
        assert all(other.priority != draft.priority for other in earlier), "equals are served in order"
        higher = [other for other in self.waiting if other.priority > draft.priority]
        if higher:
            assert draft.overtaken >= MAX_TIMES_OVERTAKEN, (
                "somebody more important waits, and this one was not out of patience"
            )


def played(moves: list[tuple[str, Priority, int]]) -> Counted:
    counted = Counted()
    for move, priority, count in moves:
        if move == "put":
            counted.put(priority, count)
        else:
            counted.take(count)
    counted.take(counted.arrivals)
    return counted


@given(moves)
@example([("put", NORMAL, 1), ("put", BACKGROUND, 90), ("put", URGENT, 90)])
@example([("put", BACKGROUND, 3), ("put", NORMAL, 3), ("put", URGENT, 90), ("take", NORMAL, 66), ("put", URGENT, 90)])
@example([("put", BACKGROUND, 1), ("put", NORMAL, 40), ("put", URGENT, 40)])
def test_nobody_is_overtaken_more_than_64_times(moves: list[tuple[str, Priority, int]]) -> None:
    counted = played(moves)
    assert max((draft.overtaken for draft in counted.taken), default=0) <= MAX_TIMES_OVERTAKEN


@given(moves)
def test_everybody_is_served_once(moves: list[tuple[str, Priority, int]]) -> None:
    counted = played(moves)
    assert sorted(draft.arrival for draft in counted.taken) == list(range(1, counted.arrivals + 1))
    assert len(counted.queue) == 0
    assert not counted.waiting


@given(moves)
def test_the_queue_knows_its_length(moves: list[tuple[str, Priority, int]]) -> None:
    counted = Counted()
    for move, priority, count in moves:
        if move == "put":
            counted.put(priority, count)
        else:
            counted.take(count)
        assert len(counted.queue) == len(counted.waiting)
        assert bool(counted.queue) == bool(counted.waiting)


def test_higher_goes_first() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for item, priority in [("b1", BACKGROUND), ("n1", NORMAL), ("u1", URGENT), ("n2", NORMAL), ("u2", URGENT)]:
        queue.put(item, priority)
    assert queue.take(2) == ["u1", "u2"]
    assert queue.take(9) == ["n1", "n2", "b1"]
    assert queue.take(9) == []


@pytest.mark.parametrize(("before", "place"), [(63, 63), (64, 64), (65, 64), (200, 64)])
def test_the_65th_cannot_overtake(before: int, place: int) -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    queue.put("patient", BACKGROUND)
    for number in range(before):
        queue.put(f"u{number}", URGENT)
    assert queue.take(before + 1).index("patient") == place
