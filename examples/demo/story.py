"""Who says what in the demonstration: one evening at a small newspaper."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """Something a participant says when it is their turn."""

    speaker: str
    text: str


EDITOR, REPORTER, CHECKER = "mara", "otto", "june"
KEEPER, WIRE, CLERK = "finn", "telex", "vera"
PEOPLE = (EDITOR, REPORTER, CHECKER, KEEPER, WIRE)
EVERYBODY = (*PEOPLE, CLERK)
BANK = "bank"

BEFORE = (
    Line(EDITOR, "The front page closes at six. What have we got?"),
    Line(REPORTER, "A goose has taken the toll bridge. Nobody crosses."),
    Line(CHECKER, "One goose? My caller said a gang."),
    Line(EDITOR, "Then ask the bridge keeper. Otto, a headline."),
    Line(REPORTER, "BRIDGE OVER TROUBLED WATERFOWL."),
)
QUESTION = Line(CHECKER, "Finn, how many geese are holding your bridge?")
ERRAND = Line(EDITOR, "Vera, pay June's caller for the tip. Only once, this time.")
OUT_OF_TURN = Line(REPORTER, "While we wait: FOWL PLAY AT TOLL BRIDGE!")
ANSWER = Line(KEEPER, "One. But it has conviction.")
AFTER = (
    Line(CHECKER, "Confirmed: a single goose, with conviction."),
    Line(EDITOR, "Print it. First headline. Good night, all."),
)
REASON = "front page agreed"

COUNTER, ADVERTISER, CALLER = "nell", "gus", "you"
AD = "advertisement"
AT_THE_COUNTER = (
    "Good evening. Is there a paper left?",
    "And an advertisement, please: one goose, free to a good home.",
)
BY_LETTER = "How much if it runs for two days?"
COUNTER_SAYS = "One copy, slightly pecked. Anything else?"

TIP, PAYEE, SHILLINGS, RECEIPT = "a gang of geese", "Mrs Plum", 12, "Mrs Plum's receipt"
PAID = "Mrs Plum has her twelve shillings. Once."

NEWS = (
    "fog, followed by more fog",
    "mayor denies owning a goose",
    "bread prices rise; bakers blame yeast",
    "ferry late, then early, then late",
    "brass band practises again, neighbours move",
)
WIRE_EVENT = "gazette.wire"


def wire_item(number: int) -> str:
    """What the wire says in its item of this number."""
    return NEWS[number % len(NEWS)]


def wire_id(number: int) -> str:
    """The message id of an item, the same whenever it is sent."""
    return f"wire-{number}"
