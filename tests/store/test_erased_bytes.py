"""After an erasure no byte of the content is left, wherever SQLite had moved the rows it was in."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from antiphon.core.events import EV_CHANNEL_CLOSED, EV_TEXT, ChannelClosed, Text
from antiphon.store.protocol import Snapshot
from antiphon.store.sqlite import SqliteStore
from antiphon.store.verification import verify_store
from antiphon.testing.store_fixtures import hub_envelope, opening_envelopes

MARK, FINE = "MARKERmarkerMARKER", "fine"
SEEDS = range(30) if os.environ.get("ANTIPHON_PROOF") == "1" else [5]


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_left_of_rows_that_were_moved(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = await SqliteStore.open(
        tmp_path / "team.db", settle_after=dice.choice([10, 200, 4000]), synchronous="NORMAL"
    )
    names = [f"{dice.randrange(10**8)}-c" for _ in range(60)]
    words = {name: FINE if place % 2 else MARK for place, name in enumerate(names)}
    heads = dict.fromkeys(names, 2)
    for place, name in enumerate(names):
        people = (f"{words[name]}{place}", "y" * dice.randrange(1, 40), f"{words[name]}q")
        await store.append(name, opening_envelopes(name, *people), expected=0)
    for _ in range(1500):
        name = dice.choice(names)
        await _say(store, name, heads, words[name], dice)
    for name in names:
        closing = hub_envelope(
            name, heads[name] + 1, EV_CHANNEL_CLOSED, event=ChannelClosed(words[name] * dice.randrange(1, 9))
        )
        await store.append(name, [closing], expected=heads[name])
    for name in names[::2]:
        await store.erase(name)
    assert {file.name: file.read_bytes().count(MARK.encode()) for file in tmp_path.iterdir()} == dict.fromkeys(
        (file.name for file in tmp_path.iterdir()), 0
    )
    assert (await verify_store(store)).problems == []
    await store.close()


async def _say(store: SqliteStore, name: str, heads: dict[str, int], word: str, dice: random.Random) -> None:
    head, count = heads[name], dice.choice([1, 1, 2, 3])
    batch = [
        hub_envelope(name, head + place, EV_TEXT, event=Text(word * dice.choice([1, 5, 20, 300])))
        for place in range(1, count + 1)
    ]
    await store.append(name, batch, expected=head)
    heads[name] = head + count
    if dice.random() < 0.2:
        blob = (word * dice.choice([1, 10, 500, 3000])).encode()
        await store.put_snapshot(name, Snapshot(heads[name], "v", blob))
