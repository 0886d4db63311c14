"""The facts: every event type, its envelope, and how both are written and read.

Rules.
1. An event says what happened, in the past tense: `ToolRequested` is `tool.requested`. Types are permanent.
2. New fields are optional with a default. New meaning is a new type. For a field that must change its meaning, bump
`version` and add a pure upcaster for the stored dict beside the class. The log is never rewritten.
3. Reading is two steps: peek the envelope, look the type up. An unknown type (or a newer version of a known one) is
`Opaque`: it folds as nothing and passes through to clients untouched.
4. Own fields never use an envelope name.

An event type that only one actor needs lives beside that actor; subclassing `Event` is all the registration there is.
One of an installed package that changes the state of its thread says how itself (`Event.patch`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec

from core.errors import Invalid
from core.phrases import LANGUAGES, Phrase, paths

Json = dict[str, Any]
ENVELOPE = frozenset(("id", "type", "kind", "aggregate", "actor", "at", "v", "run", "cause", "blob"))
"""The names of the envelope's fields."""
Message = dict[str, Any]
"""A LangChain message as its flat dump: `type`, `id`, `content`, and what else it has; absent means default."""


class Private(NamedTuple):
    """Annotation of a field whose text is replaced in a redacted export: by a placeholder of this kind."""

    kind: str


User = Annotated[str, Private("user")]
"""The name of a user of the installation."""
Worker = Annotated[str, Private("worker")]
"""The name of a process, which holds that of its machine."""
Milliseconds = Annotated[int, msgspec.Meta(le=10**12)]
"""The time that something took. Longer ones, which only a file of a stranger names, are no time."""
Address = Annotated[str, Private("address")]
"""A place outside: a URL with its query, a conversation of a chat platform."""

HostPath = Annotated[str, Private("path")]
"""A path of a machine, which may name a person."""


