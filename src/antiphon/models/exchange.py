"""What was exchanged within a turn, in a form that every provider takes.

Rule 1: an id is a provider's. Whoever asked earlier in the turn may have been another, or may have given none: each
        call gets an id that is unique and plain, the same whenever it is shown.
Rule 2: an answer carries the id of its call.
Rule 3: arguments are an object. A call whose arguments were none is shown with `{}`: its answer says what was wrong.
"""

from __future__ import annotations

import json
import re

import msgspec

from antiphon.agents.messages import Answered, Asked, Call, Exchange, Objected
from antiphon.models.asking import distinct

PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")


def identified(exchange: Exchange) -> Exchange:
    """The exchange with ids that are unique and plain."""
    taken: set[str] = set()
    waiting: list[tuple[Call, Call]] = []
    place = 0
    items: list[Asked | Answered | Objected] = []
    for item in exchange:
        match item:
            case Asked(calls=calls):
                named = tuple(distinct(_plain(call), taken, place + at) for at, call in enumerate(calls, start=1))
                place += len(calls)
                waiting = list(zip(calls, named, strict=True))
                items.append(msgspec.structs.replace(item, calls=named))
            case Answered(call=call):
                items.append(Answered(_taken(call, waiting), item.text, item.failed))
            case _:
                items.append(item)
    return tuple(items)


def _plain(call: Call) -> Call:
    return call if PLAIN.fullmatch(call.call_id) else Call(call.name, call.args)


def _taken(call: Call, waiting: list[tuple[Call, Call]]) -> Call:
    """The call as it is named now; the first that waits for an answer, if several are alike."""
    at = next((at for at, (before, _) in enumerate(waiting) if before == call), None)
    return call if at is None else waiting.pop(at)[1]


def raw_text(raw: msgspec.Raw) -> str:
    """Arguments as a server sends them: the text of a JSON string, the JSON itself, or nothing.

    Half a surrogate pair in such a text is no error here but a fault of its call, as all other text that is no JSON.
    """
    text = bytes(raw).decode("utf-8", "backslashreplace")
    value: object = json.loads(text) if text.startswith('"') else text
    return value if isinstance(value, str) and text != "null" else ""
