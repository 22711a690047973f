"""A server whose store is gone says so, and acknowledges nothing."""

from __future__ import annotations

from pathlib import Path

from tests.server.houses import house


async def test_health_and_requests_answer_503_when_the_file_of_the_store_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "team.db"
    async with house(url=f"sqlite:///{path}") as here:
        await here.hub.register("bob")
        client = await here.client()
        opened = await client.post("/channels", json={"target": ["bob"]})
        channel = opened.json()["channel_id"]
        assert (await client.get("/health")).json()["status"] == "ok"
        path.unlink()
        for answer in (
            await client.get("/health"),
            await client.post(f"/channels/{channel}/messages", json={"text": "hello"}),
            await client.get("/channels"),
        ):
            assert answer.status_code == 503
            assert answer.json()["error"]["reason"] == "store_gone"
            assert str(path) not in answer.text
