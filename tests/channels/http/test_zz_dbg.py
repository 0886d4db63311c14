from tests.channels.http.test_changes import *
async def test_dbg(api, worker, files, system):
    first = await api.run("t")
    await worker.start("t", first)
    (files / "outputs" / "new.txt").write_text("a\nb\nc\n")
    await worker.finish("t", first)
    import anyio
    await anyio.sleep(2)
    st = await system.threads.load("t")
    print(st.runs[first].ended_seq, st.seq)
    print([ (r.seq, r.type) async for r in system.log.read(Aggregate("thread","t"))])
    print([ (r.seq, r.type, r.event) async for r in system.log.read(Aggregate(KIND,"t"))])
    print(Workspace.subscription)
