"""Sessions at the command line: long outputs, jobs in the background, servers, and what a machine keeps."""

from __future__ import annotations

import json
import re

import pytest

from tests.work.session import Work, until

pytestmark = pytest.mark.long(keep=4)

JOB = 'while read -r line; do echo "$line"; test "$line" = end && exit 0; done < orders'


def job_of(text: str) -> str:
    """Returns the id of a command in the background."""
    return text.split()[0].strip("`'\".,:")


async def test_the_error_at_the_end_of_a_long_build_is_seen(work: Work) -> None:
    session = await work.session("Why does the build fail?")
    command = "seq -f 'compiling unit %.0f of the program' 1 100000; echo 'unit.c:42: error: no member ceiling'; exit 1"
    text = await session.bash(command)
    assert "unit.c:42: error: no member ceiling" in text
    assert "compiling unit 1 of the program" in text
    assert len(text) < 60_000
    paths = re.findall(r"/mnt/\S+?\.(?:txt|log|out)", text)
    assert paths, "the file with the whole output is named"
    assert "compiling unit 54321 of" in await session.grep("unit 54321 of", paths[0])
    await session.answers("Because of the ceiling.")


async def test_the_middle_of_a_test_report_is_seen(work: Work) -> None:
    """Fifteen thousand characters are an ordinary report: nothing of them is left out."""
    session = await work.session("Which tests fail?")
    session.puts(
        "workspace/report.txt",
        "".join(f"test_{n:03} {'FAILED' if n == 150 else 'ok'} {'.' * 35}\n" for n in range(300)),
    )
    assert "test_150 FAILED" in await session.bash("cat report.txt")
    await session.answers("test_150.")


async def test_a_job_of_an_hour_is_polled(work: Work) -> None:
    """Its clock runs faster: each look at it is a minute."""
    session = await work.session("Run job.sh in the background, and tell me its result.")
    session.puts("workspace/job.sh", "mkfifo orders\nexec 3<>orders\n" + JOB.replace("< orders", "<&3") + "\n")
    job = job_of(await session.bash("bash job.sh", background=True))
    await until(lambda: session.file("workspace/orders").exists())
    seen = ""
    for minute in range(1, 61):
        line = "end" if minute == 60 else f"minute {minute} of 60"
        orders = session.file("workspace/orders")
        with orders.open("w") as pipe:
            pipe.write(line + "\n")
        seen += await session.call("bash_output", id=job)
    for _ in range(20):
        if "minute 59 of 60" in seen and "has ended" in seen:
            break
        seen += await session.call("bash_output", id=job, wait_seconds=1)
    assert all(f"minute {minute} of 60" in seen for minute in range(1, 60))
    await session.answers("It is done.")


async def test_a_job_that_says_nothing_is_polled(work: Work) -> None:
    """A look that tells nothing new is no loop: what is waited for is the end."""
    session = await work.session("Wait for job2 to be done.")
    command = "until test -e go; do sleep 0.05; done; echo the result is 17"
    job = job_of(await session.bash(command, background=True))
    for _ in range(25):
        text = await session.call("bash_output", id=job, wait_seconds=0)
        assert "result" not in text
    session.puts("workspace/go", "")
    for _ in range(60):
        text = await session.call("bash_output", id=job, wait_seconds=1)
        if "the result is 17" in text:
            break
    assert "the result is 17" in text
    await session.answers("17.")


async def test_a_status_file_is_polled(work: Work) -> None:
    session = await work.session("Tell me when status.json says done.")
    for n in range(40):
        session.puts("workspace/status.json", json.dumps({"done": n == 39, "progress": n}))
        text = await session.bash("cat status.json")
        assert f'"progress": {n}' in text
    await session.answers("It is done.")


