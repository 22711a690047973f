"""`antiphon keys`, as it is typed: at a store, beside a hub, and at a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import Result

from antiphon import Hub
from antiphon.cli.server_client import SECRET_VARIABLE
from antiphon.core.envelope import seconds_between
from antiphon.hub.clock import SystemClock
from antiphon.server.api_keys import KEY_SCOPES, SECRET_PATTERN, keys_of
from tests.cli.conftest import Run, typed
from tests.cli.test_commands import sentence_of

ADA = ("keys", "make", "--participant", "ada")
DAY = 86_400


@pytest.fixture(autouse=True)
def without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)


def made(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.stderr
    answer: dict[str, object] = json.loads(result.stdout)
    assert SECRET_PATTERN.match(str(answer["secret"]))
    key = answer["key"]
    assert isinstance(key, dict)
    return key


# At a store


def test_a_life_in_a_shell(tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    done = typed(*ADA, "--kind", "human", "--scope", "read", "--scope", "invoke", "--label", "my laptop", store)
    assert done.returncode == 0
    secret = done.stdout.removesuffix("\n")
    shape = SECRET_PATTERN.match(secret)
    assert shape is not None
    key_id = shape[1]
    assert done.stderr == (
        f"This is the key {key_id} of ada, good for invoke, read without end."
        " It is not shown again; send it as `Authorization: Bearer …`.\n"
    )
    listed = typed("keys", "list", store)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.splitlines() == [
        "KEY           PARTICIPANT  KIND   STATUS  EXPIRES  SCOPES       LABEL",
        f"{key_id}  ada          human  active  never    invoke,read  my laptop",
    ]
    for _ in range(2):
        revoked = typed("keys", "revoke", key_id, store)
        assert (revoked.returncode, revoked.stdout, revoked.stderr) == (0, f"revoked  {key_id} of ada\n", "")
    rows = [json.loads(line) for line in typed("keys", "list", store, "--json").stdout.splitlines()]
    assert [(row["key_id"], row["status"], row["revoked"]) for row in rows] == [(key_id, "revoked", True)]
    assert secret not in listed.stdout + json.dumps(rows)


async def test_what_is_made_opens_the_hub_of_the_store(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    done = typed(*ADA, "--scope", "all", "--expires", "30d", ANTIPHON_STORE=store)
    async with Hub.open(f"sqlite:///{store}") as hub:
        assert (await keys_of(hub)).guarded
        key = (await keys_of(hub)).find(done.stdout.strip())
    assert key is not None
    assert (key.participant, key.kind, key.scopes) == ("ada", "service", KEY_SCOPES)
    assert f"until {key.expires_at}" in done.stderr


@pytest.mark.parametrize(
    ("expires", "seconds"), [("12h", DAY / 2), ("30d", 30 * DAY), ("8w", 56 * DAY)], ids=["12h", "30d", "8w"]
)
def test_a_key_ends_after_a_while(run: Run, tmp_path: Path, expires: str, seconds: float) -> None:
    before = SystemClock().now()
    key = made(run(*ADA, "--scope", "read", "--expires", expires, "--json", str(tmp_path / "t.db")))
    lasts = seconds_between(before, str(key["expires_at"]))
    assert seconds <= lasts <= seconds + seconds_between(before, SystemClock().now())


@pytest.mark.parametrize("day", ["{year}-01-01", "{year}-01-01T01:00:00+01:00", "{year}-01-01T00:00"])
def test_a_key_ends_on_a_day(run: Run, tmp_path: Path, day: str) -> None:
    year = int(SystemClock().now()[:4]) + 1
    key = made(run(*ADA, "--scope", "read", "--expires", day.format(year=year), "--json", str(tmp_path / "t.db")))
    assert key["expires_at"] == f"{year}-01-01T00:00:00.000000Z"
    assert (key["status"], key["label"], key["scopes"]) == ("active", "", ["read"])


def test_tenants_have_their_own(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    made(run(*ADA, "--scope", "read", "--json", "--tenant", "north", store))
    assert run("keys", "list", store, "--tenant", "north").stdout.count("ada") == 1
    nothing = run("keys", "list", store)
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "There are no keys here.\n")


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "nobody": (("make", "--scope", "read"), "Missing option '--participant'"),
    "no scope": (("make", "--participant", "ada"), "Missing option '--scope'"),
    "a strange scope": (("make", "--participant", "ada", "--scope", "fly"), "'fly' is not one of 'invoke'"),
    "no name": (("make", "--participant", "a da", "--scope", "read"), "'a da' is no name"),
    "the hub": (("make", "--participant", "hub", "--scope", "read"), "taken by the hub itself"),
    "an agent": (("make", "--participant", "ada", "--scope", "read", "--kind", "agent"), "'agent' is not one of"),
    "the past": (("make", "--participant", "ada", "--scope", "read", "--expires", "2020-01-01"), "give a time to come"),
    "soon": (("make", "--participant", "ada", "--scope", "read", "--expires", "soon"), "'soon' is neither like 12h"),
    "at once": (("make", "--participant", "ada", "--scope", "read", "--expires", "0h"), "give a time to come"),
    "too late": (("make", "--participant", "ada", "--scope", "read", "--expires", "600w"), "more than ten years"),
    "for ever": (("make", "--participant", "ada", "--scope", "read", "--expires", "999999w"), "more than ten years"),
    "a long label": (("make", "--participant", "ada", "--scope", "read", "--label", "x" * 101), "at most 100"),
    "no id": (("revoke", "ADA"), "'ADA' is no id of a key"),
    "a tenant": (("make", "--participant", "ada", "--scope", "read", "--tenant", "../x"), "'../x' is no name"),
    "no command": (("lst",), "No such command 'lst'"),
    "no server": (("list", "--server", "localhost:8000"), "no URL such as http://127.0.0.1:8484"),
    "no encryption": (("list", "--server", "http://example.org"), "use https"),
    "a password": (("list", "--server", "http://ada:hush@localhost"), "'http://ada:…@localhost' is no URL"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_makes_no_store(run: Run, tmp_path: Path, mistake: str) -> None:
    words, why = MISTAKES[mistake]
    store = [] if "--server" in words else [str(tmp_path / "team.db")]
    result = run("keys", *words, *store)
    assert result.exit_code == 2
    assert why in sentence_of(result)
    assert "hush" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("make", *ADA[2:], "--scope", "read"), ("list",), ("revoke", "0" * 12)])
def test_a_store_has_to_be_named_and_only_one_place(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run("keys", *words)
    assert result.exit_code == 2
    assert "no store is named" in sentence_of(result)
    for two in ([str(tmp_path / "t.db")], ["--store", str(tmp_path / "t.db")], ["--tenant", "north"]):
        result = run("keys", *words, "--server", "http://127.0.0.1:1", *two)
        assert result.exit_code == 2
        assert "and a server are named" in sentence_of(result)
    result = run("keys", *words, "memory:")
    assert result.exit_code == 2
    assert "'memory:' lives and dies with the hub" in sentence_of(result)


@pytest.mark.parametrize("words", [("list",), ("revoke", "0" * 12)], ids=" ".join)
def test_a_store_that_is_not_there_is_made_only_for_a_key(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    result = run("keys", *words, str(tmp_path / "nowhere.db"))
    assert result.exit_code == 1
    assert "nowhere.db does not exist" in sentence_of(result)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_is_not_there_cannot_be_revoked(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    key = made(run(*ADA, "--scope", "read", "--json", store))
    result = run("keys", "revoke", "0" * 12, store)
    assert result.exit_code == 1
    assert "there is no key '000000000000'" in sentence_of(result)
    revoked = json.loads(run("keys", "revoke", str(key["key_id"]), store, "--json").stdout)
    assert revoked == {**key, "revoked": True, "status": "revoked"}


def test_a_secret_given_as_an_id_is_not_repeated(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    secret = run(*ADA, "--scope", "read", store).stdout.strip()
    result = run("keys", "revoke", secret, store)
    assert result.exit_code == 2
    assert "this is a secret" in sentence_of(result)
    assert secret not in result.output


def test_what_was_recorded_cannot_colour_a_screen(run: Run, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    made(run(*ADA, "--scope", "read", "--label", "\x1b[31mred", "--json", store))
    assert r"\x1b[31mred" in run("keys", "list", store).stdout


@pytest.mark.parametrize("name", ["make", "list", "revoke"])
def test_each_explains_itself(run: Run, name: str) -> None:
    result = run("keys", name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: antiphon keys {name} ")
    assert {"--json", "--server", "--store"} <= set(re.findall(r"--\w+", result.stdout))
    assert name in run("keys").stdout


# Beside a running hub

HOLD = """
import asyncio, sys
from antiphon import Hub
async def hold():
    async with Hub.open(sys.argv[1]):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(hold())
