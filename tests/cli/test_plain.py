import pytest

from antiphon.cli.table_layout import escape_unprintable, number_ranges, pluralize


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ("naïve 日本語\u3000語 👩\u200d🚒", "naïve 日本語\u3000語 👩\u200d🚒"),
        ("two\nlines\tand a tab", r"two\nlines\tand a tab"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("turned \u202eround", r"turned \u202eround"),
        ("half \udcff", r"half \udcff"),
        ("line\u2028end", r"line\u2028end"),
    ],
)
def test_nothing_invisible_is_printed(text: str, shown: str) -> None:
    assert escape_unprintable(text) == shown


def test_what_is_kept_is_kept_and_nothing_else() -> None:
    assert escape_unprintable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([], ""),
        ([7], "7"),
        ([7, 8], "7, 8"),
        ([7, 8, 9], "7–9"),
        ([9, 4, 2, 8, 7, 7], "2, 4, 7–9"),
        (range(1, 101), "1–100"),
    ],
)
def test_stretches(numbers: list[int], written: str) -> None:
    assert number_ranges(numbers) == written


def test_counted() -> None:
    assert [pluralize(1, "channel"), pluralize(0, "channel"), pluralize(1200, "copy", "copies")] == [
        "1 channel",
        "0 channels",
        "1,200 copies",
    ]
