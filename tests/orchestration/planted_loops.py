"""Planted faults of a graph as a whole: it cannot end, goes round and round, ends too late, or leaves it to chance.

In a loop that sticks every twin differs from its fault by one of the cures: `Once`, a rule that ends before it, or a
value that a rule waits for.
"""

from __future__ import annotations

from antiphon import (
    ContextIn,
    ContextThreshold,
    Not,
    Once,
    RevertToInitiatorTarget,
    RoundRobinTarget,
    StayTarget,
    TerminateTarget,
    ToolCalled,
    TransitionGraph,
)
from tests.orchestration.planted_faults import ABC, END, HIGH, LOW, Case, Fault, Row, by, fault, has, table, to

# No rule ends the channel

AGAIN = StayTarget()
FOUR = ("ann", "ben", "cleo", "dan")

ENDLESS = [
    fault(
        "nothing ends it",
        "no_way_to_end",
        "no rule ends the channel: only Finish, closing it, or its time to live does",
        people=("ann", "ben"),
        sound=table("ann", (by("ann"), to("ben")), (by("ben") & HIGH, END), otherwise=to("ann")),
        faulty=table("ann", (by("ann"), to("ben")), otherwise=to("ann")),
    ),
    fault(
        "only the cap ends it",
        "no_way_to_end",
        "no rule ends the channel: only Finish, or max_turns after 9, does",
        people=("ann", "ben"),
        sound=table("ann", (HIGH, END), otherwise=RoundRobinTarget(), max_turns=9),
        faulty=table("ann", otherwise=RoundRobinTarget(), max_turns=9),
    ),
    fault(
        "the rule that ends it is never read",
        "no_way_to_end",
        "no rule ends the channel",
        people=("ann", "ben"),
        sound=table("ann", (by("ann"), to("ben")), (by("ben"), END), otherwise=to("ann")),
        faulty=table("ann", (by("ann"), to("ben")), (by("ben"), to("ann")), otherwise=END),
    ),
    fault(
        "only somebody who was not asked ends it",
        "no_way_to_end",
        "no rule ends the channel: only a word that hugo puts in does",
        people={"ann": "agent", "ben": "agent", "hugo": "human"},
        sound=table("ann", (by("hugo"), END), (HIGH, END), otherwise=RoundRobinTarget()),
        faulty=table("ann", (by("hugo"), END), (by("ann"), to("ben")), otherwise=to("ann")),
    ),
    fault(
        "only a person who would have to call a tool ends it",
        "no_way_to_end",
        "no rule ends the channel: only Finish, closing it, or its time to live does",
        people={"ann": "agent", "hugo": "human"},
        sound=table("ann", (by("hugo"), END), otherwise=RoundRobinTarget()),
        faulty=table("ann", (by("hugo") & ToolCalled("sign"), END), otherwise=RoundRobinTarget()),
    ),
    fault(
        "two who send it to each other",
        "no_way_to_end",
        "once it has come this far, no rule ends the channel: ann (calls page) → cleo → dan → cleo → …",
        people=FOUR,
        sound=table(
            "ann",
            (by("ann") & ToolCalled("page"), to("cleo")),
            (by("ann"), to("ben")),
            (by("cleo"), to("dan")),
        ),
        faulty=table(
            "ann",
            (by("ann") & ToolCalled("page"), to("cleo")),
            (by("ann"), to("ben")),
            (by("cleo"), to("dan")),
            (by("dan"), to("cleo")),
        ),
    ),
    fault(
        "one who keeps it",
        "no_way_to_end",
        "once it has come this far, no rule ends the channel: ann (calls page) → ben → ben → …",
        people=("ann", "ben"),
        sound=table("ann", (by("ann") & ToolCalled("page"), to("ben"))),
        faulty=table("ann", (by("ann") & ToolCalled("page"), to("ben")), (by("ben"), AGAIN)),
    ),
    fault(
        "nothing is left when a rule has fired once",
        "no_way_to_end",
        "once it has come this far, no rule ends the channel: ann → ben → ann → ann → …",
        people=("ann", "ben"),
        sound=table("ann", (Once(by("ann")), to("ben")), (by("ben"), to("ann")), otherwise=END),
        faulty=table(
            "ann", (Once(by("ann")), to("ben")), (by("ben") & HIGH, END), (by("ben"), to("ann")), otherwise=AGAIN
        ),
    ),
    fault(
        "a part that is entered when a value is replaced",
        "no_way_to_end",
        "once it has come this far, no rule ends the channel: ann (k = 'x') → ben",
        people=ABC,
        sound=table(
            "ann", (by("ann") & has("k", "x"), to("ben")), (by("ben") & has("k", "x"), END), (by("ben"), to("cleo"))
        ),
        faulty=table(
            "ann",
            (by("ann") & has("k", "x"), to("ben")),
            (by("ben") & has("k", "x"), END),
            (by("ben"), to("cleo")),
            otherwise=AGAIN,
        ),
    ),
    fault(
        "a part that is entered when a value is cleared",
        "no_way_to_end",
        "once it has come this far, no rule ends the channel: ann (k",
        people=ABC,
        sound=table("ann", (~has("k", None) & by("ann"), to("ben")), (by("ben") & has("k", None), to("cleo"))),
        faulty=table(
            "ann",
            (~has("k", None) & by("ann"), to("ben")),
            (by("ben") & has("k", None), to("cleo")),
            (by("ben"), END),
            otherwise=AGAIN,
        ),
    ),
]

