"""What tests of the server share."""

import pytest

from antiphon.engines.local import LocalEngine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is closed gives the turns under way no time."""
    defaults = LocalEngine.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "grace", 0.01)
