"""A server killed under retrying clients, and restarted after an outage of a day, answers every request once."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.serve_kill import ServerKilling, kill_server

KILLS, SCALE = 5, 0.1


@pytest.fixture(scope="module")
def killing(tmp_path_factory: pytest.TempPathFactory) -> ServerKilling:
    return asyncio.run(kill_server(tmp_path_factory.mktemp("server"), KILLS, seed=20261118, scale=SCALE))


def test_turns_were_in_progress_at_kills_and_outages(killing: ServerKilling) -> None:
    assert (killing.kills, killing.outages) == (KILLS, 3)
    assert killing.takeovers > 0


def test_every_request_is_answered_once(killing: ServerKilling) -> None:
    assert killing.answered == killing.requests
    assert (killing.lost, killing.doubled, killing.given_up) == (0, 0, 0), killing.reasons


def test_every_transfer_and_payment_takes_effect_once(killing: ServerKilling) -> None:
    assert killing.unsafe > 0
    assert killing.payments > 0
    assert (killing.wrong_transfers, killing.wrong_payments, killing.repeated_finished_calls) == (0, 0, 0)