# Loops that last as long as the context does

BOTH = ("triage", "security")


def routed(*rules: Row) -> TransitionGraph:
    """Where a variable says where it goes."""
    return table("triage", *rules)


def sticky(name: str, trace: str, *, people: tuple[str, ...], sound: TransitionGraph, faulty: TransitionGraph) -> Fault:
    says = f"the turn goes round for ever while the context stays as it is: {trace}; "
    return fault(name, "sticky_loop", says, people=people, sound=sound, faulty=faulty, trace=trace)


SECURITY = has("route", "security")
SENT = ContextIn("route", ["security", "legal"])
RISK = ContextThreshold("risk", ">", 5)

STICKY = [
    sticky(
        "back to the same speaker, cured by a rule that ends before",
        "triage (route = 'security') → security → security → …",
        people=BOTH,
        sound=routed((by("security"), END), (SECURITY, to("security"))),
        faulty=routed((SECURITY, to("security")), (by("security"), END)),
    ),
    sticky(
        "back to the same speaker, cured by Once",
        "triage (route = 'security') → security → security → …",
        people=BOTH,
        sound=routed((Once(SECURITY), to("security"))),
        faulty=routed((SECURITY, to("security"))),
    ),
    sticky(
        "back to the same speaker, cured by saying who sends",
        "triage (route = 'security') → security → security → …",
        people=BOTH,
        sound=routed((by("triage") & SECURITY, to("security"))),
        faulty=routed(((by("triage") | by("security")) & SECURITY, to("security"))),
    ),
    sticky(
        "staying while a flag is set",
        "ann (busy = True) → ann → ann → …",
        people=("ann", "ben"),
        sound=table("ann", (by("ann") & Once(has("busy", True)), AGAIN), (by("ann"), to("ben"))),
        faulty=table("ann", (by("ann") & has("busy", True), AGAIN), (by("ann"), to("ben"))),
    ),
    sticky(
        "to and fro between two, cured by Once",
        "ann (open = True) → ben → ann → ben → …",
        people=("ann", "ben"),
        sound=table("ann", (by("ben") & Once(has("open", True)), to("ann")), (by("ann"), to("ben"))),
        faulty=table("ann", (by("ben") & has("open", True), to("ann")), (by("ann"), to("ben"))),
    ),
    sticky(
        "to and fro between two, cured by a value that ends it",
        "ann (open = True) → ben → ann → ben → …",
        people=("ann", "ben"),
        sound=table(
            "ann",
            (by("ben") & has("open", True), to("ann")),
            (by("ben") & has("open", False), END),
            (by("ann"), to("ben")),
        ),
        faulty=table("ann", (by("ben") & has("open", True), to("ann")), (by("ann"), to("ben"))),
    ),
    sticky(
        "round three, cured by Once",
        "ann (again = 'yes') → ben → cleo → ann → ben → …",
        people=ABC,
        sound=table(
            "ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo") & Once(has("again", "yes")), to("ann"))
        ),
        faulty=table(
            "ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo") & has("again", "yes"), to("ann"))
        ),
    ),
    sticky(
        "Once in a rule beside the loop cures nothing",
        "ann (again = 'yes') → ben → cleo → ann → ben → …",
        people=ABC,
        sound=table(
            "ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo") & Once(has("again", "yes")), to("ann"))
        ),
        faulty=table(
            "ann",
            (by("ann"), to("ben")),
            (by("ben") & Once(ToolCalled("skip")), to("ann")),
            (by("ben"), to("cleo")),
            (by("cleo") & has("again", "yes"), to("ann")),
        ),
    ),
    sticky(
        "one of several values",
        "triage (route = 'security') → security → security → …",
        people=BOTH,
        sound=routed((Once(SENT), to("security"))),
        faulty=routed((SENT, to("security"))),
    ),
    sticky(
        "one of several values, between two",
        "ann (state = 'draft') → ben → ann → ben → …",
        people=("ann", "ben"),
        sound=table(
            "ann",
            (by("ben") & ContextIn("state", ["draft", "open"]), to("ann")),
            (has("state", "done"), END),
            (by("ann"), to("ben")),
        ),
        faulty=table("ann", (by("ben") & ContextIn("state", ["draft", "open"]), to("ann")), (by("ann"), to("ben"))),
    ),
    sticky(
        "a number above a threshold",
        "triage (risk = 6) → security → security → …",
        people=BOTH,
        sound=routed((Once(RISK), to("security"))),
        faulty=routed((RISK, to("security"))),
    ),
    sticky(
        "a number above a threshold, round three",
        "ann (risk = 6) → ben → cleo → ann → ben → …",
        people=ABC,
        sound=table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo") & Once(RISK), to("ann"))),
        faulty=table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo") & RISK, to("ann"))),
    ),
    sticky(
        "a rule with a lower number is read before the one that ends",
        "triage (route = 'security') → security → security → …",
        people=BOTH,
        sound=routed((by("security"), END), (SECURITY, to("security"), 1)),
        faulty=routed((by("security"), END), (SECURITY, to("security"), -1)),
    ),
    sticky(
        "two ways in, of which the shorter is told",
        "ann (k = 'x') → cleo → cleo → …",
        people=ABC,
        sound=table("ann", (Once(has("k", "x")), to("cleo")), (by("ann"), to("ben")), (by("ben"), to("cleo"))),
        faulty=table(
            "ann", (by("ann") & has("go", 1), to("ben")), (has("k", "x"), to("cleo")), (by("ben"), to("cleo"))
        ),
    ),
]

