"""The verbs `sika log …`: what recorded threads show. A file for each, which is imported when it is called."""

from __future__ import annotations

from channels.cli.verbs import Parser, Verb

VERBS = (
    Verb("list", "the threads, newest first", "log.list"),
    Verb("find", "events", "log.find"),
    Verb("show", "the steps, one line each; or one event in full", "log.show"),
    Verb("tail", "the events, and new ones as they come", "log.tail"),
    Verb("state", "the state they fold to", "log.state"),
    Verb("why", "the causes of an event or a call, from the person's message on", "log.why"),
    Verb("request", "what a model call got: parameters, tools, system prompt, messages", "log.request"),
    Verb("tree", "the runs as trees of what took time, with their subagents", "log.tree"),
    Verb("tui", "the events and states full screen, with a slider through time", "log.tui"),
    Verb("open", "the timeline of a thread in the browser", "log.open"),
    Verb("diff", "compare two threads, runs (THREAD#2) or moments (THREAD@EVENT)", "log.diff"),
    Verb("verify", "check that the log, or an exported file, is sound", "log.verify"),
    Verb("export", "write a thread, with all that it called, into a file", "log.export"),
    Verb("import", "append the events of an exported file to the log", "log.import_"),
    Verb("pin", "write the last run as a test, which fails when it would be decided otherwise", "log.pin"),
    Verb("serve-recorded", "serve a model that answers from a file (OpenAI's protocol)", "log.serve_recorded"),
    Verb("record", "pass requests on to a model, and write them with their answers into a file", "log.record"),
    Verb("replay", "execute the recorded runs again on their outcomes, and compare", "log.replay"),
    Verb("whatif", "go on from a moment under other conditions, live, in a copy of the sandbox", "log.whatif"),
    Verb("fork", "make a thread of its own of a thread as it was at a moment", "log.fork"),
)


def arguments(parser: Parser) -> None:
    parser.verbs(VERBS, required=True)
