"""`antiphon run`: a chat, piped and as JSON and in a real terminal, and after a crash."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from antiphon.cli.program import PROGRAM_MODULE_NAME
from tests.cli.conftest import Run, typed
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal

Write = Callable[[str], str]

TEAM = """
    from antiphon import Agent, ScriptedModel, calls, delegate, says, tool

    @tool
    async def last_invoice(customer: str) -> str:
        return f"{customer}: 42 euros, paid twice"

    legal = Agent("legal", ScriptedModel(["Within two weeks.\\nbilling: No!", "Ask \\x1b[31mthem\\x07."]))
    till = ScriptedModel([calls("last_invoice", {"customer": "ann"}), calls("request_help", {"reason": "I may not"})])
    billing = Agent("billing", till, tools=[last_invoice])
    lead = ScriptedModel([calls("transfer_to_billing", text="One moment."), says("I have refunded 42 euros.")])
    print("made by the file itself")
    agents = [Agent("support", lead, agents=[billing, legal]), Agent("echo", lambda r: says(r.history[-1].text))]
"""

SLOW = """
    import asyncio
    from pathlib import Path
    from antiphon import Agent, calls, says

    class Slow:
        async def __call__(self, request):
            return says(f"You said {request.history[-1].text}.")

        async def stream(self, request):
            text = request.history[-1].text
            if "wait" in text:
                yield "Let me "
                while not Path(__file__).with_name("go").exists():
                    await asyncio.sleep(0.01)
            for piece in ("You ", "said ", f"{text}."):
                yield piece
            yield says(f"You said {text}.")

    async def lead(request):
        return calls("transfer_to_billing")

    agents = [Agent("support", lead, agents=[Agent("billing", Slow())]), Agent("echo", Slow())]
"""

OPENED = """
    from contextlib import asynccontextmanager
    from pathlib import Path
    from antiphon import Agent, ScriptedModel

    @asynccontextmanager
    async def agents():
        try:
            yield Agent("echo", ScriptedModel([]))
        finally:
            Path(__file__).with_name("closed").touch()
"""

PRESS = """
    from antiphon import Agent, AgentTarget, FromSpeaker, ScriptedModel, TerminateTarget, ToolCalled
    from antiphon import Transition, TransitionGraph, calls, says, tool

    @tool
    def send_back() -> str:
        return "noted"

    graph = TransitionGraph(
        "user",
        [
            Transition(FromSpeaker("user"), AgentTarget("writer")),
            Transition(FromSpeaker("writer"), AgentTarget("reviewer")),
            Transition(FromSpeaker("reviewer") & ToolCalled("send_back"), AgentTarget("user")),
        ],
        TerminateTarget("accepted"),
    )
    judgement = ScriptedModel([calls("send_back"), says("Too high."), says("That will do.")])
    agents = [
        Agent("writer", ScriptedModel(["A tower.", "A hut."])),
        Agent("reviewer", judgement, tools=[send_back]),
    ]
"""

KEYLESS = """
    from antiphon import Agent, UsageError, says

    class Model:
        def check(self):
            raise UsageError("there is no key; set SOME_KEY")

        async def __call__(self, request):
            return says("Never.")

    agents = Agent("ada", Model())
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        (tmp_path / "team.py").write_text(dedent(text), encoding="utf-8")
        return str(tmp_path / "team.py")

    return write


def piped(text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "antiphon", "run", *words],
        input=text,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "ANTIPHON_STORE": ""},
        timeout=60,
        check=False,
    )


