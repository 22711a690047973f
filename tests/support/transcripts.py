"""Transcripts of teams at work: healthy ones, in which nothing may trip, and sick ones, with what trips where."""

from __future__ import annotations

import json
from itertools import chain

Line = dict[str, object]
Script = list[Line]


def said(speaker: str, text: str, **more: object) -> Line:
    return {"speaker": speaker, "text": text, **more}


def called(speaker: str, tool: str, args: dict[str, object] | None = None, **more: object) -> Line:
    return {"speaker": speaker, "tool": tool, "args": args or {}, **more}


def steers(speaker: str, text: str) -> Line:
    return {"speaker": speaker, "text": text, "kind": "control"}


def rounds(count: int, *lines: object) -> Script:
    """The lines so many times; a function is given the number of the round, from 1."""
    made = (line(number) if callable(line) else line for number in range(1, count + 1) for line in lines)
    return [line for line in made if isinstance(line, dict)]


def jsonl(script: Script) -> list[str]:
    return [json.dumps(line, ensure_ascii=False) for line in script]


ASK = said("user", "Please take care of it.")
DEBATERS = ("ada", "ben", "cyd")

HEALTHY: dict[str, Script] = {
    "polling a job until it ends": [
        ASK,
        called("bob", "start_job", {"name": "export"}),
        *rounds(40, called("bob", "job_status", {"job": 7}, poll=True)),
        said("bob", "The export has ended."),
    ],
    "polling with pauses between": [
        ASK,
        *rounds(
            20,
            called("bob", "job_status", {"job": 7}, poll=True),
            called("bob", "sleep", {"seconds": 30}, poll=True),
        ),
        said("bob", "It has ended."),
    ],
    "polling two jobs by turns": [
        ASK,
        *rounds(
            15, called("bob", "job_status", {"job": 7}, poll=True), called("bob", "job_status", {"job": 8}, poll=True)
        ),
    ],
    "a queue that is polled, with work between": rounds(
        60,
        called("bob", "next_order", poll=True),
        called("bob", "next_order", poll=True),
        called("bob", "next_order", poll=True),
        lambda number: called("bob", "ship", {"order": number}),
    ),
    "paging by number": [ASK, *rounds(30, lambda n: called("bob", "search", {"q": "invoice", "page": n}))],
    "paging by cursor": [ASK, *rounds(12, lambda n: called("bob", "list", {"folder": "in", "after": f"c{n}"}))],
    "a retry after an error": [
        ASK,
        called("bob", "fetch", {"url": "https://example.org"}),
        called("bob", "fetch", {"url": "https://example.org"}),
        called("bob", "fetch", {"url": "https://mirror.example.org"}),
        said("bob", "The first server was down, the mirror had it."),
    ],
    "one retry for each of many pages": [
        ASK,
        *chain.from_iterable(
            [called("bob", "fetch", {"page": n}), called("bob", "fetch", {"page": n})] for n in range(9)
        ),
    ],
    "a coder and a reviewer that get on": [
        ASK,
        *rounds(
            10,
            lambda n: called("coder", "edit", {"file": "a.py", "line": n}),
            lambda n: said("coder", f"Here is version {n} of the patch."),
            lambda n: said("reviewer", f"Line {n} is still wrong."),
        ),
        said("reviewer", "Approved."),
    ],
    "a reviewer with a standing phrase and new findings": [
        ASK,
        *rounds(
            6,
            lambda n: said("coder", f"Done: {n} of 6 findings are fixed."),
            lambda n: said("reviewer", "Please fix the next finding." if n in (2, 5) else f"Finding {n} is open."),
        ),
    ],
    "tests between edits, with progress": [
        ASK,
        *rounds(
            8,
            lambda n: called("coder", "edit", {"line": n}),
            lambda n: called("coder", "run_tests", progress=f"{9 - n} failing"),
        ),
        said("coder", "All tests pass."),
    ],
    "tests in a row, with progress": [ASK, *rounds(9, lambda n: called("coder", "run_tests", progress=str(n)))],
    "read, edit and test one file": [
        ASK,
        *rounds(
            7,
            called("coder", "read", {"file": "a.py"}),
            lambda n: called("coder", "edit", {"file": "a.py", "patch": n}),
            lambda n: called("coder", "run_test", {"name": f"test_{n}"}),
        ),
    ],
    "a support chat full of greetings": rounds(
        6, lambda n: said("user", f"Hello again, question {n}!"), said("desk", "Hello! How can I help you today?")
    ),
    "the same question again and again": rounds(
        7,
        said("user", "What is the status of my order?"),
        called("desk", "order_status", {"order": 7}),
        said("desk", "Your order is on its way."),
    ),
    "a clock that asks each hour": rounds(
        12,
        {"speaker": "cron", "text": "It is time.", "kind": "service"},
        called("bob", "check_disk", {"host": "db1"}),
        called("bob", "check_disk", {"host": "db1"}),
        said("bob", "Everything is in order."),
    ),
    "a person who says go on": rounds(
        8, said("user", "Go on."), called("bob", "next_chapter", {"book": 1}), said("bob", "Here is the next chapter.")
    ),
    "a search that fans out": [ASK, *rounds(12, lambda n: called("bob", "search", {"q": f"term {n}"}))],
    "several agents that read the same": [
        ASK,
        *[called(f"worker{n}", "read", {"file": "README.md"}) for n in range(12)],
    ],
    "a batch of hundred orders": rounds(
        100, lambda n: called("bob", "load", {"order": n}), lambda n: called("bob", "ship", {"order": n})
    ),
    "a debate of three": [
        ASK,
        *chain.from_iterable(
            [said(who, f"On point {number} I say {who[0]}{number}, and here is why.") for who in DEBATERS]
            for number in range(6)
        ),
    ],
    "a debate in which all agree at last": [
        ASK,
        *[said(who, f"My view of it is that of {who}.") for who in DEBATERS],
        *[said(who, "I agree with the others.") for who in DEBATERS],
        *[said(who, "I agree with the others.") for who in DEBATERS],
    ],
    "an orchestrator and its boilerplate": [
        ASK,
        *rounds(
            15,
            steers("boss", "Next worker, please continue with the plan."),
            lambda n: said(f"worker{n % 3}", f"Part {n} is done."),
        ),
    ],
    "short acknowledgements": [
        ASK,
        *rounds(12, lambda n: said("boss", f"Do part {n}."), said("bob", "Ok."), said("cat", "Done!")),
    ],
    "a refrain in a long story": [
        ASK,
        *rounds(9, lambda n: said("bard", "And so they sailed on." if n % 4 == 0 else f"Verse {n} of the song.")),
    ],
    "a form that is filled in": [
        ASK,
        *[called("bob", "fill", {"field": field, "value": ""}) for field in ("name", "street", "city", "zip", "phone")],
        called("bob", "submit"),
    ],
    "three measurements, twice": [
        ASK,
        *rounds(2, called("ops", "cpu"), called("ops", "memory"), called("ops", "disk")),
        said("ops", "Nothing has changed."),
    ],
    "values that only look alike": [
        ASK,
        called("bob", "set", {"flag": True}),
        called("bob", "set", {"flag": 1}),
        called("bob", "set", {"flag": "1"}),
        called("bob", "set", {"flag": "true"}),
        called("bob", "set", {"flag": [1]}),
    ],
    "names that differ in case": [ASK, *[called("bob", "open", {"file": name}) for name in ("a", "A", "a", "A")]],
    "large numbers that one double stands for": [ASK, *rounds(9, lambda n: called("bob", "get", {"id": 2**60 + n}))],
    "a negotiation": [
        ASK,
        *rounds(
            8,
            lambda n: said("buyer", f"I offer {100 + n} euros."),
            lambda n: said("seller", f"I want {150 - n} euros."),
        ),
    ],
    "a translation in parts": [
        ASK,
        *rounds(25, lambda n: called("bob", "translate", {"part": n, "into": "de"}), said("bob", "...")),
    ],
    "a reviewer that says the same of each new draft": [
        ASK,
        *rounds(
            8,
            lambda n: said("coder", f"Here is the patch: x = {n}."),
            said("reviewer", "Please improve it, this is not good enough yet."),
        ),
    ],
    "an agent that explores a project": [
        ASK,
        called("coder", "ls", {"path": "."}),
        called("coder", "cat", {"file": "a.py"}),
        called("coder", "cat", {"file": "b.py"}),
        called("coder", "grep", {"words": "total"}),
        called("coder", "cat", {"file": "a.py"}),
        called("coder", "edit", {"file": "a.py"}),
        called("coder", "ls", {"path": "."}),
        said("coder", "I have renamed it."),
    ],
    "much money, spread over a day": [
        ASK,
        *rounds(24, lambda n: said("bob", f"Report {n}.", cost=4.5, at=f"2026-05-01T{n - 1:02d}:00:00Z")),
    ],
    "money up to the ceiling": [ASK, *rounds(10, lambda n: said("bob", f"Report {n}.", cost="1.00", tokens=9000))],
}

