"""JSON to search with."""

from __future__ import annotations

from hypothesis import strategies as st

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
numbers = st.integers(-(10**100) + 1, 10**100 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | words
json_values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)
json_objects = st.dictionaries(words, json_values, max_size=4)
