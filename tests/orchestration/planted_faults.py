"""Faults planted into sound graphs: one at a time, with the finding that must name it.

Each is a pair of cases that differ in one thing. The faulty one must be found out, by this code and at this level; the
sound one must give no finding at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon import (
    AgentsTarget,
    AgentTarget,
    Always,
    AnyOf,
    ContextEquals,
    ContextIn,
    ContextThreshold,
    Finding,
    FromSpeaker,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    TerminateTarget,
    ToolCalled,
    Transition,
    TransitionGraph,
)
from antiphon.core.conditions import TransitionCondition
from antiphon.core.targets import TransitionTarget

END = TerminateTarget("done")
HIGH, LOW = ContextThreshold("score", ">=", 8), ContextThreshold("score", "<", 8)


def by(*names: str) -> TransitionCondition:
    """Said by one of these."""
    return FromSpeaker(names[0]) if len(names) == 1 else AnyOf([FromSpeaker(name) for name in names])


def to(*names: str) -> TransitionTarget:
    """To this one, or to these at once."""
    return AgentTarget(names[0]) if len(names) == 1 else AgentsTarget(names)


def has(key: str, value: object) -> ContextEquals:
    return ContextEquals(key, value)


Row = tuple[TransitionCondition, TransitionTarget] | tuple[TransitionCondition, TransitionTarget, int]


def table(first: str, *rows: Row, otherwise: TransitionTarget = END, max_turns: int | None = None) -> TransitionGraph:
    """A graph, written down as it is read."""
    return TransitionGraph(first, [Transition(*row) for row in rows], otherwise, max_turns)


@dataclass(frozen=True)
class Case:
    """A graph among those it is checked for."""

    graph: TransitionGraph
    people: Sequence[str] | Mapping[str, str]
    writers: Mapping[str, Sequence[str]] | None = None
    tier: str | None = None

    def check(self) -> list[Finding]:
        return self.graph.check(self.people, writers=self.writers, tier=self.tier)


@dataclass(frozen=True)
class Fault:
    """What is wrong, with which words it must be told, and what it looks like without the fault."""

    name: str
    code: str
    says: str
    sound: Case
    faulty: Case
    level: str = "warning"
    trace: str = field(default="")
    """For a loop: the shortest way into it and once around."""


def fault(name: str, code: str, says: str, **cases: object) -> Fault:
    """A fault in the words of one line: `sound` and `faulty` are graphs, `people` are in both."""
    sound, faulty, people = cases.pop("sound"), cases.pop("faulty"), cases.pop("people")
    assert isinstance(sound, TransitionGraph)
    assert isinstance(faulty, TransitionGraph)
    assert isinstance(people, tuple | dict)
    return Fault(name, code, says, Case(sound, people), Case(faulty, people), **cases)  # type: ignore[arg-type]


# Somebody who is not there

ABC = ("ann", "ben", "cleo")
ROUND = table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")))
FAN = table("ann", (by("ann"), to("ben", "cleo")))

STRANGERS = [
    fault(
        "the first speaker is a stranger",
        "unknown_initial_speaker",
        "initial_speaker is 'zoe', who is not a participant; there are: ann, ben, cleo",
        level="error",
        people=ABC,
        sound=ROUND,
        faulty=table("zoe", (by("ann"), to("ben")), (by("ben"), to("cleo"))),
    ),
    fault(
        "a target is a stranger",
        "unknown_target",
        "transition 1 gives the turn to 'zoe', who is not a participant",
        level="error",
        people=ABC,
        sound=ROUND,
        faulty=table("ann", (by("ann"), to("ben")), (by("ben"), to("zoe"))),
    ),
    fault(
        "one of a group is a stranger",
        "unknown_target",
        "transition 0 gives the turn to 'zoe'",
        level="error",
        people=ABC,
        sound=FAN,
        faulty=table("ann", (by("ann"), to("ben", "zoe", "cleo"))),
    ),
    fault(
        "the default target is a stranger",
        "unknown_target",
        "default_target gives the turn to 'zoe'",
        level="error",
        people=("ann", "ben"),
        sound=table("ann", (by("ben"), END), otherwise=to("ben")),
        faulty=table("ann", (by("ben"), END), otherwise=to("zoe")),
    ),
    fault(
        "one of the default group is a stranger",
        "unknown_target",
        "default_target gives the turn to 'zoe'",
        level="error",
        people=ABC,
        sound=table("ann", (by("ben", "cleo"), END), otherwise=to("ben", "cleo")),
        faulty=table("ann", (by("ben", "cleo"), END), otherwise=to("ben", "cleo", "zoe")),
    ),
]

# Rules that can never fire

DESK = ("triage", "oncall", "review")


def core(*before: Row) -> TransitionGraph:
    """Triage sends what is urgent to oncall and the rest to review; these rules come first."""
    rules: list[Row] = [(by("triage") & has("urgent", True), to("oncall")), (by("triage"), to("review"))]
    return table("triage", *before, *rules, otherwise=TerminateTarget("handled"))


def dead(name: str, why: str, *, sound: Row, faulty: Row, people: Sequence[str] = DESK) -> Fault:
    """A first rule of the core that is fine, and one that can never match."""
    return fault(name, "dead_rule", why, people=people, sound=core(sound), faulty=core(faulty))


OVER = TerminateTarget("over")
NEVER = "transition 0 ({}) can never fire: its condition never holds"
CHAIN = ((by("ann"), to("ben")), (by("ben"), to("cleo")))

SHADOWED = [
    fault(
        "behind a rule that always matches",
        "dead_rule",
        "transition 1 (from triage) can never fire: transition 0 always matches first",
        people=("triage", "review"),
        sound=table("triage", (by("review"), END), (by("triage"), to("review"))),
        faulty=table("triage", (Always(), to("review")), (by("triage"), to("review"))),
    ),
    fault(
        "behind an equal rule",
        "dead_rule",
        "transition 1 (from ann) can never fire: transition 0 always matches first",
        people=ABC,
        sound=table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo"))),
        faulty=table("ann", (by("ann"), to("ben")), (by("ann"), to("cleo")), (by("ben"), to("cleo"))),
    ),
    fault(
        "behind a rule that stands later and is read before",
        "dead_rule",
        "transition 0 (from ann and score >= 8) can never fire: transition 1 always matches first",
        people=("ann", "ben"),
        sound=table("ann", (by("ann") & HIGH, END), (by("ann"), to("ben"))),
        faulty=table("ann", (by("ann") & HIGH, END), (by("ann"), to("ben"), -1)),
    ),
    fault(
        "behind a rule that asks less of the same variable",
        "dead_rule",
        'transition 1 (from ann and mood = "bad") can never fire: transition 0 always matches first',
        people=ABC,
        sound=table("ann", (by("ann") & has("mood", "bad"), to("cleo")), (by("ann"), to("ben"))),
        faulty=table(
            "ann",
            (by("ann") & ContextIn("mood", ["bad", "worse"]), to("ben")),
            (by("ann") & has("mood", "bad"), to("cleo")),
            (by("ben"), to("cleo")),
        ),
    ),
    fault(
        "behind a lower threshold",
        "dead_rule",
        "transition 1 (score >= 8) can never fire: transition 0 always matches first",
        people=ABC,
        sound=table("ann", (HIGH, END), (ContextThreshold("score", ">=", 5), END), *CHAIN),
        faulty=table("ann", (ContextThreshold("score", ">=", 5), END), (HIGH, END), *CHAIN),
    ),
    fault(
        "behind two rules that leave nothing between them",
        "dead_rule",
        "transition 2 (from ann) can never fire: transition",
        people=ABC,
        sound=table("ann", (by("ann") & has("ok", True), to("ben")), (by("ann"), to("cleo"))),
        faulty=table(
            "ann",
            (by("ann") & has("ok", True), to("ben")),
            (by("ann") & ~has("ok", True), to("cleo")),
            (by("ann"), END),
        ),
    ),
    fault(
        "behind a tool that was named in the rule before",
        "dead_rule",
        "transition 1 (from ann and stop called) can never fire: transition 0 always matches first",
        people=("ann", "ben"),
        sound=table("ann", (by("ann") & ToolCalled("stop"), END), (by("ann"), to("ben"))),
        faulty=table("ann", (ToolCalled("stop"), END), (by("ann") & ToolCalled("stop"), END), (by("ann"), to("ben"))),
    ),
]

IMPOSSIBLE = [
    dead(
        "two speakers at once",
        "transition 0 (from triage and from oncall) can never fire: nobody is two speakers at once",
        sound=(by("triage") & has("stop", True), OVER),
        faulty=(by("triage") & by("oncall"), OVER),
    ),
    dead(
        "a stranger who speaks",
        "transition 0 (from zoe) can never fire: 'zoe' is not a participant",
        sound=(by("oncall"), OVER),
        faulty=(by("zoe"), OVER),
    ),
    dead(
        "two values of one variable",
        NEVER.format('mood = "good" and mood = "bad"'),
        sound=(has("mood", "good") & has("tone", "bad"), OVER),
        faulty=(has("mood", "good") & has("mood", "bad"), OVER),
    ),
    dead(
        "a value that is not among those allowed",
        NEVER.format('mood = "good" and mood in ["bad","worse"]'),
        sound=(has("mood", "bad") & ContextIn("mood", ["bad", "worse"]), OVER),
        faulty=(has("mood", "good") & ContextIn("mood", ["bad", "worse"]), OVER),
    ),
    dead(
        "a number above eight and below three",
        NEVER.format("score > 8 and score < 3"),
        sound=(ContextThreshold("score", ">", 3) & ContextThreshold("score", "<", 8), OVER),
        faulty=(ContextThreshold("score", ">", 8) & ContextThreshold("score", "<", 3), OVER),
    ),
    dead(
        "a text that is a number",
        NEVER.format('score = "8" and score >= 8'),
        sound=(has("score", 8) & HIGH, OVER),
        faulty=(has("score", "8") & HIGH, OVER),
    ),
    dead(
        "true as a number",
        NEVER.format("score = true and score >= 0"),
        sound=(has("score", 1) & ContextThreshold("score", ">=", 0), OVER),
        faulty=(has("score", True) & ContextThreshold("score", ">=", 0), OVER),
    ),
    dead(
        "unset and set at once",
        NEVER.format("urgent unset and urgent = true"),
        sound=(has("urgent", None) & has("calm", True), OVER),
        faulty=(has("urgent", None) & has("urgent", True), OVER),
    ),
    dead(
        "two tools at once",
        NEVER.format("stop called and go called"),
        sound=(ToolCalled("stop") | ToolCalled("go"), OVER),
        faulty=(ToolCalled("stop") & ToolCalled("go"), OVER),
    ),
    dead(
        "not always",
        NEVER.format("not always"),
        sound=(Not(by("triage")), OVER),
        faulty=(Not(Always()), OVER),
    ),
    dead(
        "nobody of all there are",
        NEVER.format("not (from triage or from oncall or from review)"),
        sound=(Not(by("triage", "oncall")), OVER),
        faulty=(Not(by("triage", "oncall", "review")), OVER),
    ),
    dead(
        "not (this or not this)",
        NEVER.format("not (urgent = true or not urgent = true)"),
        sound=(Not(has("urgent", True) | by("triage")), OVER),
        faulty=(Not(has("urgent", True) | ~has("urgent", True)), OVER),
    ),
    dead(
        "once and not once",
        NEVER.format("once always and not once always"),
        sound=(Once(Always()) & by("review"), to("oncall")),
        faulty=(Once(Always()) & Not(Once(Always())), to("oncall")),
    ),
]

# Those who are never asked

UNREACHED = [
    fault(
        "nobody sends anything there",
        "unreachable_participant",
        "gives 'cleo' the turn",
        people=ABC,
        sound=ROUND,
        faulty=table("ann", (by("ann"), to("ben")), (by("ben"), END)),
    ),
    fault(
        "the only rule that leads there is dead",
        "unreachable_participant",
        "gives 'cleo' the turn",
        people=ABC,
        sound=table("ann", (by("ann") & has("k", 1), to("cleo")), (by("ann"), to("ben"))),
        faulty=table("ann", (by("ann") & has("k", 1) & has("k", 2), to("cleo")), (by("ann"), to("ben"))),
    ),
    fault(
        "the round was cut short",
        "unreachable_participant",
        "gives 'cleo' the turn",
        people=ABC,
        sound=table("ann", (HIGH, END), otherwise=RoundRobinTarget()),
        faulty=table("ann", (HIGH, END), (by("ann"), to("ben")), otherwise=RevertToInitiatorTarget()),
    ),
    Fault(
        "an agent who only listens",
        "unreachable_participant",
        "gives 'cleo' the turn",
        Case(table("ann", (by("ann"), to("ben"))), {"ann": "agent", "ben": "agent", "cleo": "human"}),
        Case(table("ann", (by("ann"), to("ben"))), {"ann": "agent", "ben": "agent", "cleo": "agent"}),
    ),
    fault(
        "a rule for somebody who never speaks",
        "dead_rule",
        "transition 1 (from cleo) can never fire: no rule gives cleo the turn",
        people=ABC,
        sound=table("ann", (by("ann"), to("cleo")), (by("cleo"), to("ben"))),
        faulty=table("ann", (by("ann"), to("ben")), (by("cleo"), to("ben"))),
    ),
]