class Aggregate(NamedTuple):
    """The unit of consistency: everything about one thread (memory, channel …) is one ordered log."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.id}"


def thread(thread_id: str) -> Aggregate:
    return Aggregate("thread", thread_id)


def type_of(class_name: str) -> str:
    """`RunCancelRequested` → `run.cancel_requested`: the first word is the noun, the others say what happened to it."""
    noun, *rest = re.findall(r"[A-Z][a-z0-9]*", class_name)
    return ".".join([noun.lower(), "_".join(word.lower() for word in rest)]) if rest else noun.lower()


_unknown: set[str] = set()
"""Types that no class has claimed: they are not looked for again, until a class is declared."""
MAX_UNKNOWN = 10_000


def _check(phrase: Phrase, cls: type) -> None:
    """Raises `Invalid` for words of an event type that could not be shown."""
    try:
        for language in LANGUAGES:
            paths(phrase.template(language))
    except (AttributeError, TypeError, ValueError) as error:
        raise Invalid(f"event {cls.__module__}.{cls.__qualname__}: phrase: {error}") from error


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=type_of):
    """Base of every fact: the type's own fields. The envelope is added by `append`."""

    version: ClassVar[int] = 1
    upcasters: ClassVar[Mapping[int, Callable[[Json], Json]]] = {}
    """`{n: f}`: f turns the stored dict of version n into that of version n + 1."""
    phrase: ClassVar[Phrase | None] = None
    """The event in people's words. None: that of an extension without words, which is shown by its type and fields."""

    def patch(self, values: Mapping[str, Any]) -> Json:
        """Returns what the event changes of its thread's values, if its type is an extension's: new values by name.

        Pure, and total: it is called for each fold, today and in ten years. `messages` belong to runs and cannot be
        changed by it. The types of this file do not use it: what they change is in `core.thread.state`.
        """
        return {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        _unknown.clear()
        if taken := sorted(ENVELOPE.intersection(cls.__dict__["__slots__"])):
            raise Invalid(f"event {cls.__module__}.{cls.__qualname__}: {', '.join(taken)}: a name of the envelope")
        if cls.phrase is not None:
            _check(cls.phrase, cls)


# ── thread ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class ThreadCreated(Event, frozen=True):
    """A thread exists from here on. First event of its aggregate. `user` owns it."""

    phrase = Phrase("Conversation begun", "对话已开始", "for {user}< {metadata}>", "用户 {user}< {metadata}>")
    user: User
    metadata: Json = {}


class ThreadAnnotated(Event, frozen=True):
    """Metadata merged into the thread's, key by key; `null` values are kept as values. The keys `removed` are gone."""

    phrase = Phrase(
        "Conversation annotated",
        "对话已标注",
        "{metadata:json}< without {removed}>",
        "{metadata:json}< 去掉 {removed}>",
    )
    metadata: Json
    removed: tuple[str, ...] = ()


class ThreadTitled(Event, frozen=True):
    """The thread has a title that no person chose: the first one counts, while the state has no other title."""

    phrase = Phrase(
        "Title given",
        "已命名",
        "{title:quote}< by {model}><: {reason}>",
        "{title:quote}< 由 {model}><：{reason}>",
    )
    title: str
    model: str | None = None
    """The author. None: the title is the beginning of the person's message."""
    request: str | None = None
    """Short hash of the model's request."""
    usage: Json | None = None
    """`input_tokens`, `output_tokens`, `total_tokens` of the model's answer."""
    reason: str = ""
    """The reason why no model wrote it."""


class ThreadForked(Event, frozen=True):
    """The commits up to `source_seq` of the thread `source` were copied: `patches` in order, oldest first."""

    phrase = Phrase(
        "Copied from another conversation",
        "从另一对话复制",
        "from thread {source} at {source_seq}, {patches:count} step<patches:count!=1?s>",
        "来自对话 {source}，位置 {source_seq}，{patches:count} 步",
    )
    source: str
    source_seq: int
    patches: list[Json]


class ThreadImported(Event, frozen=True):
    """The events before were read from a file in which they were those of the thread `source`. What they say was not
    witnessed here.
    """

    phrase = Phrase(
        "Read from a file",
        "从文件导入",
        "{events} event<events!=1?s> of thread {source}, by {by}",
        "对话 {source} 的 {events} 个事件，{by}",
    )
    source: str
    by: User
    events: int
    chain: str = ""
    """The hash of the thread's last event in the file."""


class ThreadExpirySet(Event, frozen=True):
    """The thread is deleted (`delete`) or pruned (`keep_latest`) after so many minutes without an event. None: it
    stays.
    """

    phrase = Phrase(
        "Expiry set",
        "过期时间已设定",
        "<!minutes?stays><strategy=delete?deleted after {minutes} idle minutes>"
        "<strategy=keep_latest?pruned after {minutes} idle minutes>",
        "<!minutes?一直保留><strategy=delete?闲置 {minutes} 分钟后删除>"
        "<strategy=keep_latest?闲置 {minutes} 分钟后精简>",
    )
    minutes: float | None
    strategy: Literal["delete", "keep_latest"] = "delete"


class FolderAttached(Event, frozen=True):
    """From here on the thread and its subagents work on a folder of the person's, in the place of an earlier one."""

    phrase = Phrase(
        "Folder attached",
        "文件夹已连接",
        "{path}, {access}, by {by}",
        "{path}，<access=read-write?可读写><access=read-only?只读>，{by}",
    )
    path: HostPath
    """The folder on the machine of the sandbox, without links in it. Empty in an imported thread: there is none."""
    access: Literal["read-write", "read-only"]
    by: User
    shown: tuple[str, ...] = ()
    """Patterns of names of files that are readable although they look like secrets."""


class FolderDetached(Event, frozen=True):
    """The thread does not work on the folder any more."""

    phrase = Phrase("Folder detached", "文件夹已断开", "by {by}", "{by}")
    by: User


class VariableSet(Event, frozen=True):
    """From here on the commands of the thread and of its subagents get a variable that the person chose, in the place
    of an earlier one of the name.
    """

    phrase = Phrase(
        "Variable set",
        "变量已设定",
        "{name} <sealed?(sealed)><!sealed?{value:quote}>, by {by}",
        "{name} <sealed?（已加密）><!sealed?{value:quote}>，{by}",
    )
    name: str
    by: User
    value: str = ""
    sealed: str = ""
    """The value, sealed for this thread and name, if it is a secret. In an imported thread both are empty: it has no
    such variable.
    """


class VariableRemoved(Event, frozen=True):
    """The commands of the thread do not get the variable any more."""

    phrase = Phrase("Variable removed", "变量已移除", "{name}, by {by}", "{name}，{by}")
    name: str
    by: User


class SharedFile(msgspec.Struct, frozen=True):
    """A file as it was when the thread was shared: a copy of it is kept. `path`: as the agent saw it."""

    path: str
    size: int


class ThreadShared(Event, frozen=True):
    """From here on whoever has an address may read the conversation up to `upto`, and these files, as they were."""

    phrase = Phrase(
        "Conversation shared",
        "对话已分享",
        "up to {upto}<events?, with the events up to {events}>, with {files:count} file<files:count!=1?s>, by {by}"
        "<audience=accounts?, for people with an account>",
        "到 {upto}<events?，含到 {events} 的事件>，{files:count} 个文件，{by}<audience=accounts?，仅限有账户的人>",
    )
    share: str
    by: User
    upto: int
    """The checkpoint that is shown."""
    digest: str
    """SHA-256 of the token in the address. Empty in an imported thread: nobody shared it there."""
    title: str = ""
    files: tuple[SharedFile, ...] = ()
    arguments: bool = False
    """Whether the arguments of tool calls are shown, too."""
    expires_at: str | None = None
    audience: Literal["everybody", "accounts"] = "everybody"
    """The people who may read it with the address: `accounts` are those with an account on this server."""
    events: int = 0
    """The last event that is shown, with all of the thread before it; 0: none."""


class ThreadUnshared(Event, frozen=True):
    """The address of a share leads nowhere any more."""

    phrase = Phrase("Sharing ended", "分享已结束", "{share} by {by}", "{share}，{by}")
    share: str
    by: User


class ThreadPruned(Event, frozen=True):
    """The events before were deleted; the state that they amounted to is here."""

    phrase = Phrase(
        "Earlier events deleted",
        "较早的事件已删除",
        "only the newest state stays<: {values}>",
        "只保留最新状态<：{values}>",
    )
    user: User
    metadata: Json
    created_at: str
    values: Json


class ThreadErased(Event, frozen=True):
    """The thread's content was erased at a person's wish; only this tombstone stays."""

    phrase = Phrase("Conversation erased", "对话已删除", "by {by}", "{by}")
    by: User


class StatePatched(Event, frozen=True):
    """State written from outside a run, through the reducers. `base` is the checkpoint it forks from (default: the
    head).
    """

    phrase = Phrase(
        "State written from outside",
        "状态被外部写入",
        "{values}< as {as_node}>< on checkpoint {base}>",
        "{values}< 作为 {as_node}><，检查点 {base}>",
    )
    values: Json
    as_node: str | None = None
    base: int | None = None
    source: Literal["update", "input", "loop", "fork"] = "update"
    """The checkpoint's source in the thread it was copied from."""


# ── run ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Resume(msgspec.Struct, frozen=True):
    """Answer to an interrupted run: a value for every question it waits on, or, if the value's keys are ids of
    questions, a value for each.
    """

    value: Any = None


class Interrupt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question a paused run waits on. `call_id` is the tool call that raised it."""

    id: str
    value: Any
    call_id: str | None = None


class Speaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person in a conversation of several, as the chat platform has them."""

    id: str
    name: str = ""
    user: User = ""
    """The user who they are on this server."""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The conversation of a channel in which a person asked for a run, and where its answer is delivered."""

    channel: str
    conversation: Address
    speaker: Speaker | None = None
    """The person who wrote the run's message, or answered its question, where several people talk to the agent."""


class RunOrigin(msgspec.Struct, frozen=True):
    """The event for which a run was requested, in any log. `event` is its id, the `key` of a chat message, or the
    `run_id` of a schedule's firing.
    """

    kind: str
    aggregate: str
    event: str


class RunRequested(Event, frozen=True):
    """A run was requested; the envelope's `run` is its id. The event holds everything that a worker needs."""

    phrase = Phrase(
        "Asked for",
        "已请求",
        "<{input.messages:last}><input&!input.messages:last?input><!input?go on>"
        "<multitask!=reject?, {multitask}><, from checkpoint {base}><, not before {not_before}>",
        "<{input.messages:last}><input&!input.messages:last?输入><!input?继续>"
        "<multitask!=reject?，{multitask}><，从检查点 {base}><，不早于 {not_before}>",
    )
    assistant: str = "lead_agent"
    input: Json | None = None
    """State to write before the first step, `messages` normalised (dicts with `type` and `id`). None: go on from
    `base`.
    """
    batch_table: str | None = None
    """The path of a batch's table. Each of `input.prompts` is for a subagent of its own."""
    base: int | None = None
    """Checkpoint to start from (default: the head when the run starts)."""
    config: Json = {}
    context: Json = {}
    metadata: Json = {}
    multitask: Literal["reject", "enqueue", "interrupt", "rollback"] = "reject"
    stream_modes: list[str] = []
    subgraphs: bool = False
    on_disconnect: Literal["continue", "cancel"] = "continue"
    not_before: str | None = None
    """Earliest start, ISO 8601 (from `after_seconds`)."""
    on_completion: Literal["keep", "delete"] = "keep"
    """`delete`: the thread was created for this run and is deleted some time after it."""
    interrupt_before: list[str] = []
    """Nodes (`model`, `tools`, or `*` for all) before which the run pauses."""
    interrupt_after: list[str] = []
    resume: Resume | None = None
    """The answer to the thread's pause. The run goes on from there and has no input."""
    webhook: Address | None = None
    """The URL to which the outcome is posted. Its query string may hold a secret: it is not shown."""
    feedback_keys: list[str] = []
    traceparent: str | None = None
    """The span of the request, if the metadata names none (W3C Trace Context)."""
    origin: Origin | None = None
    """None: requested over HTTP, or by the server itself."""
    wanted: RunOrigin | None = None
    """The pause that it answers, the schedule's firing, the chat message, or the call of a subagent."""
    fingerprint: str = ""
    """Hash of a request that came with an idempotency key, which made the run's id: its repetition is the same."""


class RunStarted(Event, frozen=True):
    """A worker owns the run from here on; all other guards are stale. Attempt 1 applies the input."""

    phrase = Phrase(
        "A process works on the run",
        "进程开始处理运行",
        "<attempt!=1?attempt {attempt} >by {worker}<, model {model}>",
        "<attempt!=1?第 {attempt} 次，>{worker}<，模型 {model}>",
    )
    attempt: int
    worker: Worker
    lease: int
    """Sequence of the wake-up in the work queue whose redelivery hands the run on."""
    delivery: int = 0
    """The order of that wake-up's delivery (`Wakeup.order`): only a later delivery hands the run on."""
    model: str | None = None
    prompt: str | None = None
    """Short hash of the system prompt: tells drift from divergence when the run is replayed."""
    config: str | None = None
    """Short hash of the configuration in force."""
    agent: str | None = None
    """The custom agent of the run."""
    skills: Json = {}
    """Content hashes of the skills that the run has, by name; of many, one for all as `*`."""
    setup: dict[str, str] = {}
    """SHA-256 of what models get besides the conversation: `prompt`, `tools` and `model`. Each is the log
    `setup/<sha256>`, or in that of `setup_thread` (`core.runs.prompts`).
    """
    setup_thread: str = ""
    """The thread whose log `thread_setup/<thread>` holds the contents with something of its user, if there are any."""
    release: str = ""
    """The version of Sika."""
    prepared: Json = {}
    """The server's additions to the input: other fields of the state, and of its messages, by `id`, the fields that
    differ (the uploads block, the reminder).
    """


class SetupRecorded(Event, frozen=True):
    """What models get besides the conversation: the only event of the log `setup/<SHA-256 of the content>`, or one of
    the log `thread_setup/<thread>` if it holds something of a user.

    `content` is the system prompt (`prompt`), the tools with their JSON schemas (`tools`), or the model with its
    parameters (`model`), in the form over which the hash was made.
    """

    phrase = Phrase(
        "Prompt recorded",
        "提示词已记录",
        "{part}, {content:count} character<content:count!=1?s>",
        "{part}，{content:count} 个字符",
    )
    part: Literal["prompt", "tools", "model"]
    content: str


class SetupErased(Event, frozen=True):
    """The contents of the log `thread_setup/<thread>` were erased, with the thread or with earlier events of it."""

    phrase = Phrase("Prompts erased", "提示词已删除")


class RunSuspended(Event, frozen=True):
    """The worker released the run, as a part of the system did not answer; another attempt follows after a pause.
    `reason` is fit for people.
    """

    phrase = Phrase(
        "Run given back",
        "运行已交还",
        "given back, taken up again after a pause: {reason}",
        "稍后重新开始：{reason}",
    )
    reason: str


class RunCancelRequested(Event, frozen=True):
    """A stop of the run was requested: its work is kept (`interrupt`) or undone (`rollback`)."""

    phrase = Phrase(
        "Stop asked for",
        "请求停止",
        "<action=interrupt?stop and keep><action=rollback?stop and undo>",
        "<action=interrupt?停止并保留><action=rollback?停止并撤销>",
    )
    action: Literal["interrupt", "rollback"] = "interrupt"


class RunCompleted(Event, frozen=True):
    """The run ended by itself."""

    phrase = Phrase("Run done", "运行完成", "done", "完成")


class RunPaused(Event, frozen=True):
    """The run ended at a breakpoint (before the nodes `next`), or at questions of tools (`interrupts`). A run with
    `resume`, or without input, goes on from here.
    """

    phrase = Phrase(
        "Run waits for a person",
        "运行等待用户",
        "before {next}<; asks for approval of {interrupts:approvals}><; asks {interrupts:questions}>",
        "在 {next} 之前<；请求审批 {interrupts:approvals}><；提问 {interrupts:questions}>",
    )
    next: list[str]
    interrupts: list[Interrupt] = []


class RunFailed(Event, frozen=True):
    """The run ended by an error. `error` is a class name, `text` is fit for people; `message` is the text as part of
    the conversation.
    """

    phrase = Phrase("Run failed", "运行失败", "{text}")
    error: str
    text: str
    message: Message | None = None


class RunCancelled(Event, frozen=True):
    """The run ended on request; its work stays."""

    phrase = Phrase("Run stopped", "运行已停止", "stopped; what it did stays", "已停止，已做的保留")


class RunRolledBack(Event, frozen=True):
    """The run ended on request, and the state is as it was before it started."""

    phrase = Phrase("Run undone", "运行已撤销", "undone", "已撤销")


class RunSteered(Event, frozen=True):
    """A message arrived for the agent during the run: the agent sees it before its next model call."""

    phrase = Phrase("A person said something meanwhile", "用户在运行中发言", "{message:quote}")
    message: Message


class MessageAdded(Event, frozen=True):
    """The agent has read its steering messages: they are part of the conversation from here on."""

    phrase = Phrase("The agent read messages", "代理已读取消息", "{messages:quote}")
    messages: list[Message]


class RunRemoved(Event, frozen=True):
    """The record of an ended run is not shown any more. Its work stays."""

    phrase = Phrase("Record of a run removed", "运行记录已移除", "its record is not shown any more", "不再显示其记录")


# ── about runs and threads ───────────────────────────────────────────────────────────────────────────────────────────


class FeedbackGiven(Event, frozen=True):
    """A user rated a run (or one message of it): 1 or -1. The same `feedback_id` replaces."""

    phrase = Phrase(
        "Feedback given",
        "已给出反馈",
        "{rating:signed} by {user}< {comment:quote}>",
        "{rating:signed}，{user}< {comment:quote}>",
    )
    feedback_id: str
    rating: int
    user: User
    comment: str | None = None
    message_id: str | None = None


class FeedbackRemoved(Event, frozen=True):
    """A rating was withdrawn."""

    phrase = Phrase("Feedback withdrawn", "反馈已撤回", "{feedback_id}")
    feedback_id: str


class FileUploaded(Event, frozen=True):
    """A file lies in the thread's uploads as `name`. `size` is in bytes; `original` is the client's name for it."""

    phrase = Phrase("File uploaded", "文件已上传", "{name}, {size} byte<size!=1?s>", "{name}，{size} 字节")
    name: str
    size: int
    sha256: str
    original: str | None = None


class FileConverted(Event, frozen=True):
    """A file's text lies beside it as the Markdown file `markdown`. `pages` is their number, if the format has any."""

    phrase = Phrase(
        "File converted",
        "文件已转换",
        "{name} → {markdown}<, {pages} page><pages&pages!=1?s>",
        "{name} → {markdown}<，{pages} 页>",
    )
    name: str
    markdown: str
    source_sha256: str
    pages: int | None = None
    markdown_sha256: str | None = None
    """SHA-256 of the Markdown file: another file under its name is a person's. None in older logs."""


class FileRejected(Event, frozen=True):
    """A file could not be converted. It stays as it is; `reason` is fit for people."""

    phrase = Phrase("File could not be read", "文件无法读取", "{name}: {reason}")
    name: str
    reason: str
    source_sha256: str = ""


class FileRemoved(Event, frozen=True):
    """A file was deleted from the thread's uploads, with its Markdown companion."""

    phrase = Phrase("File removed", "文件已移除", "{name}")
    name: str


class ArtifactReplaced(Event, frozen=True):
    """A person replaced the text of a file in the thread's outputs. `path` is virtual; `size` is in bytes."""

    phrase = Phrase(
        "File changed by a person", "文件被用户修改", "{path}, {size} byte<size!=1?s>", "{path}，{size} 字节"
    )
    path: str
    size: int
    sha256: str
    before: str
    """SHA-256 of the text it replaced."""


class WebhookDelivered(Event, frozen=True):
    """The outcome of the run was posted to its webhook, which accepted it with the HTTP status `status`."""

    phrase = Phrase("Webhook delivered", "Webhook 已送达", "{status} at try {attempt}", "{status}，第 {attempt} 次")
    status: int
    attempt: int


class WebhookFailed(Event, frozen=True):
    """The outcome of the run could not be posted to its webhook. `again_at` is the time of the next attempt, if there
    is any.
    """

    phrase = Phrase(
        "Webhook not delivered",
        "Webhook 未送达",
        "try {attempt}: {reason}; <again at {again_at}><!again_at?given up>",
        "第 {attempt} 次：{reason}；<{again_at} 重试><!again_at?已放弃>",
    )
    reason: str
    attempt: int
    again_at: str | None = None


# ── model and tools ──────────────────────────────────────────────────────────────────────────────────────────────────


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A policy's change of an answer or a call, and its reason: part of the event that it changed.

    `note` is shown to the model at its next call, and never again. With `again`, the model is called again although
    it was done.
    """

    policy: str
    action: str
    text: str = ""
    note: Message | None = None
    again: bool = False


class ModelCompleted(Event, frozen=True):
    """The model's message after all policies: the call is never repeated."""

    phrase = Phrase(
        "The model answered",
        "模型已回答",
        "[{duration_ms:seconds}"
        "<, {message.usage_metadata.input_tokens}+{message.usage_metadata.output_tokens} tokens>]"
        "< {decisions:decisions}>< {message:quote}>< {message:calls}>",
        "[{duration_ms:seconds}"
        "<，{message.usage_metadata.input_tokens}+{message.usage_metadata.output_tokens} 词元>]"
        "< {decisions:decisions}>< {message:quote}>< {message:calls}>",
    )
    message: Message
    request: str | None = None
    """Short hash of the conversation that was sent (without the system prompt): the key of a replay."""
    duration_ms: Milliseconds = 0
    order: list[tuple[str, int, int]] = []
    """The order of the parts as (part, index of the call, characters), where it is not that of `line_of`."""
    call_texts: dict[str, str] = {}
    """Raw argument text by call id, where it is not the compact JSON of the parsed arguments (clients saw the raw
    text).
    """
    decisions: list[Decision] = []


class ModelFailed(Event, frozen=True):
    """An attempt at a model call failed. `wait_ms` is the pause before the next attempt, None if there is none. `text`
    does not say where the model is, as people may read it; that of older servers does.
    """

    phrase = Phrase(
        "The model did not answer",
        "模型没有回答",
        "<{model}: >try {attempt} of {max_attempts}, {reason}< {status}>, <!wait_ms?given up>"
        "<wait_ms=0?then another model><wait_ms!=0?again in {wait_ms:seconds}><: {public}><!public?: {text}>",
        "<{model}：>第 {attempt}/{max_attempts} 次，{reason}< {status}>，<!wait_ms?已放弃><wait_ms=0?换用另一模型>"
        "<wait_ms!=0?{wait_ms:seconds} 后重试><：{public}><!public?：{text}>",
    )
    error: str
    text: str
    attempt: int
    max_attempts: int
    reason: str = "generic"
    wait_ms: int | None = None
    model: str | None = None
    """The configured name of the model, if it is not the run's."""
    status: int | None = None
    """The HTTP status of the provider's response."""
    public: str = ""
    """What people may read of it, also on older servers; only where the attempt is given up."""


class ModelSampled(Event, frozen=True):
    """A model answered what a tool call asked it, beside the conversation."""

    phrase = Phrase(
        "A tool asked a model",
        "工具询问了模型",
        "{model} for {call_id}<: {text:quote}>",
        "{model}，调用 {call_id}<：{text:quote}>",
    )
    call_id: str
    model: str
    """Its configured name."""
    text: str
    """The beginning of the answer."""
    usage: Json | None = None
    duration_ms: Milliseconds = 0


class ToolRequested(Event, frozen=True):
    """Intent, written before the tool starts. `args` is set where it differs from the model's arguments."""

    phrase = Phrase("Tool called", "工具已调用", "{name} [{effect}]< {args:subject}>")
    call_id: str
    name: str
    effect: Literal["pure", "idempotent", "once"]
    args: Json | None = None


class ToolCompleted(Event, frozen=True):
    """Outcome: the tool message for the model, and the tool's other changes of the state."""

    phrase = Phrase(
        "Tool ended",
        "工具已结束",
        "{message.name} [<message.status=error?error, ><exit_code!=0?exit {exit_code}, >"
        "<unknown?outcome unknown, >{duration_ms:seconds}<, sets {update}>]< {decisions:decisions}>"
        "< {message:quote}>",
        "{message.name} [<message.status=error?出错，><exit_code!=0?退出码 {exit_code}，>"
        "<unknown?结果未知，>{duration_ms:seconds}<，写入 {update}>]< {decisions:decisions}>"
        "< {message:quote}>",
    )
    call_id: str
    message: Message
    update: Json = {}
    duration_ms: Milliseconds = 0
    unknown: bool = False
    """True if a crash hid the outcome of a `once` tool, and the message says so."""
    exit_code: int | None = None
    """The exit code of the tool's command, if it is one that has one: not 0 means that it failed."""
    decisions: list[Decision] = []


class NetworkAccess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Connections of a command to one host. `sent` and `received` are bytes."""

    host: str
    port: int
    connections: int
    sent: int = 0
    received: int = 0
    refused: str = ""
    """Why they were refused, empty if they were not."""


class NetworkAccessed(Event, frozen=True):
    """A command in the sandbox has connected to hosts, or was refused to: one entry for each."""

    phrase = Phrase("Network used", "已使用网络", "{hosts:hosts}")
    call_id: str
    hosts: list[NetworkAccess]


# ── subagents ────────────────────────────────────────────────────────────────────────────────────────────────────────


class SubagentStarted(Event, frozen=True):
    """A tool call of the run was given to a subagent, whose own events are in the log `subagent/<subagent>`."""

    phrase = Phrase(
        "Subagent called",
        "子代理已调用",
        "{name} for {call_id}:< {description:short}>< {prompt:quote}>",
        "{name}，调用 {call_id}：<{description:short} >{prompt:quote}",
    )
    call_id: str
    subagent: str
    name: str
    """The type of the subagent, such as `general-purpose`."""
    description: str = ""
    prompt: str = ""
    model: str | None = None
    item: int | None = None
    """The index of the prompt of a batch that it works on, from 0."""


class SubagentProgressed(Event, frozen=True):
    """The subagent's model has answered: `message` is its message number `index`, from 1. Of a batch, `index` is the
    percentage of its items that have ended, and `message` says how many have.
    """

    phrase = Phrase(
        "Subagent works",
        "子代理工作中",
        "answer {index}< {message:quote}>< {message:calls}>",
        "第 {index} 次回答< {message:quote}>< {message:calls}>",
    )
    call_id: str
    index: int
    message: Message


StopReason = Literal["token_capped", "turn_capped", "loop_capped"]
"""Limits at which a subagent gives its last answer."""


class SubagentCompleted(Event, frozen=True):
    """The subagent has ended: once for each call. `result` is its answer, `error` the reason if it has none."""

    phrase = Phrase(
        "Subagent ended",
        "子代理已结束",
        "{status}< ({stop_reason})><retried?, to be tried again>"
        "<pause_seconds!=0?, the batch pauses {pause_seconds} s>"
        "< [{usage.input_tokens}+{usage.output_tokens} tokens]><status=completed? {result:quote}>"
        "<status!=completed? {error:quote}>",
        "<status=completed?完成><status=failed?失败><status=cancelled?已停止><status=timed_out?超时>"
        "<（{stop_reason}）><retried?，将重试><pause_seconds!=0?，批次暂停 {pause_seconds} 秒>"
        "< [{usage.input_tokens}+{usage.output_tokens} 词元]><status=completed? {result:quote}>"
        "<status!=completed? {error:quote}>",
    )
    call_id: str
    status: Literal["completed", "failed", "cancelled", "timed_out"]
    result: str = ""
    error: str | None = None
    stop_reason: StopReason | None = None
    """The limit at which it ended with what it had."""
    model: str | None = None
    usage: Json | None = None
    """`input_tokens`, `output_tokens`, `total_tokens` of all its model calls; None if nothing is known of them."""
    failure: str | None = None
    """The kind of the failure: a model's, such as `auth`, or the name of an error."""
    retried: bool = False
    """True if the item of a batch is given to another subagent."""
    pause_seconds: float = 0
    """Seconds for which the batch begins no other item from here on: its provider says that a quota is used up."""


# ── about the conversation ───────────────────────────────────────────────────────────────────────────────────────────


class ContextCompacted(Event, frozen=True):
    """From here on the conversation is `summary` and the messages `kept` (ids, in their order): older messages are in
    the log only. `messages` replace those of the same id, where only a part of a message remains.
    """

    phrase = Phrase(
        "Context summarised",
        "上下文已压缩",
        "{reason}<tokens_before!=0? [{tokens_before} → {tokens_after} tokens]>"
        ", {kept:count} message<kept:count!=1?s> kept<: {summary:quote}>",
        "{reason}<tokens_before!=0? [{tokens_before} → {tokens_after} 词元]>，保留 {kept:count} 条消息"
        "<：{summary:quote}>",
    )
    summary: Message
    kept: list[str]
    messages: list[Message] = []
    reason: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    model: str | None = None
    """The author of the summary. Its token usage is in the summary's `usage_metadata`."""


Blocker = Literal["none", "missing_evidence", "needs_user_input", "run_failed", "external_wait", "goal_not_met_yet"]
"""Reasons why a goal is not reached, in the words of DeerFlow's clients."""


class GoalSet(Event, frozen=True):
    """The thread has a goal: runs continue by themselves until it is reached, or paused. Replaces an earlier goal."""

    phrase = Phrase(
        "Goal set",
        "目标已设定",
        "{objective:quote} by {by}, at most {max_continuations} continuation<max_continuations!=1?s>",
        "{objective:quote}，{by}，最多继续 {max_continuations} 次",
    )
    objective: str
    by: User
    max_continuations: int
    max_no_progress_continuations: int
    """Continuations in a row without progress after which the goal is paused."""
    max_tokens: int | None = None
    """Tokens of its runs after which the goal is paused."""


class GoalEvaluated(Event, frozen=True):
    """A model has read what the envelope's run did for the goal. A continuation follows unless the goal is reached, or
    paused by the next event.
    """

    phrase = Phrase(
        "Goal evaluated",
        "目标已评估",
        "<satisfied?reached><!satisfied?{blocker}>: {reason}",
        "<satisfied?已达成><!satisfied?{blocker}>：{reason}",
    )
    satisfied: bool
    blocker: Blocker
    reason: str
    progressed: bool = True
    """The run gave a new answer, and a tool worked for it."""
    answer: str = ""
    """Short hash of the run's last answer, without differences of space and case."""
    tokens: int = 0
    """Tokens of the run."""
    model: str | None = None
    request: str | None = None
    """Short hash of the request for the evaluation."""
    usage: Json | None = None
    """`input_tokens`, `output_tokens`, `total_tokens` of the evaluation."""


class QuestionsSuggested(Event, frozen=True):
    """A model has suggested what the person may ask next; no `suggestions` if its answer was not usable."""

    phrase = Phrase("Questions suggested", "已建议问题", "{suggestions:quote}")
    suggestions: list[str]
    model: str
    request: str
    """Short hash of the request for the suggestions."""
    usage: Json | None = None
    """`input_tokens`, `output_tokens`, `total_tokens` of the answer."""


class GoalContinued(Event, frozen=True):
    """The goal goes on in the envelope's run, whose request follows. `evaluation` is the id of its cause."""

    phrase = Phrase("Goal goes on", "目标继续", "in a new run", "在新的运行中")
    evaluation: str


class GoalPaused(Event, frozen=True):
    """The goal does not go on by itself. With the blocker `needs_user_input` it does after the person's next run, else
    when it is set again.
    """

    phrase = Phrase("Goal paused", "目标已暂停", "{reason}")
    reason: str
    blocker: Blocker = "none"


class GoalReached(Event, frozen=True):
    """The goal is reached, and the thread has none any more."""

    phrase = Phrase("Goal reached", "目标已达成", "{reason}")
    reason: str


class GoalCleared(Event, frozen=True):
    """The goal was given up by the user `by`."""

    phrase = Phrase("Goal given up", "目标已放弃", "by {by}", "{by}")
    by: User


class ApprovalRequested(Event, frozen=True):
    """A tool call waits for a person. `digest` binds the answer to the call's arguments; from `deadline` (ISO 8601) on
    it counts as rejected.
    """

    phrase = Phrase(
        "Approval asked for",
        "请求审批",
        "{tool}< {args:arguments}> waits for a person<, until {deadline}><: {text}>",
        "{tool}< {args:arguments}> 等待用户<，截止 {deadline}><：{text}>",
    )
    approval: str
    call_id: str
    tool: str
    args: Json
    digest: str
    text: str = ""
    allowed: list[str] = []
    """Decisions: some of `approve`, `edit`, `reject`."""
    deadline: str | None = None
    form: Json | None = None
    """JSON schema of the fields that the person fills in (`core.forms`). The decision `edit` brings them."""
    described: str = ""
    """Of a tool of an MCP server: the version of what the model was told of it (`core.mcp.seen`)."""


class ApprovalResolved(Event, frozen=True):
    """The decision on a call that waited. `args` are the edited arguments, `message` is the reason for a rejection.
    `by` is the user who decided; None if the deadline passed.
    """

    phrase = Phrase(
        "Approval decided",
        "审批已决定",
        "<decision=approve?approved><decision=edit?approved with changes><decision=reject?rejected>"
        "<decision=expire?expired>< by {by}><: {message}>",
        "<decision=approve?已批准><decision=edit?修改后批准><decision=reject?已拒绝>"
        "<decision=expire?已过期><，{by}><：{message}>",
    )
    approval: str
    call_id: str
    decision: Literal["approve", "edit", "reject", "expire"]
    by: User | None = None
    args: Json | None = None
    message: str = ""


# ── envelope, reading and writing ────────────────────────────────────────────────────────────────────────────────────


class Blob(msgspec.Struct, frozen=True):
    """Reference to a body over 64 KiB: its SHA-256 and size in bytes."""

    sha256: str
    size: int


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"aggregate_id": "aggregate"}):
    """Fields around every event's own; on the wire both are one flat JSON object."""

    id: str
    """UUIDv7; also the `Nats-Msg-Id`."""
    type: str
    kind: str
    aggregate_id: str
    """`aggregate` on the wire."""
    actor: str
    at: str
    """Time, ISO 8601 with zone. Read as empty if a foreign event has none."""
    v: int = 1
    run: str | None = None
    cause: str | None = None
    """Id of the event that led to this one."""
    blob: Blob | None = None