async def test_a_server_is_started_and_tried(work: Work) -> None:
    session = await work.session("Write a server that says hello, start it and try it.")
    await session.write("index.html", "<h1>Hello from the server</h1>\n")
    job = job_of(await session.bash("python3 -u -m http.server 8123 --bind 127.0.0.1", background=True))
    text = await session.bash(
        "curl -sS --retry 20 --retry-connrefused --retry-delay 1 http://127.0.0.1:8123/index.html"
    )
    assert "Hello from the server" in text
    assert "404" in await session.bash("curl -s -o /dev/null -w '%{http_code}' http://localhost:8123/nothing")
    assert "GET /index.html" in await session.call("bash_output", id=job)
    await session.call("bash_kill", id=job)
    assert "exit 7" in await session.bash("curl -s http://127.0.0.1:8123/; echo exit $?")
    await session.answers("It works.")


async def test_a_server_is_looked_at_by_a_browser(work: Work) -> None:
    session = await work.session("Does the page of my server run its script?")
    if "chromium" not in await session.bash("command -v chromium || echo none"):
        pytest.skip("there is no browser")
    await session.write("page.html", "<p id=a></p><script>a.textContent = 'made by ' + 'the script'</script>\n")
    await session.bash("python3 -m http.server 8124 --bind 127.0.0.1", background=True)
    await session.bash("curl -sS --retry 20 --retry-connrefused --retry-delay 1 -o /dev/null http://127.0.0.1:8124/")
    text = await session.bash(
        "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=/tmp/profile "
        "--virtual-time-budget=2000 --dump-dom http://127.0.0.1:8124/page.html 2>/dev/null"
    )
    assert "made by the script" in text
    await session.answers("It does.")


async def test_the_machine_keeps_its_temporary_files(work: Work) -> None:
    session = await work.session("Compute in several commands, with a file in /tmp.")
    await session.bash("seq 1 100 > /tmp/numbers")
    assert "5050" in await session.bash("awk '{ s += $1 } END { print s }' /tmp/numbers")
    await session.bash("mkdir -p /tmp/deep/er && mv /tmp/numbers /tmp/deep/er/")
    assert "100" in await session.bash("wc -l < /tmp/deep/er/numbers")
    await session.answers("5050.")


async def test_what_is_there_is_told(work: Work) -> None:
    """What a newcomer finds out by his first commands stands in what the model is shown."""
    session = await work.session("Which Python do you have?")
    version = re.search(r"Python (\d+\.\d+\.\d+)", await session.bash("python3 --version"))
    assert version is not None
    assert session.sees("<environment>")
    assert session.sees(version[1]) or session.sees(version[1].rpartition(".")[0])
    shown = next(str(m["content"]) for m in session.shown if "<environment>" in str(m["content"]))
    assert "network" in shown.lower()
    await session.answers("This one.")


async def test_logs_are_found_and_searched(work: Work) -> None:
    session = await work.session("What went wrong? The logs are in logs and build.")
    lines = [f"12:{n // 60 % 60:02}:{n % 60:02} INFO request {n} served\n" for n in range(40_000)]
    lines[31_337] = "12:22:17 ERROR request 31337 lost its database\n"
    session.puts("workspace/logs/app.log", "".join(lines))
    session.puts("workspace/build/out.log", "warning: unused\nerror: linker gave up\n")
    session.puts("workspace/dist/trace.tmp", "trace of request 31337\n")
    assert "app.log" in await session.call("ls", path="/mnt/user-data/workspace/logs")
    assert "out.log" in await session.glob("**/*.log")
    assert "31337 lost its database" in await session.grep("ERROR", "logs/app.log")
    assert "31337 lost its database" in await session.grep("ERROR")
    assert "linker gave up" in await session.grep("error:", "build")
    assert "trace of request" in await session.grep("31337", "dist")
    await session.answers("The database was lost.")


