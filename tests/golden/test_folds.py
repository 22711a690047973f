"""The logs that were stored once fold to what they folded to then."""

from __future__ import annotations

import json

import pytest

from antiphon.core.ruleset import FOLD_VERSION
from tests.golden.folds import FOLDS, NAMES, record_of

RECORDED = json.loads(FOLDS.read_text())
ADVICE = (
    "old snapshots would be used although logs fold to other values now: raise FOLD_VERSION in core/ruleset.py, "
    "then run `python -m tests.golden.folds` and commit folds.json; if the change was not meant, undo it"
)


def test_the_recorded_folds_are_of_this_version() -> None:
    assert RECORDED["version"] == FOLD_VERSION, (
        f"FOLD_VERSION is {FOLD_VERSION}, and folds.json was written at {RECORDED['version']}: "
        "run `python -m tests.golden.folds` and commit folds.json"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_log_folds_to_what_is_recorded(name: str) -> None:
    found = record_of(name)
    for part, digest in RECORDED["channels"][name].items():
        assert found[part] == digest, f"the {part} of {name} has changed at FOLD_VERSION {FOLD_VERSION}: {ADVICE}"
