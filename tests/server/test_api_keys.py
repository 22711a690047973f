"""The ring of keys: a fold like any other, whose secrets are nowhere."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
import string
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon import BadName, Hub, StoreUnavailable, UsageError
from antiphon.core.envelope import add_seconds
from antiphon.server.api_keys import KEY_SCOPES, SECRET_PATTERN, Key, KeyRing, keys_in, keys_of
from antiphon.store.urls import open_store
from antiphon.testing import ManualClock
from antiphon.testing.manual_clock import MANUAL_CLOCK_START
from tests.support.gated_store import GatedStore
from tests.support.hub_places import InMemory, OnDisk, Place
from tests.support.troubled_store import TroubledStore
from tests.support.waiting import let_others_run, soon

KEYS = "system:keys"
YEAR = 365 * 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Place:
    return InMemory(clock) if request.param == "memory" else OnDisk(tmp_path)


@pytest.fixture
async def ring(clock: ManualClock) -> AsyncIterator[KeyRing]:
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        yield await keys_of(hub)


async def make(ring: KeyRing, participant: str = "ada", *scopes: str, at: str = MANUAL_CLOCK_START) -> tuple[str, Key]:
    return await ring.make(participant, kind="human", scopes=scopes or ("read",), at=at)


async def recorded(hub: Hub) -> list[tuple[str, object]]:
    log = await hub.log(KEYS)
    return [(each.event_type, each.event_data.get("key_id")) for each in log if "key_id" in each.event_data]


# What a key is


async def test_a_secret_finds_its_key(ring: KeyRing) -> None:
    secret, key = await ring.make(
        "ada",
        kind="service",
        scopes=["write", "read", "read"],
        at=MANUAL_CLOCK_START,
        expires_at=add_seconds(MANUAL_CLOCK_START, 60),
        label="the CI",
    )
    found = Key(
        key.key_id,
        "ada",
        "service",
        ("read", "write"),
        "the CI",
        MANUAL_CLOCK_START,
        add_seconds(MANUAL_CLOCK_START, 60),
        revoked=False,
    )
    assert ring.find(secret) == key == found
    assert ring.keys == [key]
    assert re.fullmatch(r"ak_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", secret)
    assert secret.startswith(f"ak_{key.key_id}_")


async def test_no_two_secrets_are_alike(ring: KeyRing) -> None:
    made = [await make(ring) for _ in range(20)]
    assert len({secret.rpartition("_")[2] for secret, _ in made}) == 20
    assert ring.keys == [key for _, key in made]
    assert [ring.find(secret) for secret, _ in made] == ring.keys


async def test_whatever_is_no_secret_finds_nothing(ring: KeyRing) -> None:
    secret, key = await make(ring)
    _, other = await make(ring)
    tail = secret[len("ak_") + 12 :]
    assert ring.find(f"ak_{other.key_id}{tail}") is None
    assert ring.find(f"ak_{'0' * 12}{tail}") is None
    for strange in (
        "",
        "ak_",
        key.key_id,
        secret + "\n",
        " " + secret,
        secret + "A",
        secret.upper(),
        "é" * 59,
        "\ud800",
    ):
        assert ring.find(strange) is None
    for strange in (None, 7, secret.encode(), [secret]):
        assert ring.find(strange) is None  # type: ignore[arg-type]  # somebody will
    assert [ring.find(secret[:length]) for length in range(len(secret))] == [None] * len(secret)


async def test_one_altered_character_is_enough(ring: KeyRing) -> None:
    secret, key = await make(ring)
    for place, was in enumerate(secret):
        for other in set(string.ascii_letters + string.digits + "-_") - {was}:
            assert ring.find(secret[:place] + other + secret[place + 1 :]) is None
    assert ring.find(secret) == key


async def test_the_secret_of_another_store_finds_nothing(ring: KeyRing, clock: ManualClock) -> None:
    await make(ring)
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        theirs, _ = await make(await keys_of(hub))
    assert ring.find(theirs) is None


async def test_a_status_is_a_matter_of_time(ring: KeyRing) -> None:
    _, key = await ring.make(
        "ada", kind="human", scopes=["read"], at=MANUAL_CLOCK_START, expires_at=add_seconds(MANUAL_CLOCK_START, 60)
    )
    assert [key.status(add_seconds(MANUAL_CLOCK_START, seconds)) for seconds in (0, 59.999999, 60, 61)] == [
        "active"
    ] * 2 + ["expired"] * 2
    revoked = await ring.revoke(key.key_id, by="ada")
    assert [revoked.status(add_seconds(MANUAL_CLOCK_START, seconds)) for seconds in (0, 61)] == ["revoked"] * 2


async def test_an_expiry_of_another_zone_is_the_same_instant(ring: KeyRing) -> None:
    _, key = await ring.make(
        "ada", kind="human", scopes=["read"], at=MANUAL_CLOCK_START, expires_at="2026-06-01T02:00:00+02:00"
    )
    assert key.expires_at == "2026-06-01T00:00:00.000000Z"


async def test_rotation_has_two_keys_at_once(ring: KeyRing) -> None:
    (old_secret, old), (new_secret, new) = await make(ring), await make(ring)
    await ring.revoke(old.key_id, by="ada")
    first, second = ring.find(old_secret), ring.find(new_secret)
    assert first is not None
    assert first.status(MANUAL_CLOCK_START) == "revoked"
    assert second == new
    assert new.status(MANUAL_CLOCK_START) == "active"


async def test_a_ring_without_keys_is_open_and_then_never_again(ring: KeyRing) -> None:
    assert (ring.guarded, ring.keys) == (False, [])
    secret, key = await make(ring)
    await ring.revoke(key.key_id, by="ada")
    assert ring.guarded
    assert ring.find(secret) == ring.keys[0]


# Mistakes

MISTAKES = {
    "no name": ({"participant": "no name"}, BadName, "'no name' is no name"),
    "the hub": ({"participant": "hub"}, BadName, "taken by the hub itself"),
    "the system": ({"participant": "System"}, BadName, "taken by the hub itself"),
    "an agent": ({"kind": "agent"}, UsageError, "no kind of a key's participant is called 'agent'; there are: human,"),
    "no scope": ({"scopes": []}, UsageError, "a key without a scope opens nothing; give it some of: invoke, read"),
    "a strange scope": ({"scopes": ["read", "fly"]}, UsageError, "no scope is called 'fly'; there are: invoke, read"),
    "all": ({"scopes": ["all"]}, UsageError, "no scope is called 'all'"),
    "a scope alone": ({"scopes": "read"}, UsageError, "scopes is 'read'; give a list"),
    "a set of scopes": ({"scopes": {"read"}}, UsageError, "scopes is {'read'}; give a list"),
    "what is no time": ({"expires_at": "soon"}, UsageError, "expires_at is 'soon'; give a time with its zone"),
    "a time of no zone": ({"expires_at": "2027-01-01"}, UsageError, "give a time with its zone"),
    "a number": ({"expires_at": 7}, UsageError, "expires_at is 7; give a time"),
    "the past": ({"expires_at": "2025-01-01T00:00:00Z"}, UsageError, "it is 2026-01-01T00:00:00.000000Z already"),
    "now": ({"expires_at": MANUAL_CLOCK_START}, UsageError, "give a time to come"),
    "too late": (
        {"expires_at": add_seconds(MANUAL_CLOCK_START, 11 * YEAR)},
        UsageError,
        "more than ten years from now",
    ),
    "beyond time": ({"expires_at": "9999-12-31T23:59:59-12:00"}, UsageError, "give a time with its zone"),
    "a long label": ({"label": "x" * 101}, UsageError, "give a text of at most 100 characters"),
    "half a label": ({"label": "\ud800"}, UsageError, "half a surrogate pair"),
    "no label": ({"label": None}, UsageError, "label is None; give a text"),
    "nobody": ({"by": None}, UsageError, "by is None; give a text"),
    "a strange option": (
        {"expire_at": MANUAL_CLOCK_START},
        UsageError,
        "no option is called 'expire_at'; there are: by, expires_at",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_a_sentence_and_is_not_recorded(clock: ManualClock, mistake: str) -> None:
    wrong, kind, why = MISTAKES[mistake]
    wish = {"participant": "ada", "kind": "human", "scopes": ["read"], "at": MANUAL_CLOCK_START, **wrong}
    async with Hub.open("memory:", clock=clock, engine=None) as hub:
        with pytest.raises(kind, match=re.escape(why)):
            await (await keys_of(hub)).make(**wish)
        assert ((await keys_of(hub)).guarded, (await keys_of(hub)).keys) == (False, [])
        assert await hub.channels(system=True) == []


async def test_who_has_a_key_is_one_participant_of_one_kind(ring: KeyRing) -> None:
    _, key = await make(ring)
    with pytest.raises(BadName, match="'Ada' differs only in case from 'ada'"):
        await make(ring, "Ada")
    with pytest.raises(UsageError, match=f"'ada' has the key {key.key_id} as kind 'human', not 'service'"):
        await ring.make("ada", kind="service", scopes=["read"], at=MANUAL_CLOCK_START)
    await ring.revoke(key.key_id, by="ben")
    _, corrected = await ring.make("ada", kind="service", scopes=["read"], at=MANUAL_CLOCK_START)
    assert corrected.kind == "service"


async def test_ten_years_are_not_too_long(ring: KeyRing) -> None:
    _, key = await ring.make(
        "ada", kind="human", scopes=KEY_SCOPES, at=MANUAL_CLOCK_START, expires_at="2036-01-01T00:00:00Z"
    )
    assert key.status("2035-12-31T00:00:00.000000Z") == "active"


@pytest.mark.parametrize("key_id", ["0" * 12, "", "nonsense", "A" * 12, None, 7])
async def test_a_key_that_is_not_there_cannot_be_revoked(ring: KeyRing, key_id: str) -> None:
    await make(ring)
    with pytest.raises(UsageError, match=re.escape(repr(key_id))):
        await ring.revoke(key_id, by="ada")


async def test_a_secret_given_as_an_id_is_not_repeated(ring: KeyRing) -> None:
    secret, key = await make(ring)
    for given in (secret, secret[:20]):
        with pytest.raises(UsageError, match="this is a secret") as caught:
            await ring.revoke(given, by="ada")
        assert given not in str(caught.value)
    assert ring.keys == [key]


# The fold


async def test_folded_again_it_is_the_same(place: Place, clock: ManualClock) -> None:
    hub = await place.hub(clock)
    ring = await keys_of(hub)
    made = [await make(ring, name) for name in ("ada", "ben", "cleo")]
    for _ in range(2):
        await ring.revoke(made[1][1].key_id, by="ada")
    log, keys, found = await recorded(hub), ring.keys, [ring.find(secret) for secret, _ in made]
    ids = [key.key_id for key in keys]
    assert log == [*[("antiphon.key.created", key_id) for key_id in ids], ("antiphon.key.revoked", ids[1])]
    await hub.close()
    hub = await place.hub(clock)
    ring = await keys_of(hub)
    assert (ring.guarded, ring.keys, [ring.find(secret) for secret, _ in made]) == (True, keys, found)
    assert [key.status(MANUAL_CLOCK_START) for key in keys] == ["active", "revoked", "active"]
    assert (await ring.revoke(ids[1], by="ada")).revoked
    assert await recorded(hub) == log
    await hub.hydrate()
    assert ring.keys == keys
    await hub.close()


async def test_it_says_who_did_it(ring: KeyRing, clock: ManualClock) -> None:
    async with Hub.open("memory:", clock=clock) as hub:
        _, key = await (await keys_of(hub)).make("ada", kind="human", scopes=["read"], at=MANUAL_CLOCK_START, by="ops")
        await (await keys_of(hub)).revoke(key.key_id, by="boss")
        log = [each for each in await hub.log(KEYS) if "key_id" in each.event_data]
    assert [(each.sender_id, each.event_data["by"]) for each in log] == [("hub", "ops"), ("hub", "boss")]


async def test_nobody_takes_part_in_its_channel(clock: ManualClock) -> None:
    async with Hub.open("memory:", clock=clock) as hub:
        await make(await keys_of(hub))
        ada = await hub.register("ada", kind="human")
        with pytest.raises(UsageError, match="no channel"):
            await ada.channel(KEYS)
        assert await hub.channels() == []


async def test_a_key_that_could_not_be_recorded_is_none(clock: ManualClock) -> None:
    store = TroubledStore()
    hub = await Hub.over(store, clock=clock)
    store.fail("append", StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        await make(await keys_of(hub))
    assert ((await keys_of(hub)).guarded, (await keys_of(hub)).keys) == (False, [])
    await make(await keys_of(hub))
    assert len((await keys_of(hub)).keys) == 1
    await hub.close()


async def test_a_key_is_refused_before_its_revocation_is_recorded(clock: ManualClock) -> None:
    store = GatedStore(clock)
    hub = await Hub.over(store, clock=clock)
    ring = await keys_of(hub)
    secret, key = await make(ring)
    store.close_gate(KEYS)
    revoking = asyncio.ensure_future(ring.revoke(key.key_id, by="ada"))
    await let_others_run(1)
    found = ring.find(secret)
    assert found is not None
    assert found.status(MANUAL_CLOCK_START) == "revoked"
    revoking.cancel()
    store.let_pass()
    await asyncio.wait([revoking])
    await soon(ring.revoke(key.key_id, by="ada"))
    assert ("antiphon.key.revoked", key.key_id) in await recorded(hub)
    await hub.close()


async def test_a_revocation_that_could_not_be_recorded_holds_and_can_be_repeated(clock: ManualClock) -> None:
    store = TroubledStore()
    hub = await Hub.over(store, clock=clock)
    ring = await keys_of(hub)
    _, key = await make(ring)
    store.fail("append", StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable):
        await ring.revoke(key.key_id, by="ada")
    assert ring.keys[0].revoked
    assert len(await recorded(hub)) == 1
    await ring.revoke(key.key_id, by="ada")
    assert len(await recorded(hub)) == 2
    await hub.close()


# Damage


def damage(path: Path, sequence: int) -> None:
    with sqlite3.connect(path) as connection:
        changed = connection.execute(
            "UPDATE log SET body = CAST('{}' AS BLOB) WHERE channel = ? AND seq = ?", (KEYS, sequence)
        ).rowcount
    connection.close()
    assert changed == 1


@pytest.mark.parametrize("sequence", [1, 2, 3, 4, 5])
async def test_in_a_damaged_log_no_key_is_good(
    tmp_path: Path, clock: ManualClock, sequence: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost behind the damage may have been the revocation of any of them."""
    path = tmp_path / "team.db"
    async with Hub.open(f"sqlite:///{path}", clock=clock) as hub:
        made = [await make(await keys_of(hub), name) for name in ("ada", "ben")]
        await (await keys_of(hub)).revoke(made[0][1].key_id, by="ops")
        assert len(await hub.log(KEYS)) == 5
    damage(path, sequence)
    fresh = ""
    for _ in range(2):
        async with Hub.open(f"sqlite:///{path}", clock=clock) as hub:
            ring = await keys_of(hub)
            assert ring.guarded
            assert {key.status(MANUAL_CLOCK_START) for secret, _ in made if (key := ring.find(secret))} <= {"revoked"}
            if not fresh:
                fresh, key = await make(ring, "ops")
            found = ring.find(fresh)
            assert found is not None
            assert found.status(MANUAL_CLOCK_START) == "active"
            keys = ring.keys
    assert "system:keys is damaged" in caplog.text
    store = await open_store(f"sqlite:///{path}", read_only=True)
    assert await keys_in(store) == keys
    await store.close()