STICKY_UNTIL_CLEARED = [
    fault(
        "only what is unset ends it",
        "sticky_loop",
        "the turn goes round for ever while the context stays as it is: ann (k",
        people=("ann", "ben"),
        sound=table("ann", (has("k", None), to("ben")), (by("ann"), to("ben"))),
        faulty=table("ann", (by("ann") & has("k", None), to("ben")), (by("ann"), AGAIN)),
    ),
    fault(
        "a loop that is entered when a value is replaced",
        "sticky_loop",
        "the turn goes round for ever while the context stays as it is: ann (k = 'x') → ben",
        people=ABC,
        sound=table(
            "ann", (by("ann") & has("k", "x"), to("ben")), (by("ben") & has("k", "x"), END), (by("ben"), to("cleo"))
        ),
        faulty=table(
            "ann",
            (by("ann") & has("k", "x"), to("ben")),
            (by("ben") & has("k", "x"), END),
            (by("ben"), to("cleo")),
            (by("cleo") & has("k", None), END),
            otherwise=AGAIN,
        ),
    ),
]

# Ends too late, or by chance

TWO_WAYS = ((by("ann") & HIGH, to("cleo")), (by("ann"), to("ben")), (by("ben"), to("cleo")))

GROUP = (by("ann"), to("ben", "cleo"))

