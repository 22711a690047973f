"""What the stored logs fold to: `python -m tests.golden.folds` writes `folds.json` anew.

Rule 1: that is done when the fold of old logs has changed on purpose, after `FOLD_VERSION` was raised; never without.
Rule 2: the stores and logs stay as they are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec

from antiphon import Envelope
from antiphon.core.ruleset import FOLD_VERSION, Fold, Ruleset
from antiphon.orchestration.catalogue import ruleset_for

STORES = Path(__file__).parent / "stores"
FOLDS = Path(__file__).parent / "folds.json"
CHANNELS: dict[str, dict[str, str]] = json.loads((STORES / "channels.json").read_text())
"""For each store the ids of its channels by their names."""
NAMES = [name for channels in CHANNELS.values() for name in channels]


def read_log(name: str) -> list[Envelope]:
    """The log of a channel, as it was when its store was written."""
    lines = (STORES / f"{name}.jsonl").read_text().splitlines()
    return [Envelope(**json.loads(line)) for line in lines]


def ruleset_of(log: list[Envelope]) -> Ruleset:
    """The ruleset with which a hub loads the channel of this log."""
    created = log[0].event_data
    if created.get("erased"):
        return ruleset_for("erased", {})
    knobs = created.get("knobs", {})
    assert isinstance(knobs, dict)
    return ruleset_for(str(created["type"]), knobs)


def record_of(name: str) -> dict[str, str]:
    """The version of a channel's ruleset, under which its snapshots are stored, and the digests of its fold."""
    log = read_log(name)
    ruleset = ruleset_of(log)
    fold = ruleset.fold_all(ruleset.begin(log[0].channel_id), log)
    return {"ruleset": ruleset.version, **digests_of(fold)}


def digests_of(fold: Fold) -> dict[str, str]:
    """The digests of a channel's state and of what its adapter and guards remember."""
    return {"state": _digest(fold.state), "memories": _digest(fold.memories)}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(msgspec.to_builtins(value), sort_keys=True).encode()).hexdigest()


if __name__ == "__main__":
    folds = {"version": FOLD_VERSION, "channels": {name: record_of(name) for name in NAMES}}
    FOLDS.write_text(json.dumps(folds, indent=1) + "\n")
