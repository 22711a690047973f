"""Intents: phrases that need no model to be understood.

Rule 1: only what a person said is matched, and only before any model was asked.
Rule 2: a phrase is matched as words: case, spacing, and the marks around it do not count.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from antiphon.agents.call_results import Call
from antiphon.core.codec import Malformed, check_json, copy_json
from antiphon.core.envelope import Json
from antiphon.core.errors import UsageError
from antiphon.core.text import describe

OUTER_PUNCTUATION = " .,;:!?¡¿…'\"“”’«»()[]"
TRANSFER_PREFIX = "transfer_to_"
"""What the tool is called that hands over to a sub-agent, before its name."""


@dataclass(frozen=True)
class Intent:
    """A phrase, and what it stands for: a sub-agent, a tool, or a fixed answer."""

    phrase: str
    _: KW_ONLY
    agent: str | None = None
    """Who gets to answer."""
    tool: str | None = None
    """What is called. If its result is not the answer itself, the model makes one of it."""
    answer: str | None = None
    """What is said."""
    args: Json = field(default_factory=dict, hash=False)
    """The arguments of the tool."""
    anywhere: bool = False
    """Whether the phrase counts anywhere in what was said; otherwise it must be all of it."""

    def __post_init__(self) -> None:
        if not isinstance(self.phrase, str) or not normalize_phrase(self.phrase):
            raise UsageError(f"the phrase of an intent is {describe(self.phrase)}; give words that a person may say")
        given = {name: value for name in ("agent", "tool", "answer") if (value := getattr(self, name)) is not None}
        if len(given) != 1 or not all(isinstance(value, str) and value for value in given.values()):
            what = ", ".join(f"{name}={describe(value)}" for name, value in given.items()) or "nothing"
            raise UsageError(f"the intent {self.phrase!r} stands for {what}; give one of agent=, tool= or answer='…'")
        if self.args and self.tool is None:
            raise UsageError(f"the intent {self.phrase!r} has args={describe(self.args)}, which only a tool takes")
        if type(self.args) is not dict:
            raise UsageError(f"args of the intent {self.phrase!r} is {describe(self.args)}; give a dict")
        try:
            check_json([self.args, self.answer])
        except Malformed as error:
            raise UsageError(f"the intent {self.phrase!r} cannot be recorded: {error}") from error
        if not isinstance(self.anywhere, bool):
            raise UsageError(f"anywhere of the intent {self.phrase!r} is {describe(self.anywhere)}; give True or False")
        object.__setattr__(self, "args", copy_json(self.args))

    @property
    def stands_for(self) -> str:
        """What it leads to, in words."""
        if self.agent is not None:
            return f"the agent {self.agent}"
        return f"the tool {self.tool}" if self.tool is not None else "a fixed answer"


def normalize_phrase(text: str) -> str:
    """The text as its words alone: one blank between them, without case, without the marks around it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(OUTER_PUNCTUATION)


def find_intent(intents: Sequence[Intent], text: str) -> Intent | None:
    """The first intent that this says; None if none."""
    said = normalize_phrase(text)
    spaced = f" {said} "
    for intent in intents:
        phrase = normalize_phrase(intent.phrase)
        if said == phrase or (intent.anywhere and _contains_phrase(phrase, spaced)):
            return intent
    return None


def _contains_phrase(phrase: str, said: str) -> bool:
    """Whether the phrase stands in what was said, and not as a part of other words."""
    place = said.find(phrase)
    while place >= 0:
        if not said[place - 1].isalnum() and not said[place + len(phrase)].isalnum():
            return True
        place = said.find(phrase, place + 1)
    return False


def call_of_intent(intent: Intent) -> Call:
    """The call that an intent stands for, as if a model had asked for it."""
    name = intent.tool if intent.tool is not None else f"{TRANSFER_PREFIX}{intent.agent}"
    return Call(name, copy_json(intent.args), "intent")