class _Written(Envelope, frozen=True, omit_defaults=True):
    """The envelope as written: `type` comes from the event's tag."""

    type: str = ""


class Opaque(msgspec.Struct, frozen=True):
    """An event of a type (or version) that this build does not know, or an unreadable event: then `problem` says why.
    Folds as nothing.
    """

    type: str
    problem: str | None = None


class Record:
    """An event as stored: its sequence, its envelope, its body (decoded on first use)."""

    __slots__ = ("_event", "chain", "head", "labels", "raw", "seq")

    def __init__(
        self,
        seq: int,
        raw: bytes,
        head: Envelope | None = None,
        event: Event | Opaque | None = None,
        labels: frozenset[str] = frozenset(),
        chain: str | None = None,
    ) -> None:
        self.chain = chain
        """Its hash in the chain of its aggregate (`core.log.chain`); None for events of older versions."""
        self.labels = labels
        """Labels that held when it was appended, for actors that select by them (`Actor.only`)."""
        self.seq = seq
        self.raw = raw
        self.head = head or _peek(raw)
        self._event = event

    @property
    def event(self) -> Event | Opaque:
        """The decoded body. Never raises: a body that does not fit its schema is `Opaque`, with the problem."""
        if self._event is None:
            try:
                self._event = decode(self.head, self.raw)
            except (Invalid, ValueError, RecursionError) as error:
                self._event = Opaque(self.type, str(error))
        return self._event

    def decoded(self, event: Event | Opaque) -> None:
        """Stores a body that was decoded already."""
        self._event = event

    @property
    def aggregate(self) -> Aggregate:
        return Aggregate(self.head.kind, self.head.aggregate_id)

    @property
    def id(self) -> str:
        return self.head.id

    @property
    def type(self) -> str:
        return self.head.type

    @property
    def run(self) -> str | None:
        return self.head.run

    @property
    def at(self) -> str:
        return self.head.at

    def __repr__(self) -> str:
        return f"Record({self.seq}, {self.type}, {self.aggregate})"