REVIEW = rounds(
    4,
    said("coder", "Here is the patch: x = 1."),
    lambda n: said("reviewer", f"x is never used, I say it for the {n}th time."),
)

SICK: dict[str, tuple[Script, list[tuple[int, str, str]]]] = {
    "the same call three times": (
        [ASK, *rounds(3, called("bob", "search", {"q": "x"}))],
        [(4, "loop", "correct")],
    ),
    "… and once more": (
        [ASK, *rounds(4, called("bob", "search", {"q": "x"}))],
        [(4, "loop", "correct"), (5, "loop", "terminate")],
    ),
    "… in another order, and as another number": (
        [
            ASK,
            called("bob", "search", {"q": "x", "n": 1, "limit": None}),
            called("bob", "search", {"n": 1.0, "q": "x"}),
            called("bob", "search", {"n": 1, "q": "x"}),
        ],
        [(4, "loop", "correct")],
    ),
    "… with an accent written in two ways": (
        [
            ASK,
            called("bob", "search", {"q": "caf\u00e9"}),
            called("bob", "search", {"q": "cafe\u0301"}),
            called("bob", "search", {"q": "caf\u00e9"}),
        ],
        [(4, "loop", "correct")],
    ),
    "… with other agents between": (
        [
            ASK,
            *rounds(
                3,
                called("bob", "search", {"q": "x"}),
                *[lambda n, who=who: called(who, "load", {"part": n}) for who in ("cat", "dan", "eve", "fay", "gil")],
            ),
        ],
        [(14, "loop", "correct")],
    ),
    "… with other calls between": (
        [ASK, *[called("bob", "search", {"q": letter}) for letter in "XAXBX"]],
        [(6, "loop", "correct")],
    ),
    "three calls in a circle": (
        rounds(3, called("bob", "open"), called("bob", "look"), called("bob", "close")),
        [(9, "loop", "correct")],
    ),
    "tests without progress": (
        [ASK, *rounds(4, called("coder", "run_tests", progress="3 failing"))],
        [(4, "loop", "correct"), (5, "loop", "terminate")],
    ),
    "a poll without end": (
        [ASK, *rounds(102, called("bob", "job_status", {"job": 7}, poll=True))],
        [(102, "loop", "correct"), (103, "loop", "terminate")],
    ),
    "go on, cannot, go on": (
        rounds(4, said("ann", "Please continue."), said("bob", "I cannot, the data is missing.")),
        [
            (5, "loop", "correct"),
            (6, "loop", "correct"),
            (6, "deadlock", "trip"),
            (7, "loop", "terminate"),
            (8, "loop", "terminate"),
        ],
    ),
    "the same words, written otherwise": (
        [
            said("bob", "I am waiting for Ann."),
            said("bob", "i am  WAITING for ann."),
            said("bob", "I am waiting\nfor Ann."),
        ],
        [(3, "loop", "correct")],
    ),
    "a patch that never changes": (REVIEW, [(5, "loop", "correct"), (7, "loop", "terminate")]),
    "two agents that pass the same back and forth": (
        [
            ASK,
            *rounds(3, said("ann", "Please check the bill."), said("bob", "Then I need the bill.")),
            called("ann", "look", {"for": "bill"}),
        ],
        [(6, "loop", "correct"), (7, "loop", "correct"), (7, "deadlock", "trip")],
    ),
    "three agents in a circle": (
        [
            *rounds(3, *[said(who, f"I leave it to the one after {who}.") for who in DEBATERS]),
            called("ada", "look", {"for": "help"}),
        ],
        [(7, "loop", "correct"), (8, "loop", "correct"), (9, "loop", "correct"), (9, "deadlock", "trip")],
    ),
    "money in one hour": (
        rounds(3, lambda n: said("bob", f"Report {n}.", cost="4.00")),
        [(3, "cost", "deny")],
    ),
}
