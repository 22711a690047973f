"""Requests to models as they are written for their digests, which are recorded with each call.

Rule 1: a request is written once for its digest and for what guards count of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from antiphon.agents.messages import Request, ToolSpec
from antiphon.core.codec import encode_sorted, to_json

MAX_CACHED_SPECS = 256


def encode_request(request: Request) -> bytes:
    """What the digest of a request is made of."""
    parts = [request.system, request.past, request.exchange, _encoded_specs(request.specs), request.output]
    return encode_sorted(parts)


_specs_by_identity: OrderedDict[int, tuple[Sequence[ToolSpec], msgspec.Raw]] = OrderedDict()


def _encoded_specs(specs: Sequence[ToolSpec]) -> msgspec.Raw:
    """The tools of a request as they are encoded in its digest. They are the same in every turn of an agent."""
    known = _specs_by_identity.get(id(specs))
    if known is not None and known[0] is specs:  # an id may be used again, once its object is gone
        return known[1]
    encoded = msgspec.Raw(encode_sorted(specs))
    _specs_by_identity[id(specs)] = specs, encoded
    if len(_specs_by_identity) > MAX_CACHED_SPECS:
        _specs_by_identity.popitem(last=False)
    return encoded


def sent_bytes(request: Request, encoded: bytes) -> int:
    """The bytes of a request without its history, as `encode_request` has written it."""
    return len(encoded) - len(to_json(request.past)) - len(",")
