"""Keys: what somebody shows a server to be let in, folded from a channel of the hub's own.

Rule 1: a secret is given out once, when its key is made. What is recorded is a keyed hash of it, which opens nothing.
Rule 2: whatever does not fit is refused before anything is recorded.
Rule 3: in doubt a key is refused. One whose revocation may not have been recorded, or stands in a log that is damaged,
        where a revocation may be lost, opens nothing.
Rule 4: a ring on which there ever was a key stays guarded, whatever has become of the keys.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from hmac import compare_digest
from itertools import count
from typing import Annotated, Literal, TypedDict, Unpack

import msgspec

from antiphon.core.codec import Malformed, as_type, check_text
from antiphon.core.envelope import Envelope
from antiphon.core.errors import BadName, LogCorrupt, UsageError
from antiphon.core.events import data_of
from antiphon.core.ids import check_name
from antiphon.core.instants import Instant, after, instant
from antiphon.core.words import shown
from antiphon.hub.own import OwnChannel
from antiphon.hub.redacting import KNOWN
from antiphon.store.protocol import Store

log = logging.getLogger("antiphon.hub")

KEYS = "system:keys"
EV_KEY_CREATED = "antiphon.key.created"
EV_KEY_REVOKED = "antiphon.key.revoked"

SCOPES = ("invoke", "read", "write", "approve", "operate")
KINDS = ("human", "service")
LONGEST_LABEL = 100
LONGEST_LIFE = 3653 * 86_400.0
"""How many seconds after it is made a key may expire: ten years."""

SECRET = re.compile(r"ak_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
KEY_ID = re.compile(r"[0-9a-f]{12}\Z")
ID_BYTES, SECRET_BYTES, HASH_BYTES = 6, 32, 32

Status = Literal["active", "expired", "revoked"]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Read = Callable[[int], Awaitable[Sequence[Envelope]]]
"""Reads a page of a log behind a sequence; nothing at its end."""


class Key(msgspec.Struct, frozen=True):
    """What is known of a key. Nothing of it opens anything."""

    key_id: str
    participant: str
    """Whom it speaks for."""
    kind: str
    scopes: tuple[str, ...]
    label: str
    created_at: Instant
    expires_at: Instant | None
    revoked: bool

    def status(self, at: Instant) -> Status:
        """Whether it is of use at this time."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= at else "active"


class Lock(msgspec.Struct, frozen=True):
    """What a secret is tried on."""

    salt: Hash
    digest: Hash

    def opens(self, secret: str) -> bool:
        """Whether it was made for this secret. How long that takes says nothing of it."""
        return compare_digest(_digest(secret, self.salt), self.digest)


class Made(msgspec.Struct, frozen=True):
    """That a key was made, as it is recorded."""

    key_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    participant: str
    kind: str
    scopes: tuple[str, ...]
    label: str
    created_at: Instant
    expires_at: Instant | None
    by: str
    salt: Hash
    digest: Hash


class Revoked(msgspec.Struct, frozen=True):
    """That a key is refused from now on."""

    key_id: str
    by: str = ""


class KeyOptions(TypedDict, total=False):
    """What may be said about a new key beside what it must have."""

    expires_at: Instant | None
    """When it ends; None is never."""
    label: str
    """What it is for, in words."""
    by: str
    """Who has it made."""


DECOY = Lock("0" * 64, "0" * 64)
"""What a secret of no key is tried on, so that this takes as long."""


