"""`DELETE /channels/{channel_id}`: an operator erases what has ended."""

from __future__ import annotations

from antiphon.core.envelope import is_tombstone
from tests.support.served_hub import served_hub


async def test_an_operator_erases_a_channel_that_has_ended() -> None:
    async with served_hub() as here:
        await here.hub.register("bob")
        ann = await here.known("ann", "read", "write")
        operator = await here.known("ops", "operate", "read")
        channel = (await ann.post("/channels", json={"target": ["bob"]})).json()["channel_id"]
        await ann.post(f"/channels/{channel}/messages", json={"text": "secret"})
        early = await operator.delete(f"/channels/{channel}")
        assert (early.status_code, early.json()["error"]["reason"]) == (409, "channel_open")
        assert (await ann.delete(f"/channels/{channel}")).status_code == 403
        await ann.post(f"/channels/{channel}/close", json={})
        for _ in range(2):
            done = await operator.delete(f"/channels/{channel}")
            assert done.status_code == 200
            assert done.json() == {"channel_id": channel, "records": done.json()["records"], "tasks": []}
        assert all(map(is_tombstone, await here.hub.log(channel)))
        shown = (await operator.get(f"/channels/{channel}")).json()
        assert (shown["erased"], shown["close_reason"], shown["participants"]) == (True, "erased", {})
        log = (await operator.get(f"/channels/{channel}/log", params={"view": "operator"})).text
        assert "secret" not in log
        assert (await ann.get(f"/channels/{channel}/log")).status_code == 404
        assert (await operator.delete("/channels/nowhere")).status_code == 404
        assert (await operator.delete("/channels/system:audit")).status_code == 422