LATE = [
    fault(
        "a cap that a group does not fit under",
        "cap_before_end",
        "max_turns is 2, but the shortest way to an end takes 3 turns",
        people=ABC,
        sound=table("ann", GROUP, (by("ben", "cleo"), END), otherwise=to("ann"), max_turns=3),
        faulty=table("ann", GROUP, (by("ben", "cleo"), END), otherwise=to("ann"), max_turns=2),
    ),
    fault(
        "a cap before the end of a sequence",
        "cap_before_end",
        "max_turns is 3, but the shortest way to an end takes 4 turns",
        people=FOUR,
        sound=table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo"), to("dan")), max_turns=4),
        faulty=table("ann", (by("ann"), to("ben")), (by("ben"), to("cleo")), (by("cleo"), to("dan")), max_turns=3),
    ),
    fault(
        "a cap before the shortest of two ways",
        "cap_before_end",
        "max_turns is 1, but the shortest way to an end takes 2 turns",
        people=ABC,
        sound=table(
            "ann", (by("ann") & HIGH, to("cleo")), (by("ann"), to("ben")), (by("ben"), to("cleo")), max_turns=2
        ),
        faulty=table(
            "ann", (by("ann") & HIGH, to("cleo")), (by("ann"), to("ben")), (by("ben"), to("cleo")), max_turns=1
        ),
    ),
]


RACES = [
    fault(
        "a rule for each of a group",
        "order_matters",
        "after ben, cleo at once, it depends on who answers last who comes next",
        people=FOUR,
        sound=table("ann", GROUP, (by("ben", "cleo"), to("dan"))),
        faulty=table("ann", GROUP, (by("ben"), to("dan")), (by("cleo"), END)),
    ),
    fault(
        "the same speaker after a group",
        "order_matters",
        "after ben, cleo at once",
        people=ABC,
        sound=table("ann", GROUP, (by("ben", "cleo") & HIGH, END), otherwise=to("ann")),
        faulty=table("ann", GROUP, (by("ben", "cleo") & HIGH, END), (by("ben", "cleo"), AGAIN), otherwise=to("ann")),
    ),
    fault(
        "the next in the round after a group",
        "order_matters",
        "after ben, cleo at once",
        people=ABC,
        sound=table("ann", GROUP, (HIGH, END), otherwise=RevertToInitiatorTarget()),
        faulty=table("ann", GROUP, (HIGH, END), otherwise=RoundRobinTarget()),
    ),
    fault(
        "a rule for one of a group, while a flag is set",
        "order_matters",
        "after ben, cleo at once",
        people=FOUR,
        sound=table("ann", GROUP, (Not(by("ann", "dan")) & has("veto", True), to("dan"))),
        faulty=table("ann", GROUP, (by("ben") & has("veto", True), to("dan"))),
    ),
]

# Keys that anybody may write


def keyed(name: str, key: str, *, graph: TransitionGraph, tier: str | None = None) -> Fault:
    """The graph with the writers of its key named, and without."""
    level = "error" if tier == "regulated" else "warning"
    says = f"anybody may write {key!r}, by which the turn is routed; name its writers in the knob 'writers'"
    named = {"urgent": ["ann"], "score": ["ann"]}
    left = {other: names for other, names in named.items() if other != key}
    people = ("ann", "ben")
    return Fault(
        name, "key_without_writers", says, Case(graph, people, named, tier), Case(graph, people, left, tier), level
    )


FLAGGED = table("ann", (by("ann") & has("urgent", True), to("ben")))
SCORED = table("ann", (HIGH, END), otherwise=RoundRobinTarget())
KEYS = [
    keyed("a flag", "urgent", graph=FLAGGED),
    keyed("a flag, in the batch tier", "urgent", graph=FLAGGED, tier="batch"),
    keyed("a flag, in the regulated tier", "urgent", graph=FLAGGED, tier="regulated"),
    keyed("a threshold, deep inside", "score", graph=table("ann", (Not(Once(LOW | by("ben"))) & by("ann"), to("ben")))),
    keyed("one of two", "score", graph=table("ann", (HIGH & has("urgent", True) & by("ann"), to("ben")))),
    Fault(
        "a key that nobody may write",
        "dead_rule",
        "transition 0 (from ann and urgent = true) can never fire: its condition never holds",
        Case(FLAGGED, ("ann", "ben"), {"urgent": ["ann"]}),
        Case(FLAGGED, ("ann", "ben"), {"urgent": []}),
    ),
    Fault(
        "a key that nobody may write, on the way to the end",
        "no_way_to_end",
        "no rule ends the channel",
        Case(
            table("ann", (HIGH, TerminateTarget("good")), otherwise=RoundRobinTarget()),
            ("ann", "ben"),
            {"score": ["ben"]},
        ),
        Case(
            table("ann", (HIGH, TerminateTarget("good")), otherwise=RoundRobinTarget()), ("ann", "ben"), {"score": []}
        ),
    ),
]
