"""The time of day, for a store that was given no clock of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from antiphon.core.instants import Instant, instant


class SystemNow:
    """The machine's clock."""

    def now(self) -> Instant:
        """This very moment."""
        return instant(datetime.now(UTC))
