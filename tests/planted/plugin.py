"""Plants the fault that the environment names, before any test is collected."""

import os

import pytest

NAME = "ANTIPHON_PLANTED_FAULT"


def pytest_configure() -> None:
    from tests.planted.faults import FAULTS

    FAULTS[os.environ[NAME]].plant(pytest.MonkeyPatch())
