"""The prompt of the debugger: commands on lines of standard input, from a person or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from channels.cli.log.report import step_text
from channels.terminal.text import Style, clean, one_line
from core.errors import SikaError
from core.events import Record
from core.phrases import counted, quote
from core.replay.debugger import Decision, Moment, edited
from core.replay.moments import moment as moments

HELP = """\
  step            go on to the next step (also: s, an empty line)
  continue        go on to the next breakpoint (c)
  show [PATH]     the folded state, or a part of it such as messages[-1].content (p)
  next            the next step in full: as recorded, and as the loop makes it now (n)
  edit PATH VALUE change the recorded step, and see whether later decisions differ; VALUE is JSON or text (e)
  quit            end the replay (q)"""
WIDTH = 160


class Prompt:
    """Asks how a replay goes on. `quit` cancels `scope`, and so does the end of the input."""

    def __init__(
        self,
        scope: anyio.CancelScope,
        style: Style,
        write: Callable[[str], None] = print,
        read: Callable[[], str] = sys.stdin.readline,
    ) -> None:
        self._scope, self._style, self._write, self._read = scope, style, write, read

    async def ask(self, moment: Moment) -> Decision:
        """Shows the moment, and carries out commands until one goes on."""
        for line in _lines(moment, self._style):
            self._write(line)
        record = moment.record
        while True:
            text = await anyio.to_thread.run_sync(self._read, abandon_on_cancel=True)
            command, _, rest = text.strip().partition(" ")
            if not text or command in ("quit", "q"):
                self._scope.cancel()
                await anyio.lowlevel.checkpoint()
            elif command in ("step", "s", ""):
                return Decision(record, step=True)
            elif command in ("continue", "c"):
                return Decision(record, step=False)
            else:
                record = self._carry_out(moment._replace(record=record), command, rest.strip())

    def _carry_out(self, moment: Moment, command: str, rest: str) -> Record:
        """Carries out a command that stays at the moment. Returns the record, perhaps a changed one."""
        try:
            match command:
                case "show" | "p":
                    self._write(_state(moment, rest))
                case "next" | "n":
                    self._write(f"recorded {_json(msgspec.json.decode(moment.record.raw))}")
                    self._write(f"now      {_json(moment.now)}")
                case "edit" | "e":
                    path, _, value = rest.partition(" ")
                    changed = edited(moment.record, path, _value(value))
                    self._write(f"changed: {path} of seq:{changed.seq}, for this replay only")
                    return changed
                case _:
                    self._write(HELP)
        except SikaError as error:
            self._write(self._style.red(clean(str(error))))
        return moment.record


def _lines(moment: Moment, style: Style) -> Sequence[str]:
    state, record = moment.state, moment.record
    last = state.messages[-1] if state.messages else {}
    before = f"{counted(len(state.messages), 'message')}, the last: {last.get('type', 'none')} {quote(last, 80)}"
    return [
        style.bold(f"seq:{record.seq} {record.type}, run {moment.run}"),
        f"  before    {before.rstrip()}",
        f"  recorded  {one_line(step_text(msgspec.json.decode(record.raw)), WIDTH)}",
        f"  now       {one_line(step_text(moment.now), WIDTH)}",
    ]


def _state(moment: Moment, path: str) -> str:
    values: Any = msgspec.to_builtins(moment.state.values)
    value = moments.part(values, path) if path else values
    return clean(value) if isinstance(value, str) else _json(value)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _json(value: Any) -> str:
    return clean(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
