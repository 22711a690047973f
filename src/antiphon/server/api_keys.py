"""API keys: how a client authenticates at a server. They are folded from the channel `system:keys`.

Rule 1: a secret is given out once, when its key is made. Only a keyed hash of it is recorded.
Rule 2: invalid input is refused before anything is recorded.
Rule 3: in doubt a key is refused: while its revocation may not have been recorded, and if its log is damaged, where a
        revocation may be lost.
Rule 4: once a key was made the ring stays guarded, even if all keys are revoked.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from hmac import compare_digest
from itertools import count
from typing import Annotated, Literal, TypedDict, Unpack, get_args

import msgspec

from antiphon.core.codec import Malformed, as_type, check_text
from antiphon.core.envelope import Envelope, Instant, add_seconds, check_name, to_instant
from antiphon.core.errors import BadName, LogCorrupt, UsageError
from antiphon.core.event_data import data_of
from antiphon.core.text import describe
from antiphon.hub.known_secrets import KNOWN_SECRETS
from antiphon.hub.system_channels import SystemChannel
from antiphon.runtime.arguments import check_option_names
from antiphon.runtime.hub import Hub
from antiphon.store.paging import ReadLogPage, all_envelopes, log_page_reader
from antiphon.store.protocol import Store

logger = logging.getLogger("antiphon.server")

KEYS_CHANNEL = "system:keys"
EV_KEY_CREATED = "antiphon.key.created"
EV_KEY_REVOKED = "antiphon.key.revoked"

KeyScope = Literal["invoke", "read", "write", "approve", "operate"]
KeyHolderKind = Literal["human", "service"]
KEY_SCOPES: tuple[str, ...] = get_args(KeyScope)
KEY_HOLDER_KINDS: tuple[str, ...] = get_args(KeyHolderKind)
MAX_KEY_TEXT_CHARS = 100
MAX_KEY_LIFE_SECONDS = 3653 * 86_400.0
"""The longest time from creation to expiry: ten years."""

SECRET_PATTERN = re.compile(r"ak_([0-9a-f]{12})_[A-Za-z0-9_-]{43}\Z")
KEY_ID_PATTERN = re.compile(r"[0-9a-f]{12}\Z")
KEY_ID_BYTES, KEY_SECRET_BYTES, KEY_HASH_BYTES = 6, 32, 32

KeyStatus = Literal["active", "expired", "revoked"]
HexDigest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


class KeyFields(msgspec.Struct, frozen=True):
    """What is known of a key from its creation on."""

    key_id: str
    participant: str
    """The participant this key authenticates as."""
    kind: str
    scopes: tuple[str, ...]
    label: str
    created_at: Instant
    expires_at: Instant | None


class Key(KeyFields, frozen=True):
    """A key without its secret."""

    revoked: bool

    def status(self, at: Instant) -> KeyStatus:
        """The status at this time."""
        if self.revoked:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= at else "active"


class KeyCreated(KeyFields, frozen=True):
    """The recorded creation of a key."""

    key_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    by: str
    salt: HexDigest
    digest: HexDigest


class KeyRevoked(msgspec.Struct, frozen=True):
    """The recorded revocation of a key."""

    key_id: str
    by: str = ""


class NewKeyOptions(TypedDict, total=False):
    """Optional settings of a new key."""

    expires_at: Instant | None
    """When it expires; None for never."""
    label: str
    """A description of its purpose."""
    by: str
    """The participant that makes it."""


DECOY_HASH = ("0" * 64, "0" * 64)
"""Compared with the secret of an unknown key, so that this takes as long as a known one."""


class KeyTable:
    """The keys as folded from their log."""

    def __init__(self) -> None:
        self.guarded = False
        self.keys: dict[str, Key] = {}
        self.hashes: dict[str, tuple[str, str]] = {}
        """Salt and digest of each secret."""
        self.revoked: set[str] = set()
        """The keys whose revocation is recorded."""

    def note(self, envelope: Envelope) -> None:
        """Fold one envelope. A creation that cannot be decoded still guards the ring."""
        self.guarded = self.guarded or envelope.event_type == EV_KEY_CREATED
        try:
            if envelope.event_type == EV_KEY_CREATED:
                self.add(as_type(envelope.event_data, KeyCreated))
            elif envelope.event_type == EV_KEY_REVOKED:
                key_id = as_type(envelope.event_data, KeyRevoked).key_id
                if key_id in self.keys:
                    self.refuse(key_id)
                    self.revoked.add(key_id)
        except Malformed as error:
            logger.warning("a record of %s at %s is passed over: %s", envelope.channel_id, envelope.sequence, error)

    def add(self, made: KeyCreated) -> Key:
        """Add a key, unless its id is known."""
        self.guarded = True
        self.hashes.setdefault(made.key_id, (made.salt, made.digest))
        return self.keys.setdefault(made.key_id, as_type({**data_of(made), "revoked": False}, Key))

    def refuse(self, key_id: str) -> Key:
        """Refuse a key from now on, recorded or not."""
        self.keys[key_id] = msgspec.structs.replace(self.keys[key_id], revoked=True)
        return self.keys[key_id]

    async def read(self, read: ReadLogPage) -> bool:
        """Fold a whole log as far as it can be read; False if it is damaged."""
        try:
            async for envelope in all_envelopes(read):
                self.note(envelope)
        except LogCorrupt:
            return False
        return True

    def doubt(self, channel_id: str) -> None:
        """Refuse all keys so far, because this log is damaged."""
        self.guarded = True
        for key_id in self.keys:
            self.refuse(key_id)
        advice = "a revocation may be lost, so the keys made until then are refused; make new ones"
        logger.warning("%s is damaged: %s", channel_id, advice)


class KeyRing:
    """Every key of a store, folded from its channel."""

    def __init__(self, channel: SystemChannel, table: KeyTable) -> None:
        self._channel, self._table = channel, table

    @property
    def guarded(self) -> bool:
        """Whether any key was ever made: from then on every request needs one."""
        return self._table.guarded

    @property
    def keys(self) -> list[Key]:
        """All that were ever made, oldest first."""
        return list(self._table.keys.values())

    async def make(
        self, participant: str, *, kind: str, scopes: Sequence[str], at: Instant, **options: Unpack[NewKeyOptions]
    ) -> tuple[str, Key]:
        """A new key and its secret, which is not stored. One participant may have several keys."""
        check_option_names(options, NewKeyOptions.__optional_keys__)
        expires_at, label, by = options.get("expires_at"), options.get("label", ""), options.get("by", "")
        wished = draft_key(participant, kind=kind, scopes=scopes, expires_at=expires_at, label=label, at=at)
        _check_key_text("by", by)
        self._check_namesakes(wished, at)
        while (key_id := secrets.token_hex(KEY_ID_BYTES)) in self._table.keys:
            continue
        secret = f"ak_{key_id}_{secrets.token_urlsafe(KEY_SECRET_BYTES)}"
        KNOWN_SECRETS.know(secret)
        salt = secrets.token_hex(KEY_HASH_BYTES)
        hashed = {"salt": salt, "digest": _secret_digest(secret, salt)}
        made = as_type({**data_of(wished), "key_id": key_id, "by": by, **hashed}, KeyCreated)
        await self._channel.say(EV_KEY_CREATED, data_of(made))
        return secret, self._table.add(made)

    async def revoke(self, key_id: str, *, by: str) -> Key:
        """Refuse a key from this moment, even if that cannot be recorded now."""
        check_key_id(key_id)
        _check_key_text("by", by)
        table = self._table
        if key_id not in table.keys:
            raise UsageError(f"there is no key {key_id!r}")
        key = table.refuse(key_id)
        if key_id not in table.revoked:
            await self._channel.say(EV_KEY_REVOKED, data_of(KeyRevoked(key_id, by)))
            table.revoked.add(key_id)
        return key

    def find(self, secret: str) -> Key | None:
        """The key of this secret, also if expired or revoked: check its status. None if there is none.

        It takes the same time whether a key of that id exists or not.
        """
        shape = SECRET_PATTERN.match(secret) if isinstance(secret, str) else None
        key_id = shape[1] if shape else ""
        salt, digest = self._table.hashes.get(key_id, DECOY_HASH)
        if not compare_digest(_secret_digest(secret if shape else "", salt), digest):
            return None
        KNOWN_SECRETS.know(secret)
        return self._table.keys.get(key_id)

    def _check_namesakes(self, wished: Key, at: Instant) -> None:
        """Refuse a key whose participant conflicts with that of an active key in case or kind."""
        for key in self._table.keys.values():
            if key.participant.lower() != wished.participant.lower() or key.status(at) != "active":
                continue
            if key.participant != wished.participant:
                raise BadName(f"{wished.participant!r} differs only in case from {key.participant!r}, who has a key")
            if key.kind != wished.kind:
                raise UsageError(
                    f"{key.participant!r} has the key {key.key_id} as kind {key.kind!r}, not {wished.kind!r};"
                    " say the same, or revoke that key first"
                )


def draft_key(
    participant: str, *, kind: str, scopes: Sequence[str], expires_at: Instant | None, label: str, at: Instant
) -> Key:
    """The key as asked for, validated and without an id; `UsageError` if it is invalid."""
    check_name(participant)
    if kind not in KEY_HOLDER_KINDS:
        raise UsageError(
            f"no kind of a key's participant is called {describe(kind)}; there are: {', '.join(KEY_HOLDER_KINDS)}"
        )
    wanted = _ordered_scopes(scopes)
    _check_key_text("label", label)
    return Key("", participant, kind, wanted, label, at, _check_expiry(expires_at, at), revoked=False)


def check_key_id(key_id: object) -> None:
    """`UsageError` if this is not a key id. A secret given by mistake is not repeated in the message."""
    if isinstance(key_id, str) and key_id.startswith("ak_"):
        raise UsageError("this is a secret, or the beginning of one; give the 12 characters behind its 'ak_'")
    if not isinstance(key_id, str) or not KEY_ID_PATTERN.match(key_id):
        raise UsageError(f"{describe(key_id)} is no id of a key; it is 12 characters of 0-9 a-f")


async def keys_of(hub: Hub) -> KeyRing:
    """The keys of a hub, read from its store when they are first asked for."""
    core = hub.core
    async with core.locks.setdefault(KEYS_CHANNEL, asyncio.Lock()):
        ring = core.system_folds.get(KEYS_CHANNEL)
        if not isinstance(ring, KeyRing):
            channel = SystemChannel(KEYS_CHANNEL, core.channels)
            core.system_folds[KEYS_CHANNEL] = ring = KeyRing(channel, await _table_of(channel))
        return ring


async def _table_of(channel: SystemChannel) -> KeyTable:
    """The keys of the channel and its successors."""
    table = KeyTable()
    async for live in channel.segments():
        if not await table.read(live.read) or live.damage is not None:
            table.doubt(live.state.channel_id)
    return table


async def keys_in(store: Store) -> list[Key]:
    """All keys of a store, oldest first, read without a hub."""
    table = KeyTable()
    for number in count(1):
        channel_id = KEYS_CHANNEL if number == 1 else f"{KEYS_CHANNEL}-{number}"
        if await store.head(channel_id) == 0:
            break
        if not await table.read(log_page_reader(store, channel_id)):
            table.doubt(channel_id)
    return list(table.keys.values())


def _secret_digest(secret: str, salt: str) -> str:
    return hashlib.blake2b(secret.encode(), key=bytes.fromhex(salt), digest_size=KEY_HASH_BYTES).hexdigest()


def _ordered_scopes(scopes: object) -> tuple[str, ...]:
    """Each scope once, in the order of `KEY_SCOPES`."""
    known = ", ".join(KEY_SCOPES)
    if isinstance(scopes, str) or not isinstance(scopes, Sequence):
        raise UsageError(f"scopes is {describe(scopes)}; give a list of some of: {known}")
    for scope in scopes:
        if scope not in KEY_SCOPES:
            raise UsageError(f"no scope is called {describe(scope)}; there are: {known}")
    if not scopes:
        raise UsageError(f"a key without a scope opens nothing; give it some of: {known}")
    return tuple(scope for scope in KEY_SCOPES if scope in scopes)


def _check_expiry(expires_at: object, at: Instant) -> Instant | None:
    if expires_at is None:
        return None
    try:
        moment = datetime.fromisoformat(expires_at) if isinstance(expires_at, str) else None
        until = to_instant(moment) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        until = None
    if until is None:
        how = "give a time with its zone, such as 2027-01-01T00:00:00Z, or None for never"
        raise UsageError(f"expires_at is {describe(expires_at)}; {how}")
    if until <= at:
        raise UsageError(f"expires_at is {until}, and it is {at} already; give a time to come")
    if until > add_seconds(at, MAX_KEY_LIFE_SECONDS):
        raise UsageError(
            f"expires_at is {until}, more than ten years from now; give an earlier time, or None for never"
        )
    return until


def _check_key_text(name: str, words: object) -> None:
    if not isinstance(words, str) or len(words) > MAX_KEY_TEXT_CHARS:
        raise UsageError(f"{name} is {describe(words)}; give a text of at most {MAX_KEY_TEXT_CHARS} characters")
    try:
        check_text(words)
    except Malformed as error:
        raise UsageError(f"{name} is {describe(words)}: {error}") from error
