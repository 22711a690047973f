"""How channels begin and end: opening by key, forking, erasing.

Rule 1: the first words are recorded in one batch with the opening, or not at all.
Rule 2: a key names one channel of its creator for ever. Another content under the same key is a conflict.
Rule 3: only channels that have ended are erased, and none of them unless all of its tasks have ended too. Tasks are
        erased before the channel that names them: after a crash the same call finds what is left.
Rule 4: erasing asks no rules: a channel of an adapter that is not known here can be erased too.
Rule 5: the rules of a new channel are read and checked before it is opened, large graphs by a thread, one at a time:
        each thread that runs Python delays the event loop. What is found does not depend on time: the check counts
        its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator, Sequence
from dataclasses import replace

import msgspec

from antiphon.core.codec import same_json
from antiphon.core.creation import (
    LogCopy,
    adapter_findings,
    check_fork_position,
    copy_log,
    fork_batch,
    guest_of,
    invitations_in,
    last_speech_sequence,
    opening_batch,
    record_first_words,
)
from antiphon.core.envelope import Envelope, IdSource, Instant, Json, derived_id
from antiphon.core.errors import Denied, RulesInvalid, UnknownChannel, UsageError
from antiphon.core.event_data import Deny, check_draft, check_event_data, data_of, event_of, original_digest
from antiphon.core.events import (
    EV_CHANNEL_CREATED,
    EV_CHANNEL_OPENED,
    EV_CHANNEL_PREPARED,
    EV_TASK_STARTED,
    ORIGINAL_FIELD,
    ChannelCreated,
    ChannelForked,
    TaskStarted,
)
from antiphon.core.ruleset import Fold, Ruleset
from antiphon.core.state import ENDED_STATUSES, State
from antiphon.core.state import TASK_KNOB as TASK_KNOB
from antiphon.core.step import Admitted, first_words_draft, record_all, step
from antiphon.core.text import describe, describe_error
from antiphon.hub.live import LiveChannel
from antiphon.orchestration.catalogue import is_checked_at_opening, ruleset_for
from antiphon.runtime.arguments import check_text_argument
from antiphon.runtime.conversation_defaults import without_defaults
from antiphon.runtime.core import HubCore, denial_of_turns
from antiphon.runtime.invitations import send_invitations
from antiphon.store.paging import all_envelopes, log_page_reader
from antiphon.store.records import SYSTEM_CHANNEL_PREFIX

MAX_REPORTED_ERRORS = 10
"""How many errors of a ruleset one message lists."""
MAX_CHANNEL_KEY_CHARS = 300
OPEN_FIELD_NAMES = {"participants": "target"}
"""The fields of a creation that `open` knows by another name."""


async def open_or_find_channel(
    core: HubCore, created: ChannelCreated, *, say: str | None, key: str | None, may_run: bool = True
) -> LiveChannel:
    """The channel, made or found by its key, once all have accepted; `Denied` if it was not opened.

    Without `may_run` a new one is refused if an agent would get a turn by it.
    """
    if say is not None and not isinstance(say, str):
        raise UsageError(f"say is {describe(say)}; give what is to be said first, as a text, or None")
    if key is None:
        channel_id = core.new_id()
    else:
        advice = f"a text of 1 to {MAX_CHANNEL_KEY_CHARS} characters, or None"
        check_text_argument(key, "key", advice, least=1, most=MAX_CHANNEL_KEY_CHARS)
        channel_id = derived_id("channel", created.creator, key)
    first = None if say is None else first_words_draft(State(channel_id=channel_id, creator_id=created.creator), say)
    if first is not None and key is None:  # it is never looked for, so it gets an id that sorts
        first = replace(first, envelope_id="")

    async def make() -> LiveChannel:
        knobs = core.conversation_defaults.complete(created.type, created.knobs)
        full = created if knobs is created.knobs else msgspec.structs.replace(created, knobs=knobs)
        if not may_run:
            await _check_no_turn_given(core, full, first)
        if first is None:
            return await create_channel(core, full, channel_id)
        return await create_with_first_words(core, full, channel_id, first=first, repeatable=key is not None)

    if key is None:
        live = await make()
    else:
        async with core.locks.setdefault(channel_id, asyncio.Lock()):
            try:
                live = await core.live(channel_id)
            except UnknownChannel:
                live = await make()
        await _check_same_opening(core, live, created, first=first)
    await core.wait_for_status(live, ("active", "closed", "expired"))
    state = live.state
    if state.status != "active" and state.turn_count == 0 and not await _was_open(live):
        raise Denied(state.close_reason or "hub_closed", state.channel_id, "the channel was not opened")
    return live


async def create_with_first_words(
    core: HubCore, created: ChannelCreated, channel_id: str, *, first: Envelope, repeatable: bool
) -> LiveChannel:
    """Make a channel with its first words as hooks leave them; `Denied` if they are refused.

    With `repeatable`, what was given is recognised when it is given again, also if a hook has rewritten it.
    """

    async def open_with(words: Envelope) -> LiveChannel:
        return await create_channel(core, created, channel_id, first=words)

    made = await core.hooks.open_screened(channel_id, first, open_with, repeatable=repeatable)
    if isinstance(made, Deny):
        raise await core.audit.refusal(Denied(made.reason, channel_id, made.detail), first)
    return made


async def create_channel(
    core: HubCore,
    created: ChannelCreated,
    channel_id: str = "",
    *,
    first: Envelope | None = None,
    before: Sequence[Envelope] = (),
) -> LiveChannel:
    """Record a new channel, its invitations and its first words, and put the invitations to guests who decide.

    `Denied` if the creator may not speak first. `before` is imported history: it is recorded behind the
    invitations, and nothing follows from it.
    """
    ruleset = await _checked_ruleset(core, created)
    core.check_open()  # it may have been closed meanwhile
    unchecked = first is not None and ORIGINAL_FIELD not in first.event_data  # what a hook rewrote is checked
    for draft in (*before, first) if first is not None and unchecked else before:
        denial = check_draft(draft) if draft is first else check_event_data(draft)
        if denial is not None:
            raise await core.audit.refusal(Denied(denial.reason, channel_id, denial.detail), draft)
    guests = [seat.name for seat in created.participants if seat.name != created.creator]
    willing = {name for name in guests if not core.directory.find(name).asks}
    opening = _OpenChannel(created, willing, before, first, core.new_id, begun=[])
    try:
        live = await core.channels.create(channel_id or core.new_id(), ruleset, opening)
    except Denied as denied:
        if first is not None:
            await core.audit.refusal(denied, first)
        raise
    invites = invitations_in(opening.begun)
    send_invitations(core, live, (invite for invite in invites if guest_of(invite) not in willing))
    return live


class _OpenChannel(msgspec.Struct, frozen=True):
    """Plans a channel's creation, its invitations, imported history and its first words, in one batch."""

    created: ChannelCreated
    willing: Collection[str]
    """The guests who accept every invitation."""
    before: Sequence[Envelope]
    """Imported history. Nothing follows from it."""
    first: Envelope | None
    new_id: IdSource
    begun: list[Envelope]
    """Filled with what was planned."""

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | Deny | None:
        if fold.state.sequence:  # another caller has made it meanwhile
            return None
        opened = opening_batch(fold, self.created, self.willing, ruleset=ruleset, at=at, new_id=self.new_id)
        imported = record_all(opened.fold, self.before, ruleset=ruleset, at=at, new_id=self.new_id)
        batch, fold = (*opened.batch, *imported.batch), imported.fold
        if self.first is not None:
            said = record_first_words(fold, self.first, ruleset=ruleset, at=at, new_id=self.new_id)
            if isinstance(said, Deny):
                return said
            batch, fold = (*batch, *said.batch), said.fold
        self.begun[:] = batch
        return Admitted(batch, fold)