"""


@pytest.fixture
def held(run: Run, tmp_path: Path) -> Iterator[tuple[str, str, int]]:
    """A store with one key, the key's id, and the process whose hub has the store."""
    store = str(tmp_path / "team.db")
    key = made(run(*ADA, "--scope", "read", "--json", store))
    command = [sys.executable, "-c", HOLD, f"sqlite:///{store}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield store, str(key["key_id"]), process.pid
        process.communicate()
    assert process.returncode == 0


def test_beside_a_hub_keys_are_only_listed(held: tuple[str, str, int], tmp_path: Path) -> None:
    store, key_id, pid = held
    listed = typed("keys", "list", store)
    assert listed.returncode == 0
    assert key_id in listed.stdout
    for words in ([*ADA, "--scope", "read"], ["keys", "revoke", key_id]):
        done = typed(*words, store)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            f"Error: {os.path.realpath(store)} is in use by a hub (process {pid}), and only that hub can change its"
            " keys; if it is a server, ask it: --server URL, with a key of the scope operate in ANTIPHON_KEY;"
            " or stop it first\n"
        )


# At a server

OPERATOR = "ak_" + "a" * 12 + "_" + "B" * 43
SECRET_OF_BEN = "ak_" + "b" * 12 + "_" + "C" * 43
KEY = {
    "key_id": "b" * 12,
    "participant": "ben",
    "kind": "human",
    "scopes": ["read"],
    "label": "",
    "created_at": "2026-01-01T00:00:00.000000Z",
    "expires_at": None,
    "revoked": False,
}


