"""What is said to the team that is killed, who answers it by which calls, and in which order they are made.

Every call has a place that no other has: what is answered, the step of the turn, and what is called. A model is told
the place of what it calls for; whoever is asked in somebody else's place says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.crash.outside_world import CENTS, Asked, Body, Script

LEAD, MIDDLE, LEAF, CHECKER = "lead", "middle", "leaf", "checker"
NATURAL = ("look_up", "stock", "notify", "ship", "file")
PAY, LOOK_AROUND, HELP = "pay", "look_around", "request_help"
DOWN, DEEPER, DELEGATE = f"transfer_to_{MIDDLE}", f"transfer_to_{LEAF}", f"delegate_to_{CHECKER}"

MESSAGES = ("Refund it.", "And now?", "Once more.", f"@{MIDDLE} Thanks.")
"""What a person says, one after the other, to the lead."""
READ = tuple(message.removeprefix(f"@{MIDDLE} ") for message in MESSAGES)
"""The same as agents read it: without the mention."""
TASKS = {"Refund it.": "Check the refund.", "Once more.": "Check it again."}
"""What the checker is given to do, by what is being answered."""
CHECKING = ((CHECKER, ("look_up", "stock")), (CHECKER, (PAY,)), (CHECKER, ()))

SCRIPT: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Refund it.": (
        (LEAD, ("look_up", DOWN)),
        (MIDDLE, ("notify", DEEPER)),
        (LEAF, (PAY,)),
        (LEAF, (DELEGATE,)),
        (LEAF, ("file", HELP)),
        (MIDDLE, ("stock",)),
        (MIDDLE, ()),
    ),
    "And now?": (
        (MIDDLE, ("look_up", HELP)),
        (LEAD, ("ship", DOWN)),
        (MIDDLE, (DEEPER,)),
        (LEAF, ("file",)),
        (LEAF, ()),
    ),
    "Once more.": ((LEAF, (PAY, "stock")), (LEAF, (DELEGATE,)), (LEAF, ())),
    "Thanks.": ((MIDDLE, ("notify",)), (MIDDLE, ())),
    **dict.fromkeys(TASKS.values(), CHECKING),
}
"""Who is asked step by step, and which tools it calls for; none if it answers."""
ACTIVE = {LEAD: f"{LEAD}/{MIDDLE}"}
"""Who answers in the end."""
USAGE = (7, 3)
"""What every answer of a model takes."""


def rounds(said: str) -> Iterator[list[str]]:
    """The calls of a turn that reach the world, together those that are made at once, and those of its tasks."""
    before = ""
    for step, (who, tools) in enumerate(SCRIPT[said]):
        if who == MIDDLE != before:
            yield [f"{said}/{step}/{LOOK_AROUND}"]
        yield [f"{said}/{step}/model"]
        outside = [f"{said}/{step}/{tool}" for tool in tools if tool in (*NATURAL, PAY)]
        if outside:
            yield outside
        if DELEGATE in tools:
            yield from rounds(TASKS[said])
        before = who


ROUND = {
    place: number
    for number, places in enumerate(each for message in READ for each in rounds(message))
    for place in places
}
"""Which calls are made together: who makes one of a later round has seen what all of the earlier ones came to."""
PAYMENTS = sum(place.endswith(f"/{PAY}") for place in ROUND)
AT_ONCE = max(Counter(ROUND.values()).values())
"""How many calls can be in flight."""


def reply_to(said: str) -> list[object]:
    """What comes of a message: the answer, who gave it, what stopped it, and what all models took for it."""
    who, asked = SCRIPT[said][-1][0], sum(place.endswith("/model") for places in rounds(said) for place in places)
    return [f"{who} is done with: {said}", who, None, asked * USAGE[0], asked * USAGE[1]]


REPLIES = [reply_to(message) for message in READ]


def _reads(place: str, body: Body, key: str) -> Asked:
    return Asked(body["run"], body["place"], body, key)


def _answers(asked: Asked, serial: int) -> Body:
    said, step, what = asked.name.rsplit("/", 2)
    if what != "model":
        return {"text": f"{what} is done"}
    who, tools = SCRIPT[said][int(step)]
    if asked.body["who"] != who:
        return {"text": f"{asked.body['who']} was asked instead of {who}", "calls": []}
    calls = [[tool, _arguments(tool, asked, serial)] for tool in tools]
    return {"text": "" if calls else f"{who} is done with: {said}", "calls": calls}


def _arguments(tool: str, asked: Asked, serial: int) -> Body:
    """What a model gives to a tool, never in the same words."""
    said, words = asked.name.rsplit("/", 2)[0], f"{tool}, as request {serial} puts it"
    if tool == DELEGATE:
        return {"task": TASKS[said]}
    if tool in (HELP, DOWN, DEEPER):
        return {"reason": words}
    place = asked.name.removesuffix("model") + tool
    if tool == PAY:
        return {"place": place, "order": asked.run, "cents": CENTS, "memo": words}
    return {"place": place, "note": words}


TEAM = Script(_reads, _answers)
"""The turns of a team on one thread."""
