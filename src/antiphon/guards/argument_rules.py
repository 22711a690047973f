"""Rules on the arguments of tool calls, as data: from which argument values on a call is denied, or needs approval.

Rule 1: comparisons are typed as JSON is: `true` is not 1, "1" is not 1, and 1 is 1.0.
Rule 2: what cannot be compared is denied: an argument that is missing, or one that is no number where a rule wants one.
Rule 3: a limit that is a whole number, as amounts of money are, is compared with whole numbers alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from antiphon.core.codec import Malformed, check_json
from antiphon.core.conditions import is_number, values_equal
from antiphon.core.envelope import Json
from antiphon.core.errors import RulesInvalid
from antiphon.core.text import describe

RuleHit = Literal["", "holds", "missing", "not_comparable"]
ORDERINGS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
RULE_OPERATORS = ("==", "!=", *ORDERINGS, "in", "not in")
MISSING = object()


class ArgumentRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """What follows if an argument of a tool compares like this: `{"tool", "arg", "op", "value", "then"}`."""

    tool: str
    arg: str
    """Its name; `order.total` for a field inside of an object."""
    op: str
    value: object
    then: Literal["deny", "ask"] = "deny"
    approvers: tuple[str, ...] = ()
    """The people and roles that may approve; empty for those that the channel allows."""
    roles: tuple[str, ...] = ()
    """The agents and roles that it concerns; empty for all."""
    name: str = ""
    """What is recorded when it denies; "" for the tool with its argument, such as `refund.cents`."""

    def __post_init__(self) -> None:
        if not self.tool or not self.arg:
            raise RulesInvalid(f"a rule of policy is about tool {self.tool!r}, arg {self.arg!r}; name both")
        if self.op not in RULE_OPERATORS:
            known = ", ".join(RULE_OPERATORS)
            raise RulesInvalid(f"op of the rule {self.title!r} is {describe(self.op)}; give one of: {known}")
        try:
            check_json(self.value)
        except Malformed as error:
            raise RulesInvalid(f"value of the rule {self.title!r} is {describe(self.value)}: {error}") from error
        if self.op in ORDERINGS and not is_number(self.value):
            raise RulesInvalid(f"value of the rule {self.title!r} is {describe(self.value)}; {self.op} wants a number")
        if self.op.endswith("in") and not isinstance(self.value, list):
            raise RulesInvalid(f"value of the rule {self.title!r} is {describe(self.value)}; {self.op} wants a list")
        if self.then == "deny" and self.approvers:
            raise RulesInvalid(f"the rule {self.title!r} denies, and has approvers; give then='ask'")

    @property
    def title(self) -> str:
        """What it is called where it is recorded."""
        return self.name or f"{self.tool}.{self.arg}"

    def concerns(self, tool: str, names: Sequence[str]) -> bool:
        """Whether it is about this tool, called by an agent with these names: its own, and its roles."""
        if tool != self.tool:
            return False
        if not self.roles:
            return True
        named = {name.casefold() for name in names}  # agents are the same in upper and lower case
        return any(role.casefold() in named for role in self.roles)

    def hit(self, args: Json) -> RuleHit:
        """Whether it holds, or why that cannot be said; "" if it does not hold."""
        given = _value_at(args, self.arg)
        if given is MISSING:
            return "missing"
        if self.op not in ORDERINGS:
            return "holds" if self._matches(given) else ""
        limit = self.value
        if not is_number(given) or not is_number(limit) or (isinstance(limit, int) and not _is_whole(given)):
            return "not_comparable"
        return "holds" if ORDERINGS[self.op](given, limit) else ""

    def _matches(self, given: object) -> bool:
        if self.op.endswith("in"):
            assert isinstance(self.value, list)
            return any(values_equal(given, each) for each in self.value) == (self.op == "in")
        return values_equal(given, self.value) == (self.op == "==")


def _value_at(args: Json, path: str) -> object:
    """The argument of this name, or the field that the path leads to. If there are both, neither is trusted."""
    found: object = args
    for step in path.split("."):
        found = found.get(step, MISSING) if isinstance(found, dict) else MISSING
    if "." not in path or path not in args:
        return found
    return args[path] if found is MISSING else MISSING


def _is_whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()