class Desk:
    """A server that answers what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None, object]] = []
        self.status, self.answer = 200, b""
        desk = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                asked = (self.command, self.path, self.headers.get("authorization"), json.loads(body) if body else None)
                desk.asked.append(asked)
                self.send_response(desk.status)
                self.send_header("content-length", str(len(desk.answer)))
                self.end_headers()
                self.wfile.write(desk.answer)

            do_POST = do_DELETE = do_GET  # noqa: N815  # named by the base class

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._serving.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answers(self, answer: object, status: int = 200) -> None:
        self.status, self.answer = status, json.dumps(answer).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_a_server_makes_a_key(run: Run, desk: Desk) -> None:
    desk.answers({"secret": SECRET_OF_BEN, "key": KEY}, 201)
    words = ("keys", "make", "--participant", "ben", "--kind", "human", "--scope", "read", "--server", desk.url + "/")
    done = typed(*words, ANTIPHON_KEY=OPERATOR, ANTIPHON_STORE="elsewhere.db")
    assert (done.returncode, done.stdout) == (0, SECRET_OF_BEN + "\n")
    assert done.stderr.startswith(f"This is the key {KEY['key_id']} of ben, good for read without end.")
    wish = {"participant": "ben", "kind": "human", "scopes": ["read"], "expires_at": None, "label": ""}
    assert desk.asked == [("POST", "/keys", f"Bearer {OPERATOR}", wish)]
    assert made(run(*words, "--json", ANTIPHON_KEY=OPERATOR)) == {**KEY, "status": "active"}


def test_no_proxy_reads_what_stays_here(run: Run, desk: Desk) -> None:
    desk.answers({"keys": [KEY]})
    result = run("keys", "list", "--server", desk.url, http_proxy="http://127.0.0.1:9", no_proxy="")
    assert (result.exit_code, len(desk.asked)) == (0, 1)


def test_a_server_lists_and_revokes(run: Run, desk: Desk) -> None:
    desk.answers({"keys": [KEY, {**KEY, "key_id": "c" * 12, "revoked": True, "anything": "else"}]})
    result = run("keys", "list", "--server", desk.url, "--json", ANTIPHON_KEY=OPERATOR + "\n")
    assert [json.loads(line)["status"] for line in result.stdout.splitlines()] == ["active", "revoked"]
    desk.answers({**KEY, "revoked": True})
    result = run("keys", "revoke", KEY["key_id"], "--server", desk.url)
    assert (result.exit_code, result.stdout) == (0, f"revoked  {KEY['key_id']} of ben\n")
    assert desk.asked == [
        ("GET", "/keys", f"Bearer {OPERATOR}", None),
        ("DELETE", f"/keys/{KEY['key_id']}", None, None),
    ]


def test_what_a_server_refuses_is_its_sentence(run: Run, desk: Desk) -> None:
    desk.answers({"error": {"reason": "wrong_scope", "message": "this needs the scope \x1b 'operate'"}}, 403)
    result = run("keys", "list", "--server", desk.url, ANTIPHON_KEY=OPERATOR)
    assert result.exit_code == 1
    assert sentence_of(result) == r"Error: this needs the scope \x1b 'operate'"
    assert OPERATOR not in result.output


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (502, b"<html>", "answers 502; is it a server of Antiphon?"),
        (307, b"", "answers 307; is it a server of Antiphon?"),
        (200, b"", "answers GET /keys with something else"),
        (200, json.dumps({"keys": [{"secret": SECRET_OF_BEN}]}).encode(), "answers GET /keys with something else"),
    ],
)
def test_what_is_no_server_of_ours_is_a_sentence(run: Run, desk: Desk, status: int, answer: bytes, why: str) -> None:
    desk.status, desk.answer = status, answer
    result = run("keys", "list", "--server", desk.url)
    assert result.exit_code == 1
    assert why in sentence_of(result)
    assert SECRET_OF_BEN not in result.output


def test_a_server_that_is_not_there_is_a_sentence(run: Run, desk: Desk) -> None:
    desk.close()
    result = run("keys", "list", "--server", desk.url)
    assert result.exit_code == 1
    assert f"{desk.url} cannot be asked (" in sentence_of(result)


@pytest.mark.parametrize("strange", ["hunter2", OPERATOR + "é", "ak_half"])
def test_what_is_no_key_is_neither_sent_nor_shown(run: Run, desk: Desk, strange: str) -> None:
    result = run("keys", "list", "--server", desk.url, ANTIPHON_KEY=strange)
    assert result.exit_code == 2
    assert "what ANTIPHON_KEY holds is no key" in sentence_of(result)
    assert strange not in result.output
    assert desk.asked == []


def test_mistakes_are_found_before_a_server_is_asked(run: Run, desk: Desk) -> None:
    for words in ([*ADA, "--scope", "read", "--expires", "2020-01-01"], ["keys", "revoke", OPERATOR]):
        assert run(*words, "--server", desk.url, ANTIPHON_KEY=OPERATOR).exit_code == 2
    assert desk.asked == []


LOADED = "import sys; from antiphon.cli import keys_command; print('httpx2' in sys.modules, 'starlette' in sys.modules)"


def test_what_speaks_http_is_loaded_on_use() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