async def _checked_ruleset(core: HubCore, created: ChannelCreated) -> Ruleset:
    """The ruleset of a channel that is about to be opened; `RulesInvalid` if it is unusable, or wrong for it."""
    if not is_checked_at_opening(created.type):
        return _check_ruleset(created)
    async with core.ruleset_check_lock:
        return await asyncio.to_thread(_check_ruleset, created)


def _check_ruleset(created: ChannelCreated) -> Ruleset:
    ruleset = ruleset_for(created.type, created.knobs)
    wrong = [found.message for found in adapter_findings(ruleset.adapter, created) if found.level == "error"]
    if wrong:
        further = f"; and {len(wrong) - MAX_REPORTED_ERRORS} more" if len(wrong) > MAX_REPORTED_ERRORS else ""
        raise RulesInvalid("; ".join(wrong[:MAX_REPORTED_ERRORS]) + further)
    return ruleset


async def _check_no_turn_given(core: HubCore, created: ChannelCreated, first: Envelope | None) -> None:
    """`Denied` if an agent gets a turn by this opening, as it is when every guest has accepted."""
    ruleset, at, new_id = await _checked_ruleset(core, created), core.clock.now(), core.new_id
    begun = ruleset.begin(new_id())
    guests = {seat.name for seat in created.participants}
    opened = opening_batch(begun, created, guests, ruleset=ruleset, at=at, new_id=new_id)
    said = opened if first is None else step(opened.fold, first, ruleset=ruleset, at=at, new_id=new_id)
    denial = denial_of_turns(begun.state, said.fold.state if isinstance(said, Admitted) else opened.fold.state)
    if denial is not None:
        draft = Envelope(sender_id=created.creator, event_type=EV_CHANNEL_CREATED)
        raise await core.audit.refusal(Denied(denial.reason, detail=denial.detail), draft)


