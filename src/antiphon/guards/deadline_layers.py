"""The layers of deadlines: a call (step), a turn (stage) and a run, and which of their times is over first."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from antiphon.core.envelope import Instant, add_seconds
from antiphon.guards.deadline_memory import CountedSince

Layer = Literal["step", "stage", "run"]
LAYERS: tuple[Layer, ...] = ("step", "stage", "run")
MAX_CACHED_DEADLINES = 4096
LayerLimit = tuple[float | None, bool]
"""The seconds of a layer, and whether they are a default."""


class LayerDeadline(msgspec.Struct, frozen=True, gc=False):
    """When the time of a layer is over."""

    at: Instant
    layer: Layer
    since: Instant
    is_default: bool


def earlier(one: LayerDeadline | None, other: LayerDeadline | None) -> LayerDeadline | None:
    """The one that comes first; the first of two that come at once."""
    if one is None or other is None:
        return one or other
    return one if one.at <= other.at else other


def layer_deadline(layer: Layer, limit: LayerLimit, since: CountedSince | None) -> LayerDeadline | None:
    """When the time of a layer is over; None if it is not limited, or has not begun."""
    seconds, is_default = limit
    if since is None or seconds is None:
        return None
    begun = since.default if is_default else since.given
    return LayerDeadline(add_seconds(begun, seconds), layer, begun, is_default)


CountedLayer = tuple[LayerLimit, CountedSince | None]
"""The limit of a layer, and since when it counts."""


@lru_cache(maxsize=MAX_CACHED_DEADLINES)
def first_layer(stage: CountedLayer, run: CountedLayer) -> LayerDeadline | None:
    """The deadline of a turn, or that of its run if that comes first. All calls of the turn ask for it."""
    return earlier(layer_deadline("stage", *stage), layer_deadline("run", *run))
