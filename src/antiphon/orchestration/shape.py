"""What a class must be like to be the adapter of a channel type.

Rule 1: a mistake in the class is found when it is registered, not in the first channel that is opened.
Rule 2: a complaint names the adapter, what is wrong with it, and what to give instead.
"""

from __future__ import annotations

import inspect

from antiphon.core.codec import Malformed, as_type
from antiphon.core.errors import RulesInvalid
from antiphon.core.events import data_of
from antiphon.core.rules import Adapter, Expectation, Seats
from antiphon.core.words import plainly, shown
from antiphon.orchestration.expectations import known

ATTRIBUTES = {"name": str, "seats": Seats, "ordered": bool, "knobs": frozenset, "expectations": tuple}
METHODS = {"decide": ("memory", "state", "envelope"), "evolve": ("memory", "envelope")}


def check_shape(adapter: type[Adapter]) -> None:
    """`RulesInvalid` if no channel could follow this adapter."""
    if not isinstance(adapter, type):
        raise RulesInvalid(f"{shown(adapter)} is no class; give the class itself, not an instance of it")
    for attribute, kind in ATTRIBUTES.items():
        _check_attribute(adapter, attribute, kind)
    if hasattr(adapter, "packets"):
        _check_attribute(adapter, "packets", bool)
    _check_seats(adapter)
    _check_expectations(adapter)
    if not _takes(adapter, 1):
        raise RulesInvalid(f"the adapter {adapter.__name__} needs a method __init__(self, knobs)")
    _check_method(adapter, "decide")
    _check_memory(adapter)


def _check_attribute(adapter: type[Adapter], attribute: str, kind: type) -> None:
    given = getattr(adapter, attribute, None)
    if given is None:
        raise RulesInvalid(f"the adapter {adapter.__name__} has no {attribute!r}; give a {kind.__name__}")
    if not isinstance(given, kind):
        raise RulesInvalid(f"{attribute!r} of the adapter {adapter.__name__} is {shown(given)}; give a {kind.__name__}")


def _check_seats(adapter: type[Adapter]) -> None:
    least, most = adapter.seats.least, adapter.seats.most
    if type(least) is not int or least < 1:
        raise RulesInvalid(f"the seats of {adapter.__name__} begin at {shown(least)}; give 1 or more, for the creator")
    if most is not None and (type(most) is not int or most < least):
        wanted = f"give {least} or more, or None for no limit"
        raise RulesInvalid(f"the seats of {adapter.__name__} are {least} to {shown(most)}; {wanted}")


def _check_expectations(adapter: type[Adapter]) -> None:
    for each in adapter.expectations:
        if not isinstance(each, Expectation):
            raise RulesInvalid(f"the adapter {adapter.__name__} expects {shown(each)}; give an Expectation")
        try:
            known(as_type(data_of(each), Expectation))
        except (Malformed, RulesInvalid, TypeError) as error:
            raise RulesInvalid(f"an expectation of {adapter.__name__}: {plainly(str(error))}") from error


def _check_memory(adapter: type[Adapter]) -> None:
    """A memory without `evolve`, or the other way round, would never be asked."""
    memory, evolve = getattr(adapter, "memory", None), getattr(adapter, "evolve", None)
    if memory is None and evolve is None:
        return
    if memory is None:
        raise RulesInvalid(f"the adapter {adapter.__name__} has evolve but no memory; give the type of its memory")
    if not isinstance(memory, type) or not _takes(memory, 0):
        raise RulesInvalid(f"the memory of {adapter.__name__} is {shown(memory)}; give a type that memory() makes")
    _check_method(adapter, "evolve")


def _check_method(adapter: type[Adapter], name: str) -> None:
    arguments = METHODS[name]
    unbound = not isinstance(inspect.getattr_static(adapter, name, None), staticmethod | classmethod)
    if not _takes(getattr(adapter, name, None), len(arguments) + unbound):
        raise RulesInvalid(f"the adapter {adapter.__name__} needs a method {name}(self, {', '.join(arguments)})")


def _takes(call: object, count: int) -> bool:
    """Whether it can be called with so many arguments, as far as that can be known."""
    if not callable(call):
        return False
    try:
        inspect.signature(call).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # something built in, which does not tell
        pass
    return True