async def _check_same_opening(
    core: HubCore, live: LiveChannel, created: ChannelCreated, *, first: Envelope | None
) -> None:
    """`Denied` if the channel of a key was opened with anything else than is wanted now."""
    difference = await _find_difference(core, live, created, first=first)
    if difference is not None:
        detail = f"this key was used before, with another {difference}; use a new key for another channel"
        draft = Envelope(sender_id=created.creator, event_type=EV_CHANNEL_CREATED)
        raise await core.audit.refusal(Denied("conflict", live.state.channel_id, detail), draft)


async def _find_difference(
    core: HubCore, live: LiveChannel, created: ChannelCreated, *, first: Envelope | None
) -> str | None:
    """What the channel of a key was opened with that differs from what is wanted now; None if nothing does."""
    recorded = event_of((await live.read(0))[0])
    before: Json = data_of(recorded) if isinstance(recorded, ChannelCreated) else {}
    wanted = data_of(created)
    if isinstance(recorded, ChannelCreated):
        before["knobs"] = without_defaults(created.type, recorded.knobs, created.knobs)
    field = next((name for name in wanted if not same_json(wanted[name], before.get(name))), None)
    if field is not None:
        return OPEN_FIELD_NAMES.get(field, field)
    if first is None:
        return None
    found = (await core.store.find(live.state.channel_id, [first.envelope_id])).get(first.envelope_id)
    said: Json = {"text": live.state.prepared} if found is None else found.event_data
    if ORIGINAL_FIELD not in said and said.get("text") == first.event_data["text"]:
        return None
    rewritten = said if ORIGINAL_FIELD in said else await _prepared_words(live)
    return None if original_digest(rewritten) == original_digest(first.event_data) else "say"


async def _prepared_words(live: LiveChannel) -> Json:
    """The first words as they were prepared; empty if no guest had yet to accept."""
    async for each in all_envelopes(live.read):
        if each.event_type == EV_CHANNEL_PREPARED:
            return each.event_data
        if each.event_type == EV_CHANNEL_OPENED:
            break
    return {}


async def _was_open(live: LiveChannel) -> bool:
    """Whether everybody had accepted before the channel ended."""
    async for each in all_envelopes(live.read):
        if each.event_type == EV_CHANNEL_OPENED:
            return True
    return False


def task_origin(knobs: Json) -> Json:
    """From where a task was given; empty if this is not the channel of a task."""
    origin = knobs.get(TASK_KNOB)
    return origin if isinstance(origin, dict) else {}


async def fork_channel(core: HubCore, live: LiveChannel, *, at: object, by: str) -> LiveChannel:
    """A new channel that begins as this one did, up to this sequence."""
    core.check_open()
    if not isinstance(at, int) or isinstance(at, bool):
        raise UsageError(f"at is {describe(at)}; give the sequence of the last envelope to keep")
    if not 1 <= at <= live.state.sequence:
        raise UsageError(f"at is {at}; the log has the sequences 1 to {live.state.sequence}")
    if live.state.erased:
        raise UsageError(f"channel {live.state.channel_id!r} was erased; there is nothing left to fork")
    read = await _read_prefix(live, at + 1)
    prefix, following = read[:at], read[at] if len(read) > at else None
    created = event_of(prefix[0])
    assert isinstance(created, ChannelCreated), "a log begins with the channel's creation"
    # Made anew, because what is left of a damaged channel has another ruleset; in a thread: a graph may be large.
    ruleset = await asyncio.to_thread(ruleset_for, created.type, created.knobs)
    channel_id = core.new_id()
    copy = await _run_in_slices(
        copy_log(channel_id, prefix, ruleset=ruleset, new_id=core.new_id), live.state.channel_id
    )
    check_fork_position(prefix, ruleset.fold(copy.fold, copy.last).state, following)
    provenance = ChannelForked(live.state.channel_id, at, by, prefix[-1].created_at, last_speech_sequence(prefix))
    return await core.channels.create(channel_id, ruleset, _OpenFork(copy, provenance, core.new_id))


