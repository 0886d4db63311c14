"""Tasks at the command line."""

from __future__ import annotations

from actors.debugging.work.task import OUTPUTS, WORKSPACE, Result, task


@task(
    "shell",
    "Write app.py, an HTTP server with the standard library only, for a port given as its argument. GET /add?a=2&b=3 "
    'answers the JSON {"sum": 5}; what is no number is answered with 400; other paths with 404. Try it before '
    "you answer.",
)
async def write_a_server(result: Result) -> None:
    get = "curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:8765"
    command = (
        f"cd {WORKSPACE} && (timeout 20 python3 -B app.py 8765 >/dev/null 2>&1 & echo $! > /tmp/pid); "
        "curl -s --retry 20 --retry-connrefused --retry-delay 1 'http://127.0.0.1:8765/add?a=20&b=22'; echo; "
        f"{get}'/add?a=x&b=3'; {get}/other; kill $(cat /tmp/pid)"
    )
    shown = (await result.run(command)).text.replace(" ", "")
    assert '{"sum":42}' in shown, shown[:300]
    assert "400404" in shown, shown[:300]


@task(
    "shell",
    "The service stopped last night. Find out from logs/service.log which request was the last one before the first "
    "FATAL line, and answer with its id.",
    setup="mkdir -p logs && awk 'BEGIN { for (n = 1; n <= 200000; n++) { if (n == 153377) print \"FATAL no "
    'memory left"; '
    'else if (n % 3 == 0) print "INFO request id=r" n " served"; else print "DEBUG tick " n } }\' > logs/service.log',
)
async def find_in_a_long_log(result: Result) -> None:
    result.says(r"\br153375\b")


@task(
    "shell",
    "Make `make test` work.",
    files={
        "Makefile": "CC = gcc\n\nprogram: main.c list.c\n    $(CC) -Wall -Werror -o program main.c list.c\n\n"
        "test: program\n\t./program | grep -q '^6$$' && echo passed\n",
        "main.c": '#include <stdio.h>\n#include "list.h"\n\nint main(void) {\n    int unused;\n'
        '    int values[] = {1, 2, 3};\n    printf("%d\\n", sum(values, 3));\n    return 0;\n}\n',
        "list.h": "int sum(int *values, int count);\n",
        "list.c": '#include "list.h"\n\nint sum(int *values, int count) {\n    int total;\n'
        "    for (int n = 0; n <= count; n++) total += values[n];\n    return total;\n}\n",
    },
)
async def mend_a_build(result: Result) -> None:
    await result.prints(f"cd {WORKSPACE} && rm -f program && make test 2>&1", "passed")
    text = await result.text(f"{WORKSPACE}/list.c")
    assert "<= count" not in text, "it reads beyond the end"
    assert "-Werror" in await result.text(f"{WORKSPACE}/Makefile"), "the check of the compiler was taken out"


@task(
    "shell",
    "How many bytes have the .txt files below the folder tree together, and how many files are these?",
    setup="for n in $(seq 1 60); do mkdir -p tree/d$((n % 7))/e$((n % 3)); head -c $((n * 11)) /dev/zero > "
    "tree/d$((n % 7))/e$((n % 3))/f$n.txt; echo x > tree/d$((n % 7))/f$n.log; done",
)
async def measure_a_tree(result: Result) -> None:
    result.says(r"\b60\b")
    result.counts(11 * sum(range(1, 61)))


@task(
    "shell",
    f"Run job.sh; it takes a while. When it is done, write the code that it prints at its end to {OUTPUTS}/code.txt.",
    files={"job.sh": "for n in 1 2 3 4 5 6; do echo step $n; sleep 1; done\necho code: $((6 * 7 * 11))\n"},
)
async def wait_for_a_job(result: Result) -> None:
    assert (await result.text(f"{OUTPUTS}/code.txt")).strip().removeprefix("code:").strip() == "462"
