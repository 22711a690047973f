"""Figures, and how they are printed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One thing measured. `bar` says what it must be at least or at most, when it is a promise."""

    name: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}".strip()
        if self.at_most is not None:
            return f"≤ {self.at_most:g} {self.unit}".strip()
        return ""

    @property
    def shown(self) -> str:
        digits = 0 if abs(self.value) >= 1000 else 1 if abs(self.value) >= 10 else 3
        return f"{self.value:,.{digits}f} {self.unit}".strip()


def table(figures: list[Figure]) -> str:
    """The figures as a Markdown table."""
    rows = [
        f"| {figure.name} | {figure.shown} | {figure.bar} | {_verdict(figure)} | {figure.note} |" for figure in figures
    ]
    return "\n".join(["| what | measured | bar | holds | note |", "|---|---|---|---|---|", *rows])


def _verdict(figure: Figure) -> str:
    if not figure.bar:
        return ""
    return "yes" if figure.holds else "**no**"
