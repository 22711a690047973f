"""Checks of the settings that several transports have."""

from __future__ import annotations

from antiphon.core.errors import UsageError
from antiphon.core.text import describe
from antiphon.hub.known_secrets import KNOWN_SECRETS

MIN_SHARED_SECRET_CHARS = 16


def check_shared_secret(secret: object) -> str:
    """The secret, hidden from now on; `UsageError`, without it, if it is invalid."""
    advice = "give a random text, as secrets.token_urlsafe(32) makes it"
    if not isinstance(secret, str):
        raise UsageError(f"the secret of a transport is a {type(secret).__name__}; {advice}")
    if len(secret) < MIN_SHARED_SECRET_CHARS:
        said = f"the secret of a transport has {len(secret)} characters, not at least {MIN_SHARED_SECRET_CHARS}"
        raise UsageError(f"{said}; {advice}")
    KNOWN_SECRETS.know(secret)
    return secret


def check_timeout(timeout: object) -> float:
    """The timeout in seconds; `UsageError` if it is invalid."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise UsageError(f"the timeout of a transport is {describe(timeout)}; give a number of seconds above 0")
    return float(timeout)
