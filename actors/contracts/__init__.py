"""The contract of chat platforms, as tests that theirs inherit; installed, this is called `sika.contracts`.

A test's platform is a `Seat`: a local server that does what the real one does, and people who write to the bot there.
`table` puts the account and the actors of both sides of the log to it; the test is the worker of the runs. Each class
is one part of the contract, with what it needs of a seat in its docstring:

    class TestTalk(Talk): ...

    @pytest.fixture(scope="module")
    async def here(tmp_path_factory, anyio_backend):
        async with table(MySeat(), tmp_path_factory.mktemp("home")) as opened:
            yield opened
"""