class _OpenFork(msgspec.Struct, frozen=True):
    """Plans the copy, what follows from its last envelope, and where it comes from."""

    copy: LogCopy
    provenance: ChannelForked
    new_id: IdSource

    def __call__(self, fold: Fold, ruleset: Ruleset, at: Instant) -> Admitted | None:
        if fold.state.sequence:
            return None
        return fork_batch(self.copy, self.provenance, ruleset=ruleset, at=at, new_id=self.new_id)


async def _run_in_slices(work: Generator[None, None, LogCopy], origin: str) -> LogCopy:
    """The result of the work. Other tasks run whenever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            copy: LogCopy = end.value
            return copy
        except Exception as error:
            raise RulesInvalid(f"the rules of {origin!r} fail on its log: {describe_error(error)}") from error
        await asyncio.sleep(0)


async def _read_prefix(live: LiveChannel, until: int) -> list[Envelope]:
    found: list[Envelope] = []
    while len(found) < until and (page := await live.read(len(found))):
        found.extend(page)
        await asyncio.sleep(0)  # a store in memory does not wait, and would hold the event loop for all pages
    return found[:until]


MAX_ERASER_NAME_CHARS = 200


class Erasure(msgspec.Struct, frozen=True):
    """What was erased with one channel."""

    channel_id: str
    records: int
    """How many records are tombstones now, those of tasks included."""
    tasks: list[str] = []
    """The channels of tasks that were erased with it."""


async def erase_channel(core: HubCore, channel_id: str, *, by: str) -> Erasure:
    """Erase a channel that has ended, and its tasks; `Denied` with the reason `channel_open` if one of them has not."""
    if not isinstance(by, str) or not by or len(by) > MAX_ERASER_NAME_CHARS:
        raise UsageError(f"by is {describe(by)}; give the name of who erases, 1 to {MAX_ERASER_NAME_CHARS} characters")
    await core.check_exists(channel_id)
    if channel_id.startswith(SYSTEM_CHANNEL_PREFIX):
        raise UsageError(f"channel {channel_id!r} is the hub's own and cannot be erased")
    family: dict[str, None] = {}
    await _collect_family(core, channel_id, family)
    records = 0
    for each in family:
        erased = await core.channels.erase(each)
        core.forget(each)
        await core.audit.erased(each, erased, by)
        records += erased
    return Erasure(channel_id, records, [each for each in family if each != channel_id])


async def _collect_family(core: HubCore, channel_id: str, family: dict[str, None]) -> None:
    """Add a channel behind its tasks. `Denied` if it has not ended."""
    row = await core.store.row(channel_id)
    status = "unknown" if row is None else row.status
    if status not in ENDED_STATUSES:
        raise Denied("channel_open", channel_id, f"it cannot be erased: its status is {status!r}; close it first")
    for task in await _task_channels_of(core, channel_id):
        if task not in family:
            await _collect_family(core, task, family)
    family[channel_id] = None


async def _task_channels_of(core: HubCore, channel_id: str) -> list[str]:
    """The channels of the tasks that were given from a channel. A fork names those of its origin, which are not its."""
    found: list[str] = []
    async for envelope in all_envelopes(log_page_reader(core.store, channel_id)):
        event = event_of(envelope) if envelope.event_type == EV_TASK_STARTED else None
        if isinstance(event, TaskStarted) and await _parent_channel_of(core, event.task) == channel_id:
            found.append(event.task)
    return found


async def _parent_channel_of(core: HubCore, task: str) -> str | None:
    try:
        await core.check_exists(task)
    except UnknownChannel:  # the process ended before it was made
        return None
    first = (await core.store.read(task, limit=1)).envelopes[0]
    created = event_of(first)
    origin = task_origin(created.knobs) if isinstance(created, ChannelCreated) else None
    return str(origin.get("parent")) if origin else None