_TOKEN = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]{1,256}")
"""A text that can be a part of a subject, and the name of a file."""
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,256}")
"""A text that can be the value of a header."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
UNREADABLE = "unreadable"
UNREADABLE_BYTES = 4096
"""Limit of the part of a message that its placeholder keeps."""


def malformed(head: Envelope) -> str | None:
    """Returns what is wrong with an envelope: a value that subjects, headers and files cannot hold. None if nothing."""
    if not (_TOKEN.fullmatch(head.kind) and _TOKEN.fullmatch(head.aggregate_id)):
        return f"aggregate: {head.kind[:80]!r}, {head.aggregate_id[:80]!r} cannot be parts of a subject"
    for name, value in (("id", head.id), ("type", head.type), ("actor", head.actor), ("cause", head.cause)):
        if value is not None and not _NAME.fullmatch(value):
            return f"{name}: 1 to 256 characters without space are expected, got {value[:80]!r}"
    if head.run is not None and not _TOKEN.fullmatch(head.run):
        return f"run: {head.run[:80]!r} cannot be a part of a subject"
    if head.blob is not None and not (_SHA256.fullmatch(head.blob.sha256) and head.blob.size >= 0):
        return "blob: a SHA-256 and a size are expected"
    return None


def is_foreign(event_type: str) -> bool:
    """Tells whether a type belongs to actors of other vendors: `x.<vendor>.<name>`."""
    return event_type.startswith("x.")


def unreadable(seq: int, raw: bytes, aggregate: Aggregate, problem: str) -> Record:
    """Returns a placeholder for a message in the log that is no event: it folds as nothing, stops no reader, and can be
    shown: its body is JSON with the problem and the beginning of the message.
    """
    head = Envelope(
        id=f"unreadable-{seq}", type=UNREADABLE, kind=aggregate.kind, aggregate_id=aggregate.id, actor="?", at=""
    )
    body = {"problem": problem, "body": base64.b64encode(raw[:UNREADABLE_BYTES]).decode()}
    shown = _encoder.encode({**msgspec.to_builtins(head), **body})
    return Record(seq, shown, head, Opaque(UNREADABLE, problem))


_head_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()
_decoders: dict[type[Event], msgspec.json.Decoder[Event]] = {}
_catalogue: dict[str, type[Event]] = {}
_left_out: set[type[Event]] = set()
"""Classes of installed packages whose names were taken."""


def _peek(raw: bytes) -> Envelope:
    try:
        head = _head_decoder.decode(raw)
    except (ValueError, RecursionError) as error:  # msgspec's errors are among the first
        raise Invalid(f"not an event: {error}: {raw[:80]!r}") from error
    at = _with_zone(head.at)
    return head if at is head.at else msgspec.structs.replace(head, at=at)


def _with_zone(at: str) -> str:
    """Returns a time with a zone: UTC if it has none; empty if it is no time."""
    try:
        time = datetime.fromisoformat(at)
    except ValueError:
        return ""
    return at if time.tzinfo is not None else time.replace(tzinfo=UTC).isoformat(timespec="microseconds")


def _subclasses(base: type[Event]) -> Iterator[type[Event]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def catalogue() -> Mapping[str, type[Event]]:
    """Returns this process's event types by name. Raises `Invalid` if two classes claim the same name."""
    for cls, first in _clashes():
        raise Invalid(f"event {_name(cls)}: declared in {first.__module__} and in {cls.__module__}")
    return _catalogue


