import asyncio, sys, time, json, tempfile
from pathlib import Path
from antiphon import Hub
TEXT="x"*200
async def main(kind,n,folder):
    url = "memory:" if kind=="memory" else f"sqlite:///{folder/'a.db'}"
    async with Hub.open(url) as hub:
        alice=await hub.register("alice"); bob=await hub.register("bob")
        ch=await alice.open(type="conversation",target="bob")
        got=0; all_=asyncio.Event()
        async def hear():
            nonlocal got
            async for e in bob.inbox():
                if e.event_type!="ag2.msg.text": continue
                got+=1
                if got==n: all_.set()
        t=asyncio.create_task(hear())
        await asyncio.sleep(0.1)
        w,c=time.perf_counter(),time.process_time()
        for _ in range(n): last=await ch.send(TEXT)
        p=time.perf_counter()
        await all_.wait()
        await asyncio.sleep(0)
        while await bob.pending(): await asyncio.sleep(0)
        print(kind,json.dumps({"done":n,"wall":time.perf_counter()-w,"cpu":time.process_time()-c, "posted":p-w}))
        t.cancel()
with tempfile.TemporaryDirectory() as d:
    if len(sys.argv)>3:
        import cProfile,pstats
        pr=cProfile.Profile(); pr.enable(); asyncio.run(main(sys.argv[1],int(sys.argv[2]),Path(d))); pr.disable()
        pstats.Stats(pr).sort_stats("tottime").print_stats(35)
    else: asyncio.run(main(sys.argv[1],int(sys.argv[2]),Path(d)))
