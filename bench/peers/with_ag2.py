import asyncio, sys, time, json, tempfile, sqlite3, logging
from pathlib import Path
from ag2 import Agent
from ag2.knowledge import DiskKnowledgeStore, MemoryKnowledgeStore, SqliteKnowledgeStore
from ag2.network import EV_TEXT, Hub, InboxBlock, LimitsBlock, Rule, default_handler
TEXT="x"*200
def store(kind, folder):
    if kind=="memory": return MemoryKnowledgeStore()
    if kind=="disk": return DiskKnowledgeStore(folder/"disk")
    p=folder/"s.db"
    if kind=="wal":
        c=sqlite3.connect(p); c.execute("PRAGMA journal_mode=WAL"); c.close()
    return SqliteKnowledgeStore(p)
async def main(kind,n,folder):
    hub=await Hub.open(store(kind,folder),ttl_sweep_interval=0,expectation_sweep_interval=0)
    rule=Rule(limits=LimitsBlock(inbox=InboxBlock(max_pending=0)))
    alice=await hub.register(Agent("alice"),attach_plugin=False,rule=rule)
    bob=await hub.register(Agent("bob"),attach_plugin=False,rule=rule)
    got=0; all_=asyncio.Event()
    async def hear(e):
        nonlocal got
        if e.event_type!=EV_TEXT:
            await default_handler(e,bob); return
        got+=1
        if got==n: all_.set()
    bob.on_envelope(hear)
    ch=await alice.open(type="conversation",target="bob")
    w,c=time.perf_counter(),time.process_time()
    for _ in range(n): last=await ch.send(TEXT)
    p=time.perf_counter()
    await all_.wait()
    while hub.inbox_cursor(bob.agent_id,ch.channel_id)!=last: await asyncio.sleep(0.001)
    print(kind,json.dumps({"done":n,"wall":time.perf_counter()-w,"cpu":time.process_time()-c, "posted":p-w}))
    await hub.close()
with tempfile.TemporaryDirectory() as d:
    asyncio.run(main(sys.argv[1],int(sys.argv[2]),Path(d)))