def events(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# Piped


def test_each_line_is_said_and_answered(write: Write) -> None:
    done = piped("Was I charged twice?\n\n  \n@legal Can I have it back?\r\n@legal Who?", write(TEAM))
    assert done.returncode == 0
    assert done.stdout == dedent("""\
        made by the file itself
        you> Was I charged twice?
          support → billing
          billing calls last_invoice(customer="ann")
          last_invoice returned: ann: 42 euros, paid twice
          billing → support: I may not
        support: I have refunded 42 euros.
        you> @legal Can I have it back?
        legal: Within two weeks.
          billing: No!
        you> @legal Who?
        legal: Ask \\x1b[31mthem\\x07.
    """)
    assert done.stderr == "In memory, and gone at the end; to keep it: --store team.db, or ANTIPHON_STORE.\n"


def test_as_json_there_is_nothing_else(write: Write) -> None:
    done = typed("run", write(TEAM), "--json", "--message", "Was I charged twice?")
    assert (done.returncode, done.stderr) == (0, "made by the file itself\n")
    said, *between, answer, end = events(done)
    assert said == {"event": "user_message", "agent": "user", "text": "Was I charged twice?"}
    assert [(event["event"], event["agent"], event["tool"]) for event in between] == [
        ("tool_usage", "support", "transfer_to_billing"),
        ("tool_response", "support", "transfer_to_billing"),
        ("tool_usage", "billing", "last_invoice"),
        ("tool_response", "billing", "last_invoice"),
        ("tool_usage", "billing", "request_help"),
        ("tool_response", "billing", "request_help"),
    ]
    assert between[2]["args"] == {"customer": "ann"}
    assert answer == {"event": "ai_message", "agent": "support", "text": "I have refunded 42 euros."}
    assert (end["event"], end["agent"], end["text"], end["stopped"]) == ("done", "support", answer["text"], None)


def test_tokens_are_told_if_they_are_asked_for(write: Write) -> None:
    done = typed("run", write(SLOW), "--json", "--tokens", "--agent", "ECHO", "-m", "hello", "-m", "there")
    assert [event["text"] for event in events(done) if event["event"] == "token"] == [
        *("You ", "said ", "hello."),
        *("You ", "said ", "there."),
    ]


def test_without_standard_input_nothing_is_said(write: Write) -> None:
    command = f'"{sys.executable}" -m antiphon run "{write(SLOW)}" <&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_turn_that_fails_ends_it(write: Write) -> None:
    path = write(
        "from antiphon import Agent, ScriptedModel\nagents = Agent('ada', ScriptedModel([OSError('no line')]))"
    )
    done = piped("Hello?\nAre you there?\n", path)
    assert done.returncode == 1
    assert done.stdout == "you> Hello?\n  stopped: model_error: OSError: no line\n"


def test_a_limit_is_named_and_is_no_failure(write: Write) -> None:
    done = piped("Whose is it?\nAnd now?\n", write("""
        from antiphon import Agent, Limits, calls
        def passes_on(request):
            to = "transfer_to_pong" if "transfer_to_pong" in request.tools else "request_help"
            return calls(to, {"reason": "not mine"}, text="Somebody else should know.")
        agents = Agent("ping", passes_on, agents=[Agent("pong", passes_on)], limits=Limits(handoffs=1))
    """))  # fmt: skip
    assert done.returncode == 0
    first = done.stdout.partition("you> And now?")[0]
    assert first.splitlines()[:2] == ["you> Whose is it?", "  ping → pong"]
    assert "  pong → help is refused: There has been 1 handoff in this turn" in first
    assert first.endswith("pong: Somebody else should know.\n  stopped: max_handoffs\n")


def test_a_task_is_told_as_one(write: Write) -> None:
    done = typed("run", "-m", "Have you anything on bees?", write("""
        from antiphon import Agent, ScriptedModel, calls, delegate, says
        librarian = Agent("librarian", ScriptedModel(["There are three."]))
        model = ScriptedModel([calls("delegate_to_librarian", {"task": "How many on bees?"}), says("Three.")])
        agents = Agent("desk", model, tools=[delegate(librarian)])
    """))  # fmt: skip
    assert done.stdout.splitlines() == [
        "you> Have you anything on bees?",
        "  desk gives librarian a task: How many on bees?",
        "  librarian reports: There are three.",
        "desk: Three.",
    ]


# With a store


def test_a_conversation_goes_on_in_its_store(write: Write, tmp_path: Path) -> None:
    path = write("""
        from antiphon import Agent, says
        agents = Agent("ada", lambda request: says(f"{len(request.history)} so far"))
    """)
    store = str(tmp_path / "team.db")
    answers = [typed("run", path, "--store", store, "-m", "Hello").stdout.splitlines()[-1] for _ in range(2)]
    answers.append(
        typed("run", path, "--thread-id", "other", "-m", "Hello", ANTIPHON_STORE=store).stdout.splitlines()[-1]
    )
    assert answers == ["ada: 1 so far", "ada: 3 so far", "ada: 1 so far"]


def test_what_a_killed_process_left_is_answered_first(write: Write, tmp_path: Path) -> None:
    path, store = write(SLOW), str(tmp_path / "team.db")
    with Terminal("run", path, "--store", store) as terminal:
        terminal.see("you> ")
        terminal.type("wait for me\n")
        terminal.see("  support → billing")
        terminal.see("billing: Let me ")
        terminal.kill()
    (tmp_path / "go").touch()
    done = piped("And now?\n", path, "--store", store)
    assert done.returncode == 0
    assert done.stdout == dedent("""\
        This was not answered yet:
        you> wait for me
          support → billing
        billing: You said wait for me.
        you> And now?
        billing: You said And now?.
    """)


# In a terminal


def test_a_chat_in_a_terminal(write: Write, tmp_path: Path) -> None:
    with Terminal("run", write(SLOW), "--store", str(tmp_path / "team.db")) as terminal:
        assert f"Kept in sqlite:///{tmp_path}/team.db" in terminal.see("you> ").replace("\n", " ")
        terminal.type("hellp\x7fo\n")
        terminal.see("  support → billing\n")
        assert terminal.see("billing: You said hello.\nyou> ") == ""
        terminal.type("please wait\n")
        terminal.see("billing: Let me ")
        terminal.type(CTRL_C)
        terminal.see("  stopped: cancelled: by user: Ctrl-C\nyou> ")
        for command, seen in {
            "/agents": "  * support with billing\n    echo",
            "/agent ben": "no agent is called 'ben'; there are: support, echo",
            "/dance": "There is no /dance; /help lists what there is.",
            "/help": "/quit",
            "/log": "  antiphon log ",
            "/settle again": "No call is in doubt here.",
            "/agent echo": "You talk to echo.",
        }.items():
            terminal.type(f"{command}\n")
            terminal.see(f"{command}\n")
            terminal.see(seen)
            terminal.see("you> ")
        terminal.type(" /dance\n")
        terminal.see("echo: You said /dance.\nyou> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0
        assert terminal.is_as_before()


def test_what_is_typed_meanwhile_is_kept(write: Write, tmp_path: Path) -> None:
    with Terminal("run", write(SLOW), "--agent", "echo") as terminal:
        terminal.see("you> ")
        terminal.type("wait\n")
        terminal.see("echo: Let me ")
        terminal.type("one\x1b[Aandd\x7f two\nand half")
        (tmp_path / "go").touch()
        terminal.see("echo: You said wait.\n")
        terminal.see("you> oneand two\necho: You said oneand two.\n")
        terminal.see("you> and half")
        terminal.type(" more\n")
        terminal.see("echo: You said and half more.\nyou> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert terminal.is_as_before()


def test_ctrl_c_at_the_prompt_leaves(write: Write) -> None:
    with Terminal("run", write(SLOW)) as terminal:
        terminal.see("you> ")
        terminal.type("half a li")
        terminal.see("half a li")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert terminal.is_as_before()
        assert "Traceback" not in terminal.text


def test_ctrl_c_ends_what_nobody_types(write: Write) -> None:
    with Terminal("run", write(SLOW), "-m", "wait", "-m", "and then") as terminal:
        terminal.see("billing: Let me ")
        terminal.type(CTRL_C)
        terminal.see("  stopped: cancelled: by user: Ctrl-C\n")
        assert terminal.end() == 1
        assert "and then" not in terminal.text


def test_a_program_that_is_told_to_end_leaves_the_terminal_as_it_was(write: Write) -> None:
    with Terminal("run", write(SLOW)) as terminal:
        terminal.see("you> ")
        assert not terminal.is_as_before()
        terminal.terminate()
        assert terminal.end() == 0
        assert terminal.is_as_before()


def test_a_program_whose_terminal_goes_away_closes_everything(write: Write, tmp_path: Path) -> None:
    with Terminal("run", write(OPENED)) as terminal:
        terminal.see("you> ")
        assert terminal.hang_up() == 1
    assert (tmp_path / "closed").exists()


def test_nothing_that_is_said_reaches_the_terminal_as_it_is(write: Write) -> None:
    path = write("""
        from antiphon import Agent, ScriptedModel
        agents = Agent("ada", ScriptedModel(["Look:\\x1b]0;owned\\x07\\x1b[2J here\\r\\nyou> I agree."]))
    """)
    with Terminal("run", path, "--message", "Hello") as terminal:
        assert terminal.end() == 0
        assert terminal.text.endswith("ada: Look:\\x1b]0;owned\\x07\\x1b[2J here\n  you> I agree.\n")
        assert "\x1b]" not in terminal.raw
        assert "\x1b[2J" not in terminal.raw


def test_a_call_in_doubt_is_settled(write: Write, tmp_path: Path) -> None:
    path = write("""
        import asyncio
        from antiphon import Agent, ScriptedModel, calls, says, tool

        @tool(idempotency="unsafe", timeout=0.2)
        async def print_letter(to: str) -> str:
            await asyncio.Event().wait()

        def model(request):
            return says(request.messages[-1].text) if request.exchange else calls("print_letter", {"to": "Ann"})

        agents = Agent("secretary", model, tools=[print_letter])
    """)
    with Terminal("run", path) as terminal:
        terminal.see("you> ")
        terminal.type("Write to Ann.\n")
        terminal.see('  secretary calls print_letter(to="Ann")\n')
        assert "print_letter" in terminal.see("`/settle again`")
        terminal.see("you> ")
        terminal.type("/settle it is in the post\n")
        terminal.see("secretary: it is in the post\nyou> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0


# With a graph


def test_a_graph_decides_who_speaks(write: Write) -> None:
    done = piped("What shall we build?\nSomething smaller.\nNobody hears this.\n", write(PRESS))
    assert done.returncode == 0
    assert done.stdout == dedent("""\
          → user  (initial speaker)
        you> What shall we build?
          user → writer  (from user, rule 0)
        writer: A tower.
          writer → reviewer  (from writer, rule 1)
          reviewer calls send_back()
          send_back returned: noted
        reviewer: Too high.
          reviewer → user  (from reviewer and send_back called, rule 2)
        you> Something smaller.
          user → writer  (from user, rule 0)
        writer: A hut.
          writer → reviewer  (from writer, rule 1)
        reviewer: That will do.
        closed: accepted
    """)


def test_a_graph_as_json(write: Write) -> None:
    done = typed("run", write(PRESS), "--json", "-m", "What shall we build?", "-m", "Something smaller.")
    assert done.returncode == 0
    told = events(done)
    assert [event["event"] for event in told].count("turn") == 6
    assert [event["text"] for event in told if event["event"] == "user_message"] == [
        "What shall we build?",
        "Something smaller.",
    ]
    assert (told[-1]["event"], told[-1]["stopped"]) == ("done", "accepted")


def test_a_graph_goes_on_in_its_store(write: Write, tmp_path: Path) -> None:
    path, store = write(PRESS), str(tmp_path / "team.db")
    first = typed("run", path, "--store", store, "-m", "What shall we build?")
    assert first.stdout.endswith("user has the turn, and says nothing more. The same command goes on from here.\n")
    other = typed("run", path, "--store", store, "--thread-id", "other", "-m", "And this?")
    assert other.stdout.startswith("  → user  (initial speaker)\nyou> And this?\n")
    path = write(PRESS.replace('calls("send_back"), says("Too high."), ', "").replace('"A tower.", ', ""))
    second = typed("run", path, "--store", store, "-m", "Something smaller.")
    assert second.stdout.startswith(first.stdout.partition("user has the turn")[0])
    assert second.stdout.endswith("reviewer: That will do.\nclosed: accepted\n")


def test_a_person_takes_part_in_a_graph(write: Write, tmp_path: Path) -> None:
    path = write(SLOW + """
    from antiphon import AgentTarget, FromSpeaker, TransitionGraph, TerminateTarget, Transition
    graph = TransitionGraph(
        "dana",
        [
            Transition(FromSpeaker("dana"), AgentTarget("echo")),
            Transition(FromSpeaker("echo"), AgentTarget("last")),
            Transition(FromSpeaker("last"), AgentTarget("dana")),
        ],
        TerminateTarget("done"),
    )
    agents = [agents[1], Agent("last", lambda request: says(f"I heard {len(request.history)}."))]
    """)  # fmt: skip
    with Terminal("run", path) as terminal:
        assert "you are dana" in terminal.see("dana> ")
        terminal.type("wait\n")
        terminal.see("  dana → echo  (from dana, rule 0)\n")
        terminal.see("echo: Let me ")
        terminal.type("Hurry!\n/log\n")
        terminal.see("It is in memory")
        (tmp_path / "go").touch()
        terminal.see("echo: You said dana: wait.\n")
        terminal.see("dana> Hurry!\n  dana → echo  (from dana, rule 0)\n")  # the rule is for whatever dana says
        terminal.see("last: I heard 4.\n")
        terminal.see("  last → dana  (from last, rule 2)\ndana> ")
        terminal.type("/help\n")
        terminal.see("/settle TEXT")
        terminal.see("dana> ")
        terminal.type("once more\n")
        terminal.see("last: I heard 7.\n")
        terminal.see("dana> ")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert terminal.is_as_before()


def test_a_word_is_edited_only_where_nobody_is_in_the_middle_of_a_line(write: Write, tmp_path: Path) -> None:
    path = write(SLOW + """
    from antiphon import TransitionGraph

    async def mute(request):
        while not Path(__file__).with_name("go_on").exists():
            await asyncio.sleep(0.01)
        return says(request.history[-1].text)

    graph = TransitionGraph.sequence(["dana", "echo", "mute"])
    agents = [agents[1], Agent("mute", mute)]
    """)  # fmt: skip
    with Terminal("run", path) as terminal:
        terminal.see("dana> ")
        terminal.type("wait\n")
        terminal.see("echo: Let me ")
        terminal.type("Hu")
        (tmp_path / "go").touch()
        assert "dana>" not in terminal.see("You said dana: wait.\n")
        terminal.see("  echo → mute  (from echo, rule 1)\n")
        terminal.see("dana> Hu")
        terminal.type("rry!\n")
        terminal.see("rry!\n")
        (tmp_path / "go_on").touch()
        assert terminal.end() == 0
        assert "mute: echo: You said dana: wait.\n" in terminal.text
        assert "closed: sequence_complete\n" in terminal.text
        assert terminal.text.count("That was not said: channel_closed") == 1


def test_ctrl_c_gives_the_turn_to_the_person(write: Write) -> None:
    path = write(SLOW + """
    from antiphon import TransitionGraph
    graph = TransitionGraph.sequence(["user", "echo"])
    agents = agents[1]
    """)  # fmt: skip
    with Terminal("run", path) as terminal:
        terminal.see("you> ")
        terminal.type("wait\n")
        terminal.see("echo: Let me ")
        terminal.type(CTRL_C)
        terminal.see("  echo stopped: cancelled: by user: Ctrl-C\n")
        terminal.see("you> ")
        terminal.type("/quit\n")
        assert terminal.end() == 0


def test_a_failed_turn_in_a_graph_ends_it(write: Write) -> None:
    done = piped("Hello?\nHello??\n", write("""
        from antiphon import Agent, ScriptedModel, TransitionGraph
        agents = Agent("ada", ScriptedModel([OSError("no line")]))
        graph = TransitionGraph.sequence(["user", "ada"])
    """))  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.endswith("  ada stopped: model_error: OSError: no line\n")
    assert "Hello??" not in done.stdout


# Wrong


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        ("agents = [", [], 1, "team.py:1: '[' was never closed"),
        ("raise OSError('no luck')", [], 1, "team.py:1: OSError: no luck"),
        ("flow = 1", [], 1, "defines a flow"),
        (TEAM, ["--agent", "zoe"], 1, "no agent is called 'zoe'; there are: support, echo"),
        (PRESS, ["--agent", "writer"], 2, "defines a graph, which says who speaks; leave --agent out"),
        (TEAM, ["--store", "carrier-pigeon:coop"], 2, "carrier-pigeon:coop"),
        (TEAM, ["--thread-id", ""], 1, "thread_id is ''"),
        (TEAM.replace('"echo"', '"user"'), ["--agent", "user"], 1, "give the agent another name"),
        (PRESS.replace("agents = [", "participants = ['user', 'writer']\n    agents = ["), [], 1, "'reviewer'"),
        ("from antiphon import Agent\nagents = Agent('ada', 'no-such-model')", [], 1, "team.py:2: the model of 'ada'"),
        (KEYLESS, [], 1, "the model of 'ada': there is no key; set SOME_KEY"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    text: str, words: list[str], code: int, said: str, write: Write, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = run("run", write(text), "-m", "Hello", *words)
    sys.modules.pop(PROGRAM_MODULE_NAME, None)
    assert done.exit_code == code, done.stderr
    assert "Traceback" not in done.stderr
    assert said in next(line for line in done.stderr.splitlines() if line.startswith("Error: "))


def test_a_file_that_is_not_there() -> None:
    done = typed("run", "nowhere.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: there is no file 'nowhere.py'" in done.stderr


LOADED = """
import sys
from click.testing import CliRunner
from antiphon.cli import commands
assert CliRunner().invoke(commands, ["--help"]).exit_code == 0
print([name for name in ("rich", "readline", "antiphon.cli.line_input", "antiphon.cli.program") if name in sys.modules])
assert CliRunner().invoke(commands, ["run", sys.argv[1], "-m", "Hi"]).exit_code == 0
print([name for name in ("rich", "readline") if name in sys.modules])
"""


def test_only_what_is_used_is_loaded(write: Write) -> None:
    command = [sys.executable, "-c", LOADED, write(SLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
