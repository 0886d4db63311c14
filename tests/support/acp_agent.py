"""An agent of the Agent Client Protocol for tests, also a hostile one: the prompt says what it does.

It uses nothing but the standard library, and can be run from its text (`python3 -c`), as in a sandbox.
"""

# mypy: ignore-errors

import json
import os
import subprocess
import sys
import threading

waiting = {}
cancelled = threading.Event()
session = {}
numbers = iter(range(1000, 9999))
write_lock = threading.Lock()


def send(message):
    with write_lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method, **params):
    number, answered = next(numbers), threading.Event()
    waiting[number] = (answered, answer := {})
    send({"id": number, "method": method, "params": {"sessionId": "s1", **params}})
    answered.wait()
    return answer


def say(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send({"method": "session/update", "params": {"sessionId": "s1", "update": update}})


def options(*kinds):
    return [{"optionId": f"id-{kind}", "name": kind, "kind": kind} for kind in kinds]


def permission(*kinds, title="Delete all"):
    call = {"toolCallId": "c1", "title": title, "kind": "execute", "rawInput": {"command": "rm -r x"}}
    answer = ask("session/request_permission", toolCall=call, options=options(*kinds))
    outcome = answer["result"]["outcome"]
    return outcome.get("optionId", outcome["outcome"])


def work(prompt):
    word, _, rest = prompt.partition(" ")
    if word == "say":
        for part in rest.split("|"):
            say(part)
    elif word == "permission":
        say(" ".join(permission(*kinds.split(",")) for kinds in rest.split()))
    elif word == "hang":
        say("begun")
        cancelled.wait()
        return "cancelled"
    elif word == "deaf":
        say("begun")
        threading.Event().wait()
    elif word == "crash":
        say("half")
        os._exit(7)
    elif word == "flood":
        while True:
            sys.stdout.write("x" * 1_000_000)
            sys.stdout.flush()
    elif word == "noise":
        print("no JSON at all\n[1, 2]\n" + "\\u0000" * 3, flush=True)
        sys.stdout.buffer.write(b"\xff\xfe\n")
        say("still here")
    elif word == "chatter":
        print("no message at all\n" * 20_000, flush=True)
        say("said much")
    elif word == "stderr":
        sys.stderr.write("secret-of-mine " * 70_000)
        sys.stderr.flush()
        say("wrote it")
    elif word == "files":
        say(json.dumps([ask(f"fs/{method}_text_file", **params) for method, params in json.loads(rest)]))
    elif word == "fill":
        with open("filled", "wb") as file:
            file.write(bytes(int(rest)))
        say("filled")
        cancelled.wait()
    elif word == "terminal":
        say(json.dumps(ask("terminal/create", command="ls")))
    elif word == "fork":
        child = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(300)"
        subprocess.Popen([sys.executable, "-c", child, "left-behind"], start_new_session=True).wait()
        say("forked")
    elif word == "see":
        say(json.dumps({"cwd": os.getcwd(), "session": session, "env": sorted(os.environ), "root": os.listdir("/")}))
    elif word == "stop":
        say("so far")
        return rest
    return "end_turn"


def prompted(number, text):
    reason = work(text)
    send({"id": number, "result": {"stopReason": reason}})


for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params")
    if method == "initialize":
        if "hang-at-start" in sys.argv:
            threading.Event().wait()
        version = 7 if "other-version" in sys.argv else params["protocolVersion"]
        send({"id": number, "result": {"protocolVersion": version, "agentCapabilities": {}}})
    elif method == "session/new":
        session.update(params)
        if "needs-login" in sys.argv:
            send({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
            continue
        send({"id": number, "result": {"sessionId": "s1"}})
    elif method == "session/prompt":
        threading.Thread(target=prompted, args=(number, params["prompt"][0]["text"]), daemon=True).start()
    elif method == "session/cancel":
        cancelled.set()
    elif method is None and number in waiting:
        answered, answer = waiting.pop(number)
        answer.update(message)
        answered.set()
