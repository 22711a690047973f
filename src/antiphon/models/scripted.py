"""A model that answers by a script.

Rule 1: the script is copied and checked when the model is made; later changes of the list have no effect.
Rule 2: the same script and the same requests give the same replies, call ids and token counts included.
Rule 3: by order, an entry answers one call of this model, whichever turn it is in. By position, an entry answers the
        call at its place in a turn, in every turn, so that a resumed turn continues where it was.
Rule 4: every request is kept, also one answered with an error.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Literal, TypeGuard

import msgspec

from antiphon.agents.call_results import NO_USAGE, Call, Reply, Usage, one_reply
from antiphon.agents.messages import Asked, Request, says
from antiphon.core.errors import ModelError, UsageError
from antiphon.core.text import describe
from antiphon.core.views import Message

ScriptedAnswer = Reply | Sequence[Reply] | str | BaseException | type[BaseException]
"""An answer: a reply, several `calls(…)` that make up one, a text, or an error to raise."""

ScriptEntry = ScriptedAnswer | Callable[[Request], ScriptedAnswer | Awaitable[ScriptedAnswer]]
"""An answer, or a function of the request that gives one."""

ScriptFunction = Callable[[Request], object]
ScriptOutcome = Reply | BaseException | type[BaseException]

MAX_COUNTED_HISTORIES = 64
SCRIPT_ORDERS = ("order", "position")
logger = logging.getLogger("antiphon.models")
STREAMED_PIECE = re.compile(r"\S+\s*|\s+")
SCRIPT_ADVICE = "give says(…), calls(…), a list of calls(…), a text, an exception, or a function of the request"


class ScriptedModel:
    """Gives the script's replies in order, one for each call.

    With `by="position"` the script is that of each turn: the reply is the entry at the place of the call in its turn.
    Use it where a turn may be resumed by another process or a new model, which makes only the calls that are left.
    """

    def __init__(self, script: Iterable[ScriptEntry], *, by: Literal["order", "position"] = "order") -> None:
        if by not in SCRIPT_ORDERS:
            raise UsageError(f"by is {describe(by)}; give one of {', '.join(map(repr, SCRIPT_ORDERS))}")
        self._script = _check_script(script)
        self._by, self._made = by, 0
        self._used: set[int] = set()
        """The numbers of the entries that were given, counted from 1; beyond the script, of those that were missing."""
        self._resumed: set[str] = set()
        """The resumed turns that were warned of."""
        self._ids = itertools.count(1)
        self._counted = WordCounter()
        self.requests: list[Request] = []
        """The requests so far, oldest first."""

    @property
    def left(self) -> int:
        """How many entries have not been used."""
        return sum(number not in self._used for number in range(1, len(self._script) + 1))

    def turn_resumed(self, turn_id: str) -> None:
        """Warn, once a turn, if replies are given by order: calls that the turn does not repeat used no entry here."""
        if self._by == "position" or turn_id in self._resumed:
            return
        self._resumed.add(turn_id)
        logger.warning(
            "turn %s is resumed, and its ScriptedModel gives entries in the order of calls: a call that was answered "
            "before the turn was interrupted is not made again, so entries may be repeated or skipped; "
            'use ScriptedModel(…, by="position")',
            turn_id,
        )

    async def __call__(self, request: Request) -> Reply:
        """The next reply. `ModelError` when the script is over."""
        self.requests.append(request)
        self._made += 1
        number = self._made if self._by == "order" else request.position + 1
        self._used.add(number)
        reply = await self._answer(number, request)
        usage = _count_usage(reply, request, self._counted) if reply.usage == NO_USAGE else reply.usage
        return msgspec.structs.replace(reply, calls=self._with_call_ids(reply.calls, request), usage=usage)

    async def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """The next reply's text word by word, then the reply."""
        reply = await self(request)
        for piece in STREAMED_PIECE.findall(reply.text):
            yield piece
        yield reply

    async def _answer(self, number: int, request: Request) -> Reply:
        size = len(self._script)
        if number > size:
            entries = "1 entry" if size == 1 else f"{size} entries"
            where = "" if self._by == "order" else " of a turn"
            raise ModelError(f"the script has {entries} and call {number}{where} was made; add what it should answer")
        entry = self._script[number - 1]
        if not isinstance(entry, Reply | BaseException | type):
            value = entry(request)
            value = await value if inspect.isawaitable(value) else value
            entry = _parse_entry(value, f"what entry {number} of the script returned")
        if isinstance(entry, Reply):
            return entry
        raise entry

    def _with_call_ids(self, calls: Iterable[Call], request: Request) -> tuple[Call, ...]:
        """The calls, each with an id that no other call of the turn has."""
        calls = tuple(calls)
        earlier = (call for item in request.exchange if isinstance(item, Asked) for call in item.calls)
        taken = {call.call_id for call in (*earlier, *calls)}
        return tuple(
            call if call.call_id else msgspec.structs.replace(call, call_id=self._new_id(taken)) for call in calls
        )

    def _new_id(self, taken: set[str]) -> str:
        return next(name for number in self._ids if (name := f"call_{number}") not in taken)


def _check_script(script: Iterable[ScriptEntry]) -> tuple[ScriptOutcome | ScriptFunction, ...]:
    if isinstance(script, str | Reply) or not isinstance(script, Iterable):
        raise UsageError(f"the script is {describe(script)}; give a list with one entry for each model call")
    return tuple(
        entry if _is_function(entry) else _parse_entry(entry, f"entry {number} of the script")
        for number, entry in enumerate(script, start=1)
    )


def _parse_entry(answer: object, place: str) -> ScriptOutcome:
    """The answer as one reply or an error to raise; `UsageError` if it is neither."""
    if isinstance(answer, str):
        return says(answer)
    if isinstance(answer, BaseException) or _is_error_class(answer):
        return answer
    try:
        return copy.deepcopy(one_reply(answer))  # its arguments are dicts, which others may change
    except TypeError as error:
        raise UsageError(f"{place} is {describe(answer)}; {SCRIPT_ADVICE}") from error


def _is_function(entry: object) -> TypeGuard[ScriptFunction]:
    return callable(entry) and not isinstance(entry, type | BaseException)


def _is_error_class(entry: object) -> TypeGuard[type[BaseException]]:
    return isinstance(entry, type) and issubclass(entry, BaseException)


class WordCounter:
    """How many words there are in histories that grow: what was counted before is not counted again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[Message], int]] = {}
        """A few histories and their words, by their first message, which they keep alive."""

    def words(self, history: Sequence[Message]) -> int:
        """The words of this history."""
        first = id(history[0]) if history else 0
        before, words = self._known.pop(first, ((), 0))
        if history[: len(before)] != before:
            before, words = (), 0
        words += sum(_count_words(message.text) for message in history[len(before) :])
        self._known[first] = history, words
        if len(self._known) > MAX_COUNTED_HISTORIES:
            del self._known[next(iter(self._known))]
        return words


def _count_usage(reply: Reply, request: Request, counted: WordCounter) -> Usage:
    """Words for tokens."""
    asked = _count_words(request.system) + counted.words(request.history)
    asked += sum(_count_words(item.text) for item in request.exchange)
    return Usage(asked, _count_words(reply.text) + sum(1 + _count_words(str(call.args)) for call in reply.calls))


def _count_words(text: str) -> int:
    return len(text.split())
