"""Every example runs alone, quickly, and prints what it is there to show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import EXAMPLES, text_of

SECONDS = 30  # an example takes well under three; a busy machine is given time
SHOWS = {
    "01_hello.py": "bob: Hello Alice, this is Bob.",
    "02_discussion.py": "refused: not_expected_speaker",
    "03_consulting.py": "closed: answered",
    "04_survives_a_crash.py": "0 acknowledged messages lost",
    "05_inbox.py": "after the restart: parcel 3, parcel 4",
    "06_expectations.py": "expectation_violated:reply_within",
    "07_custom_adapter.py": "closed: sold to carol for 140",
    "08_context_and_writers.py": "refused: not_a_writer",
    "09_agent.py": "support: Order 7 costs 42 euros.",
    "10_agent_survives_a_crash.py": "payments: ['100 cents for order 7']",
    "11_agents_discuss.py": "critic: I have heard dana, planner, dana, planner.",
    "12_streaming.py": "says: It rains, as ever. Take a coat.",
    "13_in_doubt.py": "secretary: Your letter is in the post.",
    "14_pipeline.py": "closed: sequence_complete",
    "15_star.py": "coordinator               Take the 8:25 on Saturday, and a coat.",
    "16_feedback_loop.py": "closed: max_turns, after 7 turns",
    "17_escalation.py": "support was shown: dana: Yes, with our apologies.",
    "18_triage.py": "billing: Here is the invoice.",
    "19_context_routing.py": "director is next: from intake and amount > 10000",
    "20_redundant_workers.py": "the judge was shown: ['ada: 42', 'ben: 41', 'cleo: 42'",
    "21_hierarchy.py": "lead: Here is your lamp.",
    "22_coming_from_group_chat.py": "host: Then we are done.",
    "23_team.py": "active after a restart: support/legal\nsupport: You are welcome.",
    "24_tasks.py": "tokens, tasks included: 210 in, 30 out",
    "25_steps.py": "journalled: ['step:look_up_customer', 'model']",
    "26_structured_output.py": "the order: Order(item='lamp', count=2)",
    "27_mcp.py": "assistant: It rains in Bergen, as ever.",
    "28_run_me.py": "till: That is 42 euros.",
    "29_failed_branch.py": "the judge was shown: ['user: Six times seven?', 'ada: 42', 'ben: 41']",
    "30_conversations.py": "resolver was shown: [Context from previous agent (reviewer)]: Refund 42 euros.",
    "31_human_takeover.py": "I wait for you until eight.   [dana]\nfrom +4930: Thank you!",
    "32_approval.py": "paid: ['2100 cents for order 7']",
    "demo": "The bank was asked twice. Its ledger holds 1 entry.",
}


def test_all_examples_are_here_and_listed() -> None:
    programs = [*EXAMPLES.glob("*.py"), *(path.parent for path in EXAMPLES.glob("*/__main__.py"))]
    assert sorted(path.name for path in programs) == sorted(SHOWS)
    assert [name for name in SHOWS if f"]({name})" not in text_of(EXAMPLES / "README.md")] == []


@pytest.mark.parametrize("name", SHOWS)
def test_example(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert SHOWS[name] in done.stdout
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"