class Book:
    """The keys as their log tells of them."""

    def __init__(self) -> None:
        self.guarded = False
        self.keys: dict[str, Key] = {}
        self.locks: dict[str, Lock] = {}
        self.revoked: set[str] = set()
        """The keys whose revocation is recorded."""

    def note(self, envelope: Envelope) -> None:
        """Take one envelope in. One that cannot be understood still says that there was a key."""
        self.guarded = self.guarded or envelope.event_type == EV_KEY_CREATED
        try:
            if envelope.event_type == EV_KEY_CREATED:
                self.add(as_type(envelope.event_data, Made))
            elif envelope.event_type == EV_KEY_REVOKED:
                self.end(as_type(envelope.event_data, Revoked).key_id)
        except Malformed as error:
            log.warning("a record of %s at %s is passed over: %s", envelope.channel_id, envelope.sequence, error)

    def add(self, made: Made) -> Key:
        """A key more. Of an id that is known nothing changes."""
        self.guarded = True
        self.locks.setdefault(made.key_id, Lock(made.salt, made.digest))
        return self.keys.setdefault(
            made.key_id,
            Key(
                made.key_id,
                made.participant,
                made.kind,
                made.scopes,
                made.label,
                made.created_at,
                made.expires_at,
                revoked=False,
            ),
        )

    def refuse(self, key_id: str) -> Key:
        """Let a key open nothing any more, whatever is recorded of it."""
        self.keys[key_id] = msgspec.structs.replace(self.keys[key_id], revoked=True)
        return self.keys[key_id]

    def end(self, key_id: str) -> None:
        """A key is revoked, and it is recorded."""
        if key_id in self.keys:
            self.refuse(key_id)
            self.revoked.add(key_id)

    async def read(self, read: Read) -> bool:
        """Take a whole log in, as far as it can be read; False if it is damaged."""
        position = 0
        try:
            while envelopes := await read(position):
                for envelope in envelopes:
                    self.note(envelope)
                position = envelopes[-1].sequence
        except LogCorrupt:
            return False
        return True

    def doubt(self, channel_id: str) -> None:
        """This log is damaged: none of the keys so far opens anything any more, and there has been one."""
        self.guarded = True
        for key_id in self.keys:
            self.refuse(key_id)
        advice = "a revocation may be lost, so the keys made until then are refused; make new ones"
        log.warning("%s is damaged: %s", channel_id, advice)


class KeyRing:
    """Every key of a store, folded from its channel."""

    def __init__(self, channel: OwnChannel) -> None:
        self._channel = channel
        self._book = Book()

    async def load(self) -> None:
        """Read the channel."""
        book = Book()
        async for live in self._channel.volumes():
            if not await book.read(live.read) or live.damage is not None:
                book.doubt(live.state.channel_id)
        self._book = book

    @property
    def guarded(self) -> bool:
        """Whether any key was ever made: from then on nobody is let in without one."""
        return self._book.guarded

    @property
    def keys(self) -> list[Key]:
        """All that were ever made, oldest first."""
        return list(self._book.keys.values())

    async def make(
        self, participant: str, *, kind: str, scopes: Sequence[str], at: Instant, **options: Unpack[KeyOptions]
    ) -> tuple[str, Key]:
        """A new key, and its secret, which nobody can give out again. One participant may have several."""
        _check_options(options)
        expires_at, label, by = options.get("expires_at"), options.get("label", ""), options.get("by", "")
        wished = wished_key(participant, kind=kind, scopes=scopes, expires_at=expires_at, label=label, at=at)
        _check_words("by", by)
        self._check_namesakes(wished, at)
        key_id = self._new_id()
        secret = f"ak_{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
        KNOWN.know(secret)
        salt = secrets.token_hex(HASH_BYTES)
        made = Made(
            key_id,
            wished.participant,
            wished.kind,
            wished.scopes,
            wished.label,
            wished.created_at,
            wished.expires_at,
            by,
            salt,
            _digest(secret, salt),
        )
        await self._channel.say(EV_KEY_CREATED, data_of(made))
        return secret, self._book.add(made)

    async def revoke(self, key_id: str, *, by: str) -> Key:
        """Let a key open nothing any more, from this moment, also if it cannot be recorded now."""
        check_key_id(key_id)
        _check_words("by", by)
        book = self._book
        if key_id not in book.keys:
            raise UsageError(f"there is no key {key_id!r}")
        key = book.refuse(key_id)
        if key_id not in book.revoked:
            await self._channel.say(EV_KEY_REVOKED, data_of(Revoked(key_id, by)))
            book.revoked.add(key_id)
        return key

    def find(self, secret: str) -> Key | None:
        """The key that this secret is of, also if it is expired or revoked: look at its status. None if it is of none.

        It takes the same time whether there is a key of that id or not.
        """
        shape = SECRET.match(secret) if isinstance(secret, str) else None
        key_id = shape[1] if shape else ""
        opened = self._book.locks.get(key_id, DECOY).opens(secret if shape else "")
        if not opened:
            return None
        KNOWN.know(secret)
        return self._book.keys.get(key_id)

    def _new_id(self) -> str:
        while (key_id := secrets.token_hex(ID_BYTES)) in self._book.keys:
            continue
        return key_id

    def _check_namesakes(self, wished: Key, at: Instant) -> None:
        """Refuse a key for somebody who could not be the one whom other keys speak for."""
        for key in self._book.keys.values():
            if key.participant.lower() != wished.participant.lower() or key.status(at) != "active":
                continue
            if key.participant != wished.participant:
                raise BadName(f"{wished.participant!r} differs only in case from {key.participant!r}, who has a key")
            if key.kind != wished.kind:
                raise UsageError(
                    f"{key.participant!r} has the key {key.key_id} as kind {key.kind!r}, not {wished.kind!r};"
                    " say the same, or revoke that key first"
                )


