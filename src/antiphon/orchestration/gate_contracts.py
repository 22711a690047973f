"""What one gate obliges a stage to give, and what the gate of the next stage wants of it.

Rule 1: a contract is checked before anything runs: a field that the next stage needs, and that no gate before it
        obliges, is a mistake in the flow and not of an agent.
"""

from __future__ import annotations

from antiphon.core.envelope import Json
from antiphon.guards.gates import Gate

MAX_REFERENCES = 32


def obliged_fields(gate: Gate) -> frozenset[str]:
    """The fields that every subject has that passes this gate."""
    schema = gate.schema if isinstance(gate.schema, dict) else {}
    return frozenset(gate.required) | _required_by(schema, schema, MAX_REFERENCES)


def uncovered_artifacts(gate: Gate, following: Gate) -> tuple[str, ...]:
    """The fields that the gate of the next stage wants, and that this gate does not oblige."""
    return tuple(sorted(obliged_fields(following) - obliged_fields(gate)))


def _required_by(schema: Json, root: Json, references: int) -> frozenset[str]:
    """The names in `required`, also by a reference and in each part of `allOf`."""
    found = {name for name in _listed(schema.get("required")) if isinstance(name, str)}
    for part in _listed(schema.get("allOf")):
        found |= _required_by(part, root, references) if isinstance(part, dict) else frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and references:
        target: object = root
        for step in reference.removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        found |= _required_by(target, root, references - 1) if isinstance(target, dict) else frozenset()
    return frozenset(found)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []
