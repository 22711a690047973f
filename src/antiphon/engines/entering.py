"""What somebody who becomes active is told, and shown of what was said before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import NamedTuple

import msgspec

from antiphon.agents.declaration import Prompt
from antiphon.agents.history import History
from antiphon.agents.isolation import call_contained, contained
from antiphon.agents.messages import NO_USAGE, Reply, Usage
from antiphon.agents.progress import Path
from antiphon.agents.replies import one_reply
from antiphon.agents.team import Member, shown_path
from antiphon.agents.wanted import Enter, Entered
from antiphon.core.codec import MAX_BYTES, Malformed, as_type, check_json, digest_of, plain_data, to_json
from antiphon.core.events import EV_CALL_FAILED, EV_CALL_FINISHED, CallFailed, CallFinished, CallStarted
from antiphon.core.summaries import SummarisedTranscript, Summary, summarises
from antiphon.core.views import Message, View
from antiphon.core.words import told
from antiphon.engines.asking import Asking, Unanswered
from antiphon.engines.means import Book, Failing, agent_in_journal

SUMMARY = "summary"

Histories = Callable[[bool], Awaitable[History]]
"""The messages of the channel up to now, with names or without."""


class Summed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call that sums up came to, as the journal keeps it."""

    summary: Summary
    usage: Usage = NO_USAGE


class Seen(NamedTuple):
    """What somebody is shown of what was said before."""

    messages: Sequence[Message]
    past: str


class Entrance:
    """Renders prompts and shows what was said, for one attempt at a turn."""

    def __init__(self, book: Book, histories: Histories, *, usual: View) -> None:
        self._book, self._histories, self._usual = book, histories, usual
        self._seen: dict[Path, Seen] = {}
        """What has been shown to those who have entered before, by whose memory it is."""
        self._said: dict[bool, tuple[list[Message], str]] = {}
        """What was said before the turn, with names or without: the same for everybody."""

    async def __call__(self, wanted: Enter) -> Entered:
        """What this member is told and shown. Whoever enters again is shown the same."""
        team = self._book.team
        member = team.members[wanted.path]
        owner = team.lead if member.declaration.memory is None else member
        seen, summed = self._seen.get(owner.path), None
        if seen is None:
            seen, summed = await self._shown(wanted, owner)
            self._seen[owner.path] = seen
        system = await self._rendered(member, seen.messages)
        return Entered(system, seen.messages, seen.past, None if summed is None else Reply("", usage=summed.usage))

    async def _shown(self, wanted: Enter, owner: Member) -> tuple[Seen, Summed | None]:
        """What a memory shows, whoever enters with it, and the summary that was made for it."""
        view = owner.declaration.memory or self._usual
        history, before = await self._histories(view.named), self._book.notes.turn.sequence
        if view.named not in self._said:
            kinds = self._book.notes.live.state.participants
            people = frozenset(name for name, kind in kinds.items() if kind == "human")
            self._said[view.named] = history.until(before, people=people, meant=self._book.team.read)
        messages, past = self._said[view.named]
        summing = summarises(view)
        if summing is None:
            return Seen(call_contained(lambda: view.shown(messages)), past), None
        last = history.summary_before(before, shown_path(owner.path))
        summed = await self._summed(wanted, owner, view=summing, messages=messages, last=last)
        return Seen(summing.shown_with(messages, last if summed is None else summed.summary), past), summed

    async def _summed(
        self, wanted: Enter, owner: Member, *, view: SummarisedTranscript, messages: list[Message], last: Summary | None
    ) -> Summed | None:
        """The summary that is made in this turn; None if none is due."""
        due = view.due(messages, last)
        if due is None:
            return None
        book, index = self._book, wanted.index
        outcome = book.outcome(index, SUMMARY)
        if isinstance(outcome, CallFinished):
            return as_type(outcome.result, Summed)
        await book.start(
            [CallStarted(book.turn_id, index, SUMMARY, digest_of(due), agent=agent_in_journal(wanted.path))]
        )
        asking = Asking(book, wanted, model=view.summarise, limits=owner.declaration.limits)
        try:
            reply = await asking.answer(lambda: _summary_of(view, due, f"the summary of {book.caller(owner.path)}"))
        except Unanswered as error:
            raise self._given_up(index, str(error)) from error
        try:
            summed = _recordable(Summed(view.made(messages, reply.text, shown_path(owner.path)), reply.usage))
        except Exception as error:
            detail = str(error) if isinstance(error, Malformed) else told(error)
            raise self._given_up(index, detail) from error
        book.notes.keep(EV_CALL_FINISHED, CallFinished(book.turn_id, index, plain_data(summed)))
        return summed

    def _given_up(self, index: int, detail: str) -> Failing:
        self._book.notes.keep(EV_CALL_FAILED, CallFailed(self._book.turn_id, index, detail))
        return Failing("summary_error", detail)

    async def _rendered(self, member: Member, shown: Sequence[Message]) -> str:
        prompt = member.declaration.system_prompt
        if isinstance(prompt, str):
            return prompt
        await self._book.claim()  # before anything of the agent's own runs
        return await _rendered(prompt, shown, f"the system prompt of {self._book.caller(member.path)}")


async def _summary_of(view: SummarisedTranscript, due: Sequence[Message], name: str) -> Reply:
    async def run() -> object:
        given = view.summarise(due)
        return await given if isawaitable(given) else given

    value = await contained(run, name, view.summarise)
    reply = Reply(value) if isinstance(value, str) else one_reply(value)
    if not reply.text:
        raise ValueError("the summary is empty")
    return reply


def _recordable(summed: Summed) -> Summed:
    """The summary as the journal gives it back; `Malformed` if it cannot keep it."""
    check_json(summed.summary.text)
    size = len(to_json(summed))
    if size > MAX_BYTES:
        raise Malformed("too_large", f"the summary has {size} bytes; the limit is {MAX_BYTES}")
    return as_type(plain_data(summed), Summed)


async def _rendered(prompt: Prompt, shown: Sequence[Message], name: str) -> str:
    """The system prompt. What a user's function raises fails the turn with its words."""
    assert not isinstance(prompt, str), "a text needs no rendering"

    async def render() -> object:
        rendered = prompt(shown)
        return await rendered if isawaitable(rendered) else rendered

    try:
        text = await contained(render, name, prompt)
    except Exception as error:
        raise Failing("prompt_error", told(error)) from error
    if not isinstance(text, str):
        raise Failing("prompt_error", f"the system prompt is {type(text).__name__}, not a text")
    return text
