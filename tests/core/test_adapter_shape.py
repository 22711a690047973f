"""A class that could not be an adapter is found out when it is registered, and when it is checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import ClassVar

import pytest

from antiphon import Decision, Envelope, Expectation, RulesInvalid, Seats, State, Wait, register_adapter
from antiphon.orchestration import catalogue
from antiphon.testing import check_adapter


class Sound:
    """Nothing is wrong with this one, and nothing ever happens in it."""

    name: ClassVar[str] = "test-sound"
    seats: ClassVar[Seats] = Seats(1)
    ordered: ClassVar[bool] = False
    knobs: ClassVar[frozenset[str]] = frozenset()
    expectations: ClassVar[tuple[Expectation, ...]] = (Expectation("max_silence", 0),)
    memory: ClassVar[type] = dict

    def __init__(self, knobs: dict[str, object]) -> None:
        pass

    def evolve(self, memory: dict[str, int], envelope: Envelope) -> dict[str, int]:
        return memory

    def decide(self, memory: dict[str, int], state: State, envelope: Envelope) -> Decision:
        return Wait()


MISSING = object()


def changed(**attributes: object) -> type[Sound]:
    """The sound class under the name Odd, with these attributes changed or missing."""
    body = {**{key: value for key, value in vars(Sound).items() if key != "__dict__"}, **attributes}
    return type("Odd", (), {key: value for key, value in body.items() if value is not MISSING})  # type: ignore[return-value]


def expecting(*arguments: object) -> type[Sound]:
    return changed(expectations=(Expectation(*arguments),))  # type: ignore[arg-type]


class Needy:
    def __init__(self, size: int) -> None: ...


MISTAKES: dict[str, tuple[object, str]] = {
    "an end that is neither": (
        changed(ends_in="song"),
        "'ends_in' of the adapter Odd is 'song'; give 'text' or 'packet'",
    ),
    "an end that is a flag": (changed(ends_in=True), "'ends_in' of the adapter Odd is True; give a str"),
    "reactions in a list": (
        changed(reacts=["my.event"]),
        "'reacts' of the adapter Odd is ['my.event']; give a frozenset",
    ),
    "a reaction to itself": (
        changed(reacts=frozenset({"antiphon.turn.assigned"})),
        "the adapter Odd reacts to 'antiphon.turn.assigned'; give types of yours, or of these: ag2.channel.opened, ",
    ),
    "a reaction to a number": (changed(reacts=frozenset({7})), "the adapter Odd reacts to 7; give types of yours"),
    "a recovery without a failure": (
        changed(recover=lambda self, memory: Wait()),
        "the adapter Odd needs a method recover(self, memory, state, failed)",
    ),
    "a view of nothing": (changed(view=lambda self: None), "the adapter Odd needs a method view(self, participants)"),
    "an instance": (Sound({}), "is no class; give the class itself, not an instance of it"),
    "a name alone": ("test-sound", "'test-sound' is no class"),
    "no name": (changed(name=MISSING), "the adapter Odd has no 'name'; give a str"),
    "no seats": (changed(seats=MISSING), "the adapter Odd has no 'seats'; give a Seats"),
    "seats that are a number": (changed(seats=2), "'seats' of the adapter Odd is 2; give a Seats"),
    "no seats at all": (changed(seats=Seats(0)), "the seats of Odd begin at 0; give 1 or more"),
    "half a seat": (changed(seats=Seats(1.5)), "the seats of Odd begin at 1.5"),  # type: ignore[arg-type]
    "more seats than there are": (changed(seats=Seats(5, 2)), "the seats of Odd are 5 to 2; give 5 or more, or None"),
    "seats without an end": (changed(seats=Seats(2, math.inf)), "the seats of Odd are 2 to inf"),  # type: ignore[arg-type]
    "an order that is a number": (changed(ordered=1), "'ordered' of the adapter Odd is 1; give a bool"),
    "packets that are a word": (changed(packets="no"), "'packets' of the adapter Odd is 'no'; give a bool"),
    "knobs that are a list": (changed(knobs=["a"]), "'knobs' of the adapter Odd is ['a']; give a frozenset"),
    "one expectation": (changed(expectations=Expectation("max_silence", 5)), "give a tuple"),
    "an expectation by name": (
        changed(expectations=("max_silence",)),
        "Odd expects 'max_silence'; give an Expectation",
    ),
    "an unknown expectation": (
        expecting("smile_within", 5),
        "Odd: no expectation is called 'smile_within'; there are:",
    ),
    "an unknown handler": (expecting("max_silence", 5, "panic"), "Odd: no handler is called 'panic'; there are: audit"),
    "seconds below 0": (expecting("max_silence", -5), "Odd: max_silence is given -5.0 seconds"),
    "seconds that are no number": (expecting("max_silence", math.nan), "Odd: max_silence is given nan seconds"),
    "seconds that are text": (expecting("max_silence", "5"), "an expectation of Odd: seconds is str, not float"),
    "a handler that is a list": (expecting("max_silence", 5, ["warn"]), "handler is list, not str"),
    "a name that is an object": (expecting(MISSING, 5), "an expectation of Odd: "),
    "no __init__": (changed(__init__=MISSING), "the adapter Odd needs a method __init__(self, knobs)"),
    "an __init__ of nothing": (changed(__init__=lambda self: None), "needs a method __init__(self, knobs)"),
    "no decide": (changed(decide=MISSING), "the adapter Odd needs a method decide(self, memory, state, envelope)"),
    "a decide that is none": (changed(decide="later"), "needs a method decide(self, memory, state, envelope)"),
    "a decide of two": (
        changed(decide=lambda self, state, envelope: Wait()),
        "needs a method decide(self, memory, state,",
    ),
    "a static decide of two": (
        changed(decide=staticmethod(lambda state, envelope: Wait())),
        "needs a method decide(self,",
    ),
    "an evolve of one": (changed(evolve=lambda self, envelope: {}), "needs a method evolve(self, memory, envelope)"),
    "a memory that is not used": (changed(evolve=MISSING), "needs a method evolve(self, memory, envelope)"),
    "an evolve without a memory": (changed(memory=MISSING), "Odd has evolve but no memory"),
    "a memory that is a value": (changed(memory={}), "the memory of Odd is {}; give a type"),
    "a memory that needs something": (changed(memory=Needy), "the memory of Odd is <class"),
}


@pytest.mark.parametrize(("adapter", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_when_it_is_registered(adapter: type[Sound], complaint: str) -> None:
    with pytest.raises(RulesInvalid, match=re.escape(complaint)):
        register_adapter(adapter)
    assert "test-sound" not in catalogue._registered_adapters


@pytest.mark.parametrize(("adapter", "complaint"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_named_when_it_is_checked(adapter: type[Sound], complaint: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(complaint)):
        check_adapter(adapter)


def decide_with_more(
    self: object, memory: object, state: State, envelope: Envelope, *, aloud: bool = False
) -> Decision:
    return Wait()


SOUND: dict[str, Callable[[], type[Sound]]] = {
    "as it is": lambda: Sound,
    "without a memory": lambda: changed(memory=MISSING, evolve=MISSING),
    "with a static decide": lambda: changed(decide=staticmethod(lambda memory, state, envelope: Wait())),
    "with more that may be said": lambda: changed(decide=decide_with_more),
    "with anything": lambda: changed(__init__=lambda self, *given: None, decide=lambda *given: Wait()),
}


@pytest.mark.parametrize("adapter", SOUND.values(), ids=SOUND)
def test_what_is_sound_passes(adapter: Callable[[], type[Sound]]) -> None:
    found = adapter()
    check_adapter(found)
    try:
        assert register_adapter(found) is found
    finally:
        catalogue._registered_adapters.pop("test-sound", None)


class Failing(Sound):
    def decide(self, memory: dict[str, int], state: State, envelope: Envelope) -> Decision:
        raise ZeroDivisionError("as ever")


class Choosy(Sound):
    def __init__(self, knobs: dict[str, object]) -> None:
        raise RulesInvalid("choices is None; give a list")


@pytest.mark.parametrize(
    ("adapter", "complaint"),
    [
        (Failing, "the adapter test-sound raised ZeroDivisionError: as ever"),
        (Choosy, "the adapter test-sound raised RulesInvalid: choices is None; give a list"),
    ],
)
def test_an_adapter_that_raises_fails_its_check(adapter: type[Sound], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_adapter(adapter)
