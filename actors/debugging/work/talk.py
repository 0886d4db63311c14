"""Tasks about people, the memory and long conversations."""

from __future__ import annotations

from actors.debugging.work.task import OUTPUTS, Result, Turn, task

FILLER = "Here is one more paragraph of the minutes of the harbour committee, which you need not comment on. " * 60
ROOMS = ["walnut", "copper", "saffron", "indigo", "marble", "amber"]


@task(
    "memory",
    "Hello! I am Ines. I work on the upload service of a shipyard, and I like my answers in metric units. Just "
    "say hello.",
    Turn("Where do I work, and on what?", new_thread=True),
)
async def remember_a_person(result: Result) -> None:
    result.says("shipyard")
    result.says("upload")


@task(
    "memory",
    "My favourite colour is green. Please answer with one word.",
    Turn("No, wait: my favourite colour is violet, not green. One word, please.", new_thread=True),
    Turn("What is my favourite colour? One word.", new_thread=True),
)
async def take_a_correction(result: Result) -> None:
    result.says("violet")


@task(
    "people",
    Turn("I am Ada. I want the report as outputs/ada.txt, and in it only the word north.", "ada"),
    Turn("I am Bob. I want mine as outputs/bob.txt, with the word south. Leave Ada's as it is.", "bob"),
    Turn("And which word did each of us want?", "ada"),
)
async def serve_two_people(result: Result) -> None:
    assert (await result.text(f"{OUTPUTS}/ada.txt")).strip().lower() == "north"
    assert (await result.text(f"{OUTPUTS}/bob.txt")).strip().lower() == "south"
    result.says("north")
    result.says("south")


@task(
    "conversation",
    *(
        text
        for number, room in enumerate(ROOMS, 1)
        for text in (f"Room {number} is called {room}. Just say OK.", f"{FILLER} Just say OK.")
    ),
    "List the names of all rooms by number.",
)
async def keep_a_long_conversation(result: Result) -> None:
    for room in ROOMS:
        result.says(room)


@task(
    "conversation",
    f"Prepare the list of guests as {OUTPUTS}/guests.txt, one name a line: Ann, Bea and Cem.",
    "Take Bea off it, and add Dov.",
    "No more changes of Ann. Sort it in reverse order.",
    "How many guests are there now?",
)
async def work_over_several_messages(result: Result) -> None:
    lines = [line.strip() for line in (await result.text(f"{OUTPUTS}/guests.txt")).splitlines() if line.strip()]
    assert lines == ["Dov", "Cem", "Ann"], lines
    result.says(r"\b(3|three)\b")