def patching() -> list[type[Event]]:
    """Returns the types of extensions that change the state of their threads (`Event.patch`)."""
    return [cls for cls in _subclasses(Event) if cls.patch is not Event.patch]


def leave_out_clashes() -> list[str]:
    """Leaves classes out of the catalogue that claim the name of an earlier class; returns what was left out."""
    clashes = list(_clashes())
    _left_out.update(cls for cls, _ in clashes)
    return [f"event {_name(cls)}: the name is taken by {first.__module__}" for cls, first in clashes]


def _clashes() -> Iterator[tuple[type[Event], type[Event]]]:
    """Takes all classes into the catalogue; yields those whose name another module has taken, with the holder."""
    for cls in _subclasses(Event):
        first = _catalogue.setdefault(_name(cls), cls) if cls not in _left_out else cls
        if first is not cls and first.__module__ != cls.__module__:
            yield cls, first


def _name(cls: type[Event]) -> str:
    return str(cls.__struct_config__.tag)


def encode(event: Event, envelope: Envelope) -> bytes:
    """Returns a flat JSON object: the envelope's fields, then the event's (its `type` among them)."""
    head = _encoder.encode(envelope)
    return head[:-1] + b"," + _encoder.encode(event)[1:]


def written(event: Event, **fields: Any) -> Envelope:
    """Returns the envelope to write around an event."""
    return _Written(v=event.version, **fields)