def wished_key(
    participant: str,
    *,
    kind: str,
    scopes: Sequence[str],
    expires_at: Instant | None = None,
    label: str = "",
    at: Instant,
) -> Key:
    """The key that somebody wishes for, in good order and without an id; `UsageError` if there can be none like it."""
    check_name(participant)
    if kind not in KINDS:
        raise UsageError(f"no kind of a key's participant is called {shown(kind)}; there are: {', '.join(KINDS)}")
    wanted = _checked_scopes(scopes)
    _check_words("label", label)
    return Key("", participant, kind, wanted, label, at, _checked_expiry(expires_at, at), revoked=False)


def check_key_id(key_id: object) -> None:
    """Refuse what can be no key's id, without showing what may be a secret."""
    if isinstance(key_id, str) and key_id.startswith("ak_"):
        raise UsageError("this is a secret, or the beginning of one; give the 12 characters behind its 'ak_'")
    if not isinstance(key_id, str) or not KEY_ID.match(key_id):
        raise UsageError(f"{shown(key_id)} is no id of a key; it is 12 characters of 0-9 a-f")


async def keys_in(store: Store) -> list[Key]:
    """All keys of a store, oldest first, read without a hub."""
    book = Book()
    for number in count(1):
        channel_id = KEYS if number == 1 else f"{KEYS}-{number}"
        if await store.head(channel_id) == 0:
            break
        if not await book.read(_reading(store, channel_id)):
            book.doubt(channel_id)
    return list(book.keys.values())


def _reading(store: Store, channel_id: str) -> Read:
    async def read(position: int) -> Sequence[Envelope]:
        return (await store.read(channel_id, after=position)).envelopes

    return read


def _digest(secret: str, salt: str) -> str:
    return hashlib.blake2b(secret.encode(), key=bytes.fromhex(salt), digest_size=HASH_BYTES).hexdigest()


def _check_options(options: KeyOptions) -> None:
    unknown = options.keys() - KeyOptions.__optional_keys__
    if unknown:
        known = ", ".join(sorted(KeyOptions.__optional_keys__))
        raise UsageError(f"no option is called {shown(min(unknown))}; there are: {known}")


def _checked_scopes(scopes: object) -> tuple[str, ...]:
    """Each scope once, in our order."""
    known = ", ".join(SCOPES)
    if isinstance(scopes, str) or not isinstance(scopes, Sequence):
        raise UsageError(f"scopes is {shown(scopes)}; give a list of some of: {known}")
    for scope in scopes:
        if scope not in SCOPES:
            raise UsageError(f"no scope is called {shown(scope)}; there are: {known}")
    if not scopes:
        raise UsageError(f"a key without a scope opens nothing; give it some of: {known}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _checked_expiry(expires_at: object, at: Instant) -> Instant | None:
    if expires_at is None:
        return None
    try:
        moment = datetime.fromisoformat(expires_at) if isinstance(expires_at, str) else None
        until = instant(moment) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        until = None
    if until is None:
        how = "give a time with its zone, such as 2027-01-01T00:00:00Z, or None for never"
        raise UsageError(f"expires_at is {shown(expires_at)}; {how}")
    if until <= at:
        raise UsageError(f"expires_at is {until}, and it is {at} already; give a time to come")
    if until > after(at, LONGEST_LIFE):
        raise UsageError(
            f"expires_at is {until}, more than ten years from now; give an earlier time, or None for never"
        )
    return until


def _check_words(name: str, words: object) -> None:
    if not isinstance(words, str) or len(words) > LONGEST_LABEL:
        raise UsageError(f"{name} is {shown(words)}; give a text of at most {LONGEST_LABEL} characters")
    try:
        check_text(words)
    except Malformed as error:
        raise UsageError(f"{name} is {shown(words)}: {error}") from error
