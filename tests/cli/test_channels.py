import json

import pytest

from tests.cli.conftest import Run, Town


def ids(stdout: str) -> list[str]:
    return [json.loads(line)["channel_id"] for line in stdout.splitlines()]


def test_a_table_in_stable_columns(run: Run, town: Town) -> None:
    result = run("channels", "--store", town.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{'CHANNEL':36}  TYPE          STATUS  PARTICIPANTS    CLOSED BECAUSE",
        f"{town.council}  discussion    closed  ada, ben, cleo  adjourned",
        f"{town.tavern}  conversation  active  ben, cleo       -",
    ]


def test_json_is_one_object_a_line(run: Run, town: Town) -> None:
    result = run("channels", "--store", town.url, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["channel_id"] for row in rows] == [town.council, town.tavern]
    assert rows[0]["status"] == "closed"
    assert rows[0]["close_reason"] == "adjourned"
    assert rows[0]["participants"] == ["ada", "ben", "cleo"]


def test_filters(run: Run, town: Town) -> None:
    def listed(*words: str) -> list[str]:
        return ids(run("channels", "--store", town.url, "--json", *words).stdout)

    assert listed("--status", "active") == [town.tavern]
    assert listed("--participant", "ada") == [town.council]
    assert listed("--participant", "ben", "--status", "closed") == [town.council]
    assert listed("--participant", "zoe") == []
    assert listed("--system") == [town.council, town.tavern, "system:audit", "system:registry"]


@pytest.mark.parametrize("words", [(), ("--json",)], ids=" ".join)
def test_nothing_is_nothing_when_piped_and_is_said_beside_it(words: tuple[str, ...], run: Run, town: Town) -> None:
    result = run("channels", "--store", town.url, "--status", "expired", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "There are no such channels here.\n")
    result = run("channels", "--store", town.url, "--tenant", "other", *words)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "There are no channels here.\n")
