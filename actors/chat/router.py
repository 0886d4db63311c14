"""Routes turns: access is checked, then a turn is a choice, a command, an answer, or a run."""

from __future__ import annotations

import msgspec
import structlog

from actors.chat import commands, questions
from actors.chat.access import judged
from actors.chat.again import Again
from actors.chat.answers import FAILED, plan_id
from actors.chat.buttons import may_decide, plan_of, replacing
from actors.chat.call import Call
from actors.chat.commands import Command
from actors.chat.deletions import Deletions
from actors.chat.edits import Edits, is_edit
from actors.chat.files import Files
from actors.chat.perform import Performer
from actors.chat.person import person_user, user_of
from actors.chat.place import Place
from actors.chat.questions import Question
from actors.chat.runs import ACTOR, DECIDED, Runs
from actors.chat.session import NoAgent
from actors.chat.turns import Turn
from core.chat.account import platform_of
from core.chat.commands import START
from core.chat.connections import Connections
from core.chat.facts import ANEW, RATINGS, SEND_AGAIN, STOP, Button, DeliveryPlanned
from core.chat.state import Chats, Conversation
from core.config.channels import AccountSettings
from core.config.load import ConfigSource
from core.errors import Conflict, Unavailable
from core.identity.standing import Standing
from core.log.store import EventLog
from core.memory.facts import Memories
from core.runs.intake import Intake
from core.thread.threads import Threads

log = structlog.get_logger("sika.chat")

# Texts.
STRANGER = "You cannot talk to me yet. Your id is `{sender}`: the operator of this server can let you in with it."
NOT_CONNECTED = "Connect first: open the settings of the web page, choose this platform, and send me the code."
CONNECTED = "Connected. From here on your messages are yours on the web page, too."
CONFIRM = (
    "This code connects you with the account `{name}`: whoever uses it reads what you write to me from then on, and "
    "what I remember of you becomes its memory. Did you ask for it? Then send `{answer}`. Otherwise do nothing."
)
ENDS = "You are connected with the account `{name}`, which would end."
PRIVATELY = "Send me the code in a private chat."
BAD_CODE = "This code is not valid, or not any more. Get a new one in the settings of the web page."
INACTIVE = "Your account on this server is disabled: ask its administrator."
NOT_YOURS = "Only the person who was asked can decide that."


