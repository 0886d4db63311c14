"""The newest answer of a run while it is being made, from facts and previews."""

from __future__ import annotations

from core.events import ModelCompleted, Record
from core.runs.follow import Batch
from core.runs.previews import Ahead, Preview, Reader, RunPreview
from core.thread.fold import Folding
from core.thread.messages import text_of
from core.thread.state import Run, ThreadState


class Growing:
    """The text of one run's newest answer while it is being made."""

    def __init__(self, run_id: str, state: ThreadState) -> None:
        self.text = ""
        self._id = run_id
        self._folding = Folding(state)
        self._reader = Reader()
        self._ahead: Ahead[Preview] = Ahead()

    @property
    def run(self) -> Run:
        return self._folding.state.runs[self._id]

    def is_whole(self) -> bool:
        """Tells whether the run has ended, or is not there any more."""
        run = self._folding.state.runs.get(self._id)
        return run is None or not run.open

    def take(self, batch: Batch) -> None:
        """Takes in facts of the thread, and previews of the run."""
        for item in batch:
            if isinstance(item, Record):
                self._fact(item)
            elif isinstance(item, RunPreview) and isinstance(item.preview, Preview):
                self._preview(item.preview)

    def _fact(self, record: Record) -> None:
        self._folding.apply(record)
        if record.run == self._id and isinstance(record.event, ModelCompleted):
            self.text = text_of(record.event.message.get("content", "")) or self.text
        for preview in self._ahead.take():
            self._preview(preview)

    def _preview(self, preview: Preview) -> None:
        if preview.after > self._folding.state.seq:
            self._ahead.put(preview)
        elif not self.is_whole() and self.run.awaits(preview.after):
            begins = preview.message != self._reader.message
            piece = self._reader.take(preview)
            if piece is not None and piece.part == "text":
                self.text = piece.text if begins else self.text + piece.text