async def test_a_long_line_is_searched_and_read(work: Work) -> None:
    session = await work.session("Which id has the name needle in data.json?")
    rows = [{"id": n, "name": "needle" if n == 7_777 else f"straw {n}"} for n in range(10_000)]
    session.puts("workspace/data.json", json.dumps(rows))
    text = await session.grep("needle", "data.json")
    assert "needle" in text
    assert "no matches" not in text.lower()
    assert len(text) < 20_000
    text = await session.read("data.json")
    assert len(text) < 120_000
    code = "import json; print([r['id'] for r in json.load(open('data.json')) if r['name'] == 'needle'])"
    assert "[7777]" in await session.bash(f'python3 -c "{code}"')
    await session.answers("7777.")


async def test_a_command_that_hangs_is_ended_in_time(work: Work) -> None:
    session = await work.session("Run hang.sh, but not longer than a second.")
    session.puts("workspace/hang.sh", "echo begun\nsleep 987\n")
    await session.bash("true")
    properties = session.tools["bash"]["properties"]
    name = next((name for name in properties if "timeout" in name), None)
    assert name is not None, f"bash takes a time limit: {list(properties)}"
    text = await session.bash("bash hang.sh", **{name: 1})
    assert "begun" in text
    assert "987" not in text
    assert "still here" in await session.bash("echo still here")
    await session.answers("It hangs.")


@pytest.mark.parametrize("commands", [110, pytest.param(200, marks=pytest.mark.long)])
async def test_many_short_commands(work: Work, commands: int) -> None:
    """More than DeerFlow lets a run make: 50 calls of `bash`, 100 steps."""
    session = await work.session(f"Look at {commands} things, one by one.")
    for n in range(commands):
        assert str(n * 3) in await session.bash(f"echo $(({n} * 3))")
    await session.answers("All seen.")


async def test_a_pipeline_over_tables(work: Work) -> None:
    session = await work.session("Which city sold the most?")
    session.puts("workspace/cities.txt", "".join(f"{n},city{n}\n" for n in range(50)))
    session.puts("workspace/sales.txt", "".join(f"{n % 50},{n}\n" for n in range(5_000)))
    await session.bash(
        "sort -t, -k1,1 cities.txt > c; sort -t, -k1,1 sales.txt > s; join -t, s c > joined; wc -l joined"
    )
    text = await session.bash("awk -F, '{t[$3] += $2} END {for (k in t) print t[k], k}' joined | sort -rn | head -1")
    assert text.split()[:2] == [str(sum(range(49, 5_000, 50))), "city49"]
    await session.answers("city49.")


async def test_variables_of_the_person_are_there_for_commands(work: Work) -> None:
    """A secret among them can be used, and is not read: its value is in no request to the model, and not in the log."""
    session, other = await work.session(), await work.session("Print nothing of another thread.")
    path, canary = f"/threads/{session.thread}/variables", "canary-of-the-person"
    for name, value in (("STAGE", "two words"), ("SHOP_TOKEN", canary)):
        body = {"value": value}
        async with work.client._session.put(f"{work.server.url}/api{path}/{name}", json=body) as response:
            assert response.status == 200, await response.text()
    await session.asks("Print the variables.")
    prompt = str(session.shown[0]["content"])
    assert "The person set these variables for your commands: SHOP_TOKEN, STAGE." in prompt
    assert await session.bash('echo "$STAGE; ${#SHOP_TOKEN}; $SHOP_TOKEN"') == f"two words; {len(canary)}; ***"
    job = job_of(await session.bash('echo "$STAGE and $SHOP_TOKEN"; sleep 300', background=True))
    seen = ""
    while "***" not in seen:
        seen += await session.call("bash_output", id=job, wait_seconds=1)
    assert "two words and ***" in seen
    assert await other.bash('echo "[$STAGE$SHOP_TOKEN]"') == "[]"
    assert not session.sees(canary)
    log = await work.client.log(work.server, session.thread)
    assert canary not in json.dumps(log)
    await session.call("bash_kill", id=job)
    await session.answers("They are printed.")
    await other.answers("There are none.")