async def test_a_record_that_is_not_understood_still_guards(place: Place, clock: ManualClock) -> None:
    hub = await place.hub(clock)
    channel = (await keys_of(hub))._channel
    await channel.say("antiphon.key.created", {"key_id": "../../etc", "by": "a later version"})
    await channel.say("antiphon.key.revoked", {"key_id": 7})
    await channel.say("antiphon.key.revoked", {"key_id": "0" * 12})
    await hub.close()
    hub = await place.hub(clock)
    assert ((await keys_of(hub)).guarded, (await keys_of(hub)).keys) == (True, [])
    await hub.close()


# Secrecy


async def test_a_secret_is_nowhere(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with Hub.open(f"sqlite:///{tmp_path / 'team.db'}", clock=clock) as hub:
        ring = await keys_of(hub)
        secret, key = await make(ring)
        assert ring.find(secret) == key
        shown = [repr(ring), repr(key), str(key), repr(ring.keys), repr(vars(ring)), repr(vars(ring._table))]
        shown.append(repr(await hub.log(KEYS)))
        await ring.revoke(key.key_id, by="ada")
    shape = SECRET_PATTERN.match(secret)
    assert shape is not None
    words = secret.rpartition(f"{shape[1]}_")[2]
    assert len(words) == 43
    assert words not in caplog.text
    assert [text for text in shown if words[:8] in text] == []
    files = [path for path in tmp_path.iterdir() if path.is_file()]
    assert tmp_path / "team.db" in files
    assert key.key_id.encode() in (tmp_path / "team.db").read_bytes()
    assert [path for path in files if words[:8].encode() in path.read_bytes()] == []
