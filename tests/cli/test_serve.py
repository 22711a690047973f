"""`antiphon serve` as a user runs it: a process that is asked over HTTP, and stopped."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from antiphon.server.limits import ServerLimits
from tests.cli.conftest import Run, typed
from tests.support.signals import heed_ctrl_c

TEAM = """
from antiphon import Agent, says

async def model(request):
    heard = [message.text for message in request.history if message.role == "user"]
    return says(f"heard {len(heard)}: {heard[-1]}")

agents = [Agent("support", model=model, description="Answers."), Agent("sales", model=model)]
"""


@pytest.fixture
def team(tmp_path: Path) -> Path:
    path = tmp_path / "team.py"
    path.write_text(TEAM)
    return path


@contextmanager
def served(*words: str, stop: int = signal.SIGTERM) -> Iterator[dict[str, object]]:
    """The server as a process; it must end in good order."""
    surroundings = {name: value for name, value in os.environ.items() if name != "ANTIPHON_STORE"}
    command = [sys.executable, "-m", "antiphon", "serve", *words, "--port", "0", "--json"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=surroundings,
        preexec_fn=heed_ctrl_c,
    )
    assert process.stdout is not None
    try:
        begun = json.loads(process.stdout.readline())
        yield {**begun, "pid": process.pid}
        process.send_signal(stop)
        _, complaints = process.communicate(timeout=20)
        assert (process.returncode, complaints) == (0, "")
    finally:
        process.kill()
        process.communicate()


def client(begun: dict[str, object]) -> httpx2.Client:
    """A client that shows the token of a server without keys."""
    return httpx2.Client(base_url=str(begun["url"]), headers={"authorization": f"Bearer {begun['token']}"})


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_agents_of_a_file_are_asked_until_it_is_stopped(team: Path, stop: int) -> None:
    with served(str(team), stop=stop) as begun, client(begun) as http:
        assert (begun["agents"], begun["store"], begun["keys"]) == (["support", "sales"], "memory:", False)
        reply = http.post("/agents/support/invoke", json={"text": "Hello"})
        assert (reply.status_code, reply.json()["text"]) == (200, "heard 1: Hello")
        assert [each["name"] for each in http.get("/agents").json()["agents"]] == ["support", "sales"]


def test_a_thread_goes_on_after_a_restart(team: Path, tmp_path: Path) -> None:
    words = (str(team), "--store", str(tmp_path / "team.db"))
    for place, said in enumerate(("first", "second"), start=1):
        with served(*words) as begun, client(begun) as http:
            reply = http.post("/agents/support/invoke", json={"text": said, "thread_id": "t"})
            assert reply.json()["text"] == f"heard {place}: {said}"


def test_a_key_made_on_the_command_line_guards_it(team: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    made = typed("keys", "make", "--participant", "ann", "--scope", "invoke", "--store", store)
    assert made.returncode == 0, made.stderr
    with served(str(team), "--store", store) as begun, httpx2.Client(base_url=str(begun["url"])) as http:
        assert begun["keys"] is True
        assert http.post("/agents/support/invoke", json={"text": "Hello"}).status_code == 401
        http.headers["authorization"] = f"Bearer {made.stdout.strip()}"
        assert http.post("/agents/support/invoke", json={"text": "Hello"}).status_code == 200
        assert http.get("/channels").status_code == 403


def test_a_running_server_makes_keys_for_the_command_line(team: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "team.db")
    operator = typed("keys", "make", "--participant", "ops", "--scope", "all", "--store", store).stdout.strip()
    with served(str(team), "--store", store) as begun:
        url = str(begun["url"])
        made = typed(
            "keys", "make", "--participant", "ann", "--scope", "invoke", "--server", url, ANTIPHON_KEY=operator
        )
        assert made.returncode == 0, made.stderr
        with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {made.stdout.strip()}"}) as http:
            assert http.post("/agents/support/invoke", json={"text": "Hello"}).status_code == 200
        listed = typed("keys", "list", "--server", url, "--json", ANTIPHON_KEY=operator)
        assert "ann" in listed.stdout


def test_without_keys_a_request_needs_the_token_beside_the_store(team: Path, tmp_path: Path) -> None:
    with served(str(team), "--store", str(tmp_path / "team.db")) as begun:
        url = str(begun["url"])
        assert httpx2.get(f"{url}/agents").status_code == 401
        assert httpx2.get(f"{url}/health").status_code == 200
        kept = (tmp_path / "team.db-token").read_text().strip()
        assert (begun["token"], begun["keys"]) == (kept, False)
        assert httpx2.get(f"{url}/agents", headers={"authorization": f"Bearer {kept}"}).status_code == 200


def test_what_it_prints_can_be_copied(team: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "antiphon", "serve", str(team), "--store", str(tmp_path / "t.db"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    patience = threading.Timer(20, process.kill)
    patience.start()
    try:
        copied = next(line for line in process.stdout if line.strip().startswith("curl "))
        header, url = re.fullmatch(r"\s*curl -H 'Authorization: (Bearer at_\S+)' (\S+)\n", copied).groups()  # type: ignore[union-attr]
        assert httpx2.get(url, headers={"authorization": header}).status_code == 200
        process.terminate()
        assert (process.wait(20), process.stderr.read()) == (0, "")  # type: ignore[union-attr]
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def test_keys_are_made_with_the_token_of_the_server_that_runs(team: Path, tmp_path: Path) -> None:
    """By its address, and by its store, with nothing set."""
    store = str(tmp_path / "team.db")
    with served(str(team), "--store", store) as begun:
        url = str(begun["url"])
        listed = typed("keys", "list", "--server", url, ANTIPHON_KEY="")
        assert (listed.returncode, listed.stderr) == (0, "There are no keys here.\n")
        waiting = typed("approvals", "--server", url, ANTIPHON_KEY="")
        assert waiting.returncode == 0, waiting.stderr
        made = typed("keys", "make", "--participant", "ops", "--scope", "all", "--store", store, ANTIPHON_KEY="")
        assert made.returncode == 0, made.stderr
        key = made.stdout.strip()
        refused = typed("keys", "list", "--server", url, ANTIPHON_KEY="")  # the token is void from now on
        assert (refused.returncode, "set ANTIPHON_KEY" in refused.stderr) == (1, True)
        assert "ops" in typed("keys", "list", "--server", url, ANTIPHON_KEY=key).stdout
        ended = typed("keys", "revoke", key.split("_")[1], "--store", store, ANTIPHON_KEY=key)
        assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "team.db-token").exists()


def test_the_token_of_a_server_that_was_killed_is_not_given_away(team: Path, tmp_path: Path) -> None:
    words = ["serve", str(team), "--store", str(tmp_path / "team.db"), "--port", "0", "--json"]
    process = subprocess.Popen([sys.executable, "-m", "antiphon", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    process.kill()
    process.communicate()
    heard: list[str] = []
    with listening(int(url.rpartition(":")[2]), heard):
        typed("keys", "list", "--server", url, ANTIPHON_KEY="")
    assert heard
    assert "authorization" not in heard[0].lower()


@contextmanager
def listening(port: int, heard: list[str]) -> Iterator[None]:
    """Another program, at the address where a server was, that hears one request."""
    with socket.create_server(("127.0.0.1", port)) as sock:

        def hear() -> None:
            caller, _ = sock.accept()
            with caller:
                heard.append(caller.recv(65536).decode())

        thread = threading.Thread(target=hear)
        thread.start()
        yield
        thread.join(20)


def test_an_open_server_says_so(team: Path) -> None:
    command = [sys.executable, "-m", "antiphon", "serve", str(team), "--port", "0", "--json", "--open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        begun = json.loads(process.stdout.readline())
        assert begun["token"] is None
        assert httpx2.get(f"{begun['url']}/agents").status_code == 200
        process.terminate()
        assert "a proxy in front of it opens it to everybody" in process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of another process can be read on Linux alone")
def test_the_soft_limit_of_open_files_is_raised(team: Path) -> None:
    """1,024 is what most shells give, and not room for the connections that are promised."""
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, own[1]))  # a process inherits it
    try:
        with served(str(team)) as begun:
            soft, hard = resource.prlimit(int(str(begun["pid"])), resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)
    assert (soft, hard) == (2 * ServerLimits().connections, own[1])


def test_an_open_server_listens_to_this_machine_alone(run: Run, team: Path) -> None:
    refused = run("serve", str(team), "--host", "0.0.0.0", "--port", "0", "--open")
    assert refused.exit_code == 1
    assert "an open server wants no key; listen on 127.0.0.1" in refused.output


def test_it_listens_to_this_machine_alone_without_keys(run: Run, team: Path) -> None:
    refused = run("serve", str(team), "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 1
    assert "there are no keys; make one first: antiphon keys make" in refused.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere.py",), "there is no file 'nowhere.py'"),
        (("--port", "70000"), "70000"),
        (("--store", "ftp://x"), "ftp"),
        (("--host", "203.0.113.300"), "203.0.113.300"),
    ],
)
def test_what_is_wrong_is_a_sentence(run: Run, words: tuple[str, ...], told: str) -> None:
    refused = run("serve", *words)
    assert refused.exit_code in (1, 2)
    assert told in refused.output
    assert "Traceback" not in refused.output


def test_a_port_that_is_taken_is_a_sentence(run: Run, team: Path) -> None:
    with served(str(team)) as begun:
        port = str(begun["url"]).rpartition(":")[2]
        refused = run("serve", str(team), "--port", port)
    assert refused.exit_code == 1
    assert f"port {port}" in refused.output


def test_a_missing_key_of_a_provider_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "real.py"
    path.write_text('from antiphon import Agent\nagents = [Agent("support", model="openai:gpt-5-mini")]\n')
    refused = typed("serve", str(path), "--port", "0", OPENAI_API_KEY="", OPENAI_BASE_URL="")
    assert refused.returncode == 1
    assert "OPENAI_API_KEY" in refused.stderr
    assert "Traceback" not in refused.stderr