class Router:
    """Decides on turns. `chats`: the conversations."""

    def __init__(
        self,
        chats: Chats,
        config: ConfigSource,
        threads: Threads,
        intake: Intake,
        files: Files,
        log: EventLog,
        standing: Standing,
    ) -> None:
        self._config = config
        self._threads = threads
        self._connections = Connections(log, actor=ACTOR)
        self._standing = standing
        self._memories = Memories(log, actor=ACTOR)
        self._runs = Runs(chats, threads, intake, files, log)
        self._performer = Performer(self._runs, threads, intake, log)
        self._again = Again(self._runs, log)
        self._edits = Edits(self._runs, self._performer, log)
        self._deletions = Deletions(self._runs, threads, intake, log)

    async def route(self, conversation: str, account: str, turn: Turn, state: Conversation) -> None:
        """Decides on a turn. Raises `Unavailable`."""
        call = self._call(conversation, account, turn, state)
        try:
            await self._route(call)
        except NoAgent as error:
            log.warning("no agent of this name", account=account, reason=str(error))
            await self._runs.end(call, "refused", call.says(f"That did not work: {error}"), reason=str(error))
        except (Unavailable, Conflict):
            raise
        except Exception as error:  # else the messages after it would wait for ever
            log.exception("a message was not taken", conversation=conversation, message=call.first.id)
            await self._runs.end(call, "refused", call.says(FAILED), reason=type(error).__name__)

    async def refuse(self, conversation: str, account: str, turn: Turn, state: Conversation) -> None:
        """Ends a turn on which nobody could decide. Raises `Unavailable`."""
        call = self._call(conversation, account, turn, state)
        await self._runs.end(call, "refused", call.says(FAILED), reason="given up")

    def _call(self, conversation: str, account: str, turn: Turn, state: Conversation) -> Call:
        config = self._config.current()
        settings = config.channels.account(account) or AccountSettings()
        event = turn.first.event
        user = user_of(account, event.target, event.sender)
        return Call(conversation, account, turn, state, settings, config, user)

    async def _route(self, call: Call) -> None:
        event, platform = call.first.event, platform_of(call.account)
        if event.deleted:
            return await self._deletions.deleted(call)
        event = msgspec.structs.replace(event, mentioned=call.turn.mentioned)
        command = commands.parsed(event.text, platform) if event.choice is None else None
        if (code := commands.code_of(command)) is not None:
            return await self._connect(call, *code)
        connection = (await self._connections.state()).of_person(call.account, event.sender)
        if call.config.channel_connections.enabled and connection is not None:
            user = user_of(call.account, event.target, event.sender, connection.user)
            call = call._replace(user=user, connected=user == connection.user, account_user=connection.user)
            if not await self._standing.active(connection.user):
                return await self._runs.end(call, "refused", call.says(INACTIVE), reason="the account is disabled")
        verdict = judged(event, call.state, call.config, call.account, connection)
        match verdict.outcome:
            case "refused":
                return await self._refuse(call, verdict.reason)
            case "unconnected":
                return await self._runs.end(call, "refused", call.says(NOT_CONNECTED), reason=verdict.reason)
            case "ignored":
                return await self._runs.end(call, "ignored", reason=verdict.reason)
        if event.choice is not None:
            return await self._button_pressed(call)
        if is_edit(call.state, event):
            return await self._edits.changed(call, call.state.heard[event.message])
        if command is not None:
            return await self._performer.perform(call, command)
        if call.turn.is_blank:
            return await self._blank(call)
        await self._written(call)

    # ── who may talk ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _connect(self, call: Call, code: str, confirmed: bool) -> None:
        """Connects a person who confirms it: whoever made the code reads from then on what they write."""
        event = call.first.event
        enabled = call.config.channel_connections.enabled
        if event.target.kind == "group":
            return await self._runs.end(call, "refused", call.says(PRIVATELY), reason="a code in a group")
        user = await self._connections.offered(code, call.account) if enabled and not confirmed else None
        if user is not None:
            return await self._runs.end(call, "command", call.says(await self._confirmation(call, code, user)))
        connection = None
        if enabled and confirmed:
            connection = await self._connections.bind(code, call.account, event.sender, event.sender_name)
        if connection is None:
            return await self._runs.end(call, "refused", call.says(BAD_CODE), reason="no such code")
        await self._memories.move(person_user(call.account, event.sender), connection.user)
        await self._runs.end(call, "command", call.says(CONNECTED), user=connection.user)

    async def _confirmation(self, call: Call, code: str, user: str) -> str:
        """Returns the question whether to connect: it names the account, and what ends."""
        sign = "!" if platform_of(call.account) in commands.SHOUTED else "/"
        text = CONFIRM.format(name=await self._standing.name(user), answer=f"{sign}connect {code} yes")
        before = (await self._connections.state()).of_person(call.account, call.first.event.sender)
        if before is None or before.user == user:
            return text
        return f"{ENDS.format(name=await self._standing.name(before.user))} {text}"

    async def _refuse(self, call: Call, reason: str) -> None:
        """Tells a person their id, once in a conversation."""
        sender = call.first.event.sender
        plan = plan_id(call.conversation, "stranger", sender)
        if plan in call.state.plans:
            return await self._runs.end(call, "ignored", reason=reason)
        log.warning("a person may not talk to the agent", account=call.account, sender=sender, reason=reason)
        notice = msgspec.structs.replace(call.says(STRANGER.format(sender=sender)), plan=plan)
        await self._runs.end(call, "refused", notice, reason=reason)

    # ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _blank(self, call: Call) -> None:
        """A mention alone, which asks for nothing: the bot greets, and answers no question with it."""
        if call.target.kind == "group" and not call.turn.mentioned:
            return await self._runs.end(call, "ignored", reason="nothing is written in it")
        await self._performer.perform(call, Command(START))

    async def _written(self, call: Call) -> None:
        """A message: the answer to a question, or the next one of the conversation."""
        place = await self._runs.current(call)
        if place and call.id("run") in place.state.runs:  # before a crash: a question that waits is that run's own
            closed = [] if questions.pending(place.state) else await self._runs.close(call, place)
            return await self._runs.run(call, call.turn.content, also=closed)
        question = next(iter(questions.pending(place.state)), None) if place else None
        shown = await self._runs.planned(call, plan_of(call.state, question)) if question else None
        mine = shown is None or may_decide(call, shown)
        if question and question.approval and not mine:  # others would have the call given up by writing on
            return await self._runs.end(call, "refused", call.says(NOT_YOURS), reason="not the person who was asked")
        answers_it = question and mine and call.turn.text and not call.turn.has_files
        if place and question and answers_it and (shown or not question.approval):
            option = question.option(call.turn.text)
            if option is not None:
                return await self._decide(call, place, question, option, shown, "answer")
            if (question.form or not question.approval) and place.state.paused is not None:
                return await self._runs.resume(call, place, question, call.turn.text, [], "answer")
        wordless = call.turn.has_files and not call.turn.text and call.settings.gather_seconds
        if question is None and wordless:
            return await self._runs.ask(call)
        closed = await self._runs.close(call, place) if place else []
        await self._runs.run(call, call.turn.content, also=closed)

    async def _button_pressed(self, call: Call) -> None:
        """A pressed button."""
        choice = call.first.event.choice
        assert choice is not None
        if choice.button == STOP.id:
            return await self._performer.stop(call, choice.plan)
        plan = call.state.plans.get(choice.plan)
        shown = await self._runs.planned(call, choice.plan)
        if plan is None or shown is None:
            return await self._runs.end(call, "ignored", reason="a button of a message that is not remembered")
        if choice.button == ANEW.id:
            return await self._edits.pressed(call, shown, NOT_YOURS)
        if choice.button == SEND_AGAIN.id:
            return await self._again.pressed(call, shown, NOT_YOURS)
        if choice.button in RATINGS:
            return await self._performer.rate(call, shown, RATINGS[choice.button])
        if not may_decide(call, shown):
            return await self._runs.end(call, "refused", call.says(NOT_YOURS), reason="not the person who was asked")
        call = call._replace(user=shown.user)
        state = await self._threads.load(shown.thread)
        if (run := call.id("run")) in state.runs:  # before a crash
            return await self._runs.end(call, "choice", thread=shown.thread, run=run)
        question = next((each for each in questions.pending(state) if each.id == shown.question), None)
        option = next((each for each in question.buttons if each.id == choice.button), None) if question else None
        if question is None or option is None or not plan.question:
            return await self._runs.end(call, "choice", call.says(DECIDED), reason="decided already")
        await self._decide(call, Place(shown.thread, state), question, option, shown, "choice")

    async def _decide(
        self,
        call: Call,
        place: Place,
        question: Question,
        option: Button,
        shown: DeliveryPlanned | None,
        outcome: str,
    ) -> None:
        """Takes an option of a question."""
        line = questions.decided(option, call.who, approval=question.approval)
        closed = [replacing(shown, line)] if shown is not None else []
        if question.approval:
            return await self._runs.resume(call, place, question, {"decision": option.id}, closed, outcome)
        message = next(message for message in place.state.messages if message.get("id") == question.id)
        response = questions.response(message, option)
        kwargs = {"human_input_response": response} if response else None
        text = str(response["value"]) if response else option.label
        await self._runs.run(call, text, kwargs=kwargs, outcome=outcome, also=closed)
