"""A server without keys: its token, the file that keeps it, and when it stops to count."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import httpx2
import pytest

from antiphon import Agent, Hub, UsageError
from antiphon.server.server_token import find_token, read_token, running_servers
from antiphon.server.serving import serving
from tests.server.test_entry import GUARDED, OPEN, ROUTES, ask, path_of, reason_of
from tests.support.served_hub import echo, served_hub


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_every_verb_wants_the_token() -> None:
    async with served_hub(Agent("support", echo), open=False) as here:
        bare, known = await here.client(), await here.client(here.served.token)
        wrong: list[dict[str, str] | dict[str, bytes]] = [{}, bearer("at_" + "A" * 43), bearer(here.served.token + "x")]
        wrong.append({"authorization": "Bearer é".encode()})
        for verb in GUARDED:
            for headers in wrong:
                refused = await bare.request(verb.method, path_of(verb), headers=headers, json={})
                reason = "bad_key" if headers else "no_key"
                assert (refused.status_code, reason_of(refused)) == (401, reason), verb.name
                assert "printed it when it started" in refused.text
            assert (await ask(known, verb)).status_code not in (401, 403), verb.name
        assert {verb.name for verb in ROUTES if verb not in GUARDED} == set(OPEN)
        assert (await bare.get("/health")).status_code == 200


async def test_the_token_is_for_this_machine_alone() -> None:
    """A page from elsewhere whose name leads here, or that asks across origins, is refused also with the token."""
    async with served_hub(open=False) as here:
        client = await here.client(here.served.token)
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}):
            refused = await client.get("/agents", headers=headers)
            assert (refused.status_code, reason_of(refused)) == (401, "no_key"), headers
        for header in ({"x-api-key": here.served.token}, bearer(here.served.token)):
            assert (await (await here.client()).get("/agents", headers=header)).status_code == 200
        for place in ("token", "access_token", "key"):
            assert (await (await here.client()).get("/agents", params={place: here.served.token})).status_code == 401
        assert here.served.token not in repr(here.served)


async def test_the_token_is_kept_beside_the_store_for_its_owner(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/team.db", tmp_path / "team.db-token"
    seen = []
    before = os.umask(0)  # whatever the process allows to others
    try:
        for _ in range(2):
            async with served_hub(url=url, open=False) as here:
                seen.append(here.served.token)
                assert stat.S_IMODE(file.stat().st_mode) == 0o600
                assert file.read_text() == f"{here.served.token}\n"
                refused = await (await here.client()).get("/agents")
                assert "it is in the file 'team.db-token' beside the store" in refused.json()["error"]["message"]
                assert str(tmp_path) not in refused.text
    finally:
        os.umask(before)
    assert seen[0] == seen[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["team.db", "team.db-owner", "team.db-token"]


def readable(file: Path) -> None:
    file.write_text("at_" + "A" * 43)
    file.chmod(0o644)


def linked(file: Path) -> None:
    other = file.with_name("other")
    other.touch(0o600)
    file.symlink_to(other)


def empty(file: Path) -> None:
    file.touch(0o600)


def folder(file: Path) -> None:
    file.mkdir(0o700)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (readable, "its mode is 644"),
        (linked, "it is a link"),
        (empty, "holds no token"),
        (folder, "no file of its own"),
    ],
)
async def test_a_file_that_cannot_be_trusted_is_refused(tmp_path: Path, spoil: object, told: str) -> None:
    file = tmp_path / "team.db-token"
    spoil(file)  # type: ignore[operator]
    async with Hub.open(f"sqlite:///{tmp_path}/team.db") as hub:
        with pytest.raises(UsageError, match=told) as refused:
            async with serving(hub, port=0):
                pass
    assert "remove the file, and the next start makes a new token" in str(refused.value)
    assert "at_A" not in str(refused.value)


async def test_the_first_key_ends_the_token(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/team.db", tmp_path / "team.db-token"
    async with served_hub(url=url, open=False) as here:
        owner = await here.client(here.served.token)
        made = await owner.post("/keys", json={"participant": "ann", "scopes": ["operate"]})
        assert made.status_code == 201
        assert (await owner.get("/keys")).status_code == 401
        assert not file.exists()
        ann = await here.client(made.json()["secret"])
        assert (await ann.get("/keys")).status_code == 200
    file.write_text(f"{here.served.token}\n")  # as from a backup
    file.chmod(0o600)
    async with served_hub(url=url, open=False) as here:
        assert here.served.token == ""
        assert not file.exists()


async def test_an_open_server_wants_nothing_from_this_machine(caplog: pytest.LogCaptureFixture) -> None:
    async with served_hub(open=True) as here:
        assert here.served.token == ""
        assert (await (await here.client()).get("/agents")).status_code == 200
        refused = await (await here.client()).get("/agents", headers={"host": "agents.example.org"})
        assert refused.status_code == 401
    assert "a proxy in front of it opens it to everybody" in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3"])
async def test_an_open_server_listens_to_this_machine_alone(host: str) -> None:
    async with Hub.open("memory:") as hub:
        with pytest.raises(UsageError, match="an open server wants no key; listen on 127"):
            async with serving(hub, host=host, port=0, open=True):
                pass


async def test_a_server_with_keys_cannot_be_open() -> None:
    async with served_hub() as here:
        await here.key("ann")
        with pytest.raises(UsageError, match="a server with keys cannot be open"):
            async with serving(here.hub, port=0, open=True):
                pass


async def test_a_server_is_announced_while_it_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/team.db"
    async with served_hub(url=url, open=False) as here:
        assert find_token(here.served.url) == here.served.token
        assert find_token(here.served.url.replace("127.0.0.1", "localhost")) == here.served.token
        assert find_token(f"http://127.0.0.1:{here.port + 1}") is None
        assert find_token(f"https://agents.example.org:{here.port}") is None
        assert str(tmp_path / "team.db") in [each.store for each in running_servers()]
    assert find_token(here.served.url) is None
    assert read_token(f"{tmp_path}/team.db-token") == here.served.token  # and yet it is not given away


def unwritable(state: Path) -> None:
    (state / "antiphon").write_text("no directory")


def shared(state: Path) -> None:
    (state / "antiphon").mkdir()
    (state / "antiphon" / "servers").mkdir()
    (state / "antiphon" / "servers").chmod(0o777)


@pytest.mark.parametrize("spoil", [unwritable, shared])
async def test_a_state_directory_that_cannot_be_used_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spoil: object
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spoil(tmp_path)  # type: ignore[operator]
    async with served_hub(url=f"sqlite:///{tmp_path}/team.db", open=False) as here:
        assert find_token(here.served.url) is None
        assert (await (await here.client(here.served.token)).get("/agents")).status_code == 200
    assert "give it to them in ANTIPHON_KEY" in caplog.text


async def test_a_store_in_memory_leaves_nothing_behind() -> None:
    async with served_hub(open=False) as here, httpx2.AsyncClient(base_url=here.served.url) as http:
        assert find_token(here.served.url) is None
        assert (await http.get("/agents", headers=here.served.headers)).status_code == 200