def decode(head: Envelope, raw: bytes) -> Event | Opaque:
    """Returns the event of a stored body, upcast to the current version. Raises `Invalid` if a known type does not fit
    its schema.
    """
    cls = _catalogue.get(head.type) or _looked_up(head.type)
    if cls is None or head.v > cls.version:
        return Opaque(head.type)
    try:
        if head.v < cls.version:
            return _upcast(cls, head.v, msgspec.json.decode(raw))
        decoder = _decoders.get(cls) or _decoders.setdefault(cls, msgspec.json.Decoder(cls))
        return decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise Invalid(f"event {head.id} ({head.type}): {error}") from error


def _looked_up(name: str) -> type[Event] | None:
    """Returns the class of a type that was not decoded yet."""
    if name in _unknown:
        return None
    cls = catalogue().get(name)
    if cls is None:
        if len(_unknown) >= MAX_UNKNOWN:
            _unknown.clear()
        _unknown.add(name)
    return cls


def _upcast(cls: type[Event], version: int, stored: Json) -> Event:
    for step in range(version, cls.version):
        if step not in cls.upcasters:
            raise Invalid(f"{cls.__name__}: no upcaster from version {step}")
        try:
            stored = cls.upcasters[step](stored)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise Invalid(f"{cls.__name__}: version {step} does not fit its upcaster: {error!r}") from error
    return msgspec.convert(stored, cls)
