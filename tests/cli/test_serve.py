"""`antiphon serve` as a user runs it: a process that is asked over HTTP, and stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import Run, typed

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
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=surroundings)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
        process.send_signal(stop)
        _, complaints = process.communicate(timeout=20)
        assert (process.returncode, complaints) == (0, "")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_agents_of_a_file_are_asked_until_it_is_stopped(team: Path, stop: int) -> None:
    with served(str(team), stop=stop) as begun, httpx2.Client(base_url=str(begun["url"])) as http:
        assert (begun["agents"], begun["store"], begun["keys"]) == (["support", "sales"], "memory:", False)
        reply = http.post("/agents/support/invoke", json={"text": "Hello"})
        assert (reply.status_code, reply.json()["text"]) == (200, "heard 1: Hello")
        assert [each["name"] for each in http.get("/agents").json()["agents"]] == ["support", "sales"]


def test_a_thread_goes_on_after_a_restart(team: Path, tmp_path: Path) -> None:
    words = (str(team), "--store", str(tmp_path / "team.db"))
    for place, said in enumerate(("first", "second"), start=1):
        with served(*words) as begun, httpx2.Client(base_url=str(begun["url"])) as http:
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
