"""A model that a provider answers for, or a server that speaks as one does: what all of them have in common.

Rule 1: it is a value. Two that were set up alike are equal, whatever connections each of them holds.
Rule 2: nothing that it shows of itself has the key in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from antiphon.agents.messages import Reply, Request
from antiphon.models.asking import Asking, Dialect
from antiphon.models.endpoint import Endpoint
from antiphon.models.options import checked_name, shown_options
from antiphon.models.pool import Pool
from antiphon.models.prices import Price


@dataclass(frozen=True, init=False, repr=False)
class HostedModel:
    """A model of a provider's, ready to be asked."""

    provider: ClassVar[str] = ""
    name: str
    price: Price | None
    _endpoint: Endpoint = field(hash=False)
    _options: Mapping[str, object] = field(hash=False)
    _asking: Asking = field(compare=False)

    def _set_up(
        self, name: str, endpoint: Endpoint, dialect: Dialect, *, price: Price | None, options: Mapping[str, object]
    ) -> None:
        asking = Asking(checked_name(name), endpoint, dialect, price, Pool())
        values = {"name": name, "price": price, "_endpoint": endpoint, "_options": options, "_asking": asking}
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        url = "" if self._endpoint.base_url is None else f", base_url={self._endpoint.base_url!r}"
        return f"{type(self).__name__}({self.name!r}{url}{shown_options(self._options)})"

    async def __call__(self, request: Request) -> Reply:
        """The model's answer; a `ModelError` if there is none."""
        return await self._asking.answer(request)

    def stream(self, request: Request) -> AsyncIterator[str | Reply]:
        """The answer's text as it comes, then the whole answer."""
        return self._asking.stream(request)

    def check(self) -> None:
        """`UsageError` if there is no key, or no address that can be used."""
        self._endpoint.address()

    async def close(self) -> None:
        """Close the connections, as soon as nobody is being answered. Asked again, the model opens new ones."""
        await self._asking.pool.close()
