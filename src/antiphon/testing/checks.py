"""Checks that anybody's part can be put through.

    async def test_my_store(tmp_path):
        await check_store(lambda: MyStore.open(tmp_path / "log"))

Rule 1: a check opens the store itself, uses channels of its own, and closes it again; it can be run any number of
        times, and alone.
Rule 2: a check that fails says in a sentence which promise is broken.
Rule 3: a check sees only what the protocol shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from antiphon.testing.envelopes import OpenStore
from antiphon.testing.index_checks import (
    check_attendance,
    check_clock_set_back,
    check_due,
    check_erase,
    check_index,
    check_leases,
    check_marks,
    check_presence,
    check_snapshots,
)
from antiphon.testing.log_checks import (
    check_abandoned_calls,
    check_all_or_nothing,
    check_arguments,
    check_batches_are_taken_as_given,
    check_compare_and_set,
    check_contiguous,
    check_durable,
    check_ids,
    check_limits,
    check_read_your_acknowledgement,
    check_repeatable,
    check_tail,
)

STORE_CHECKS: tuple[Callable[[OpenStore], Awaitable[None]], ...] = (
    check_compare_and_set,
    check_all_or_nothing,
    check_contiguous,
    check_durable,
    check_ids,
    check_repeatable,
    check_read_your_acknowledgement,
    check_tail,
    check_abandoned_calls,
    check_batches_are_taken_as_given,
    check_limits,
    check_arguments,
    check_leases,
    check_clock_set_back,
    check_attendance,
    check_due,
    check_index,
    check_marks,
    check_snapshots,
    check_erase,
    check_presence,
)


async def check_store(open_store: OpenStore) -> None:
    """Put a store through every check. `open_store` is called for each, and again to see what was kept."""
    for check in STORE_CHECKS:
        await check(open_store)
