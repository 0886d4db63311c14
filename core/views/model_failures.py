"""Models whose last call failed: read from the views of a running server, or of a data directory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import Unavailable
from core.views.overview import newest_file
from core.views.projections import Views

_ALL = "SELECT model, at, reason, text FROM model_failures"


class ModelFailure(NamedTuple):
    """The last failed call of a model that has not answered since."""

    at: str
    reason: str
    """As in `model.failed`."""
    text: str
    """The provider's words, without the address of the model; empty in logs of older versions."""


async def model_failures(views: Views) -> dict[str, ModelFailure]:
    """Returns failures by the configured name of the model; none while the views cannot be read."""
    if not views.readable:
        return {}
    try:
        return _by_model(await views.query(_ALL))
    except Unavailable:
        return {}


def model_failures_in(home: Path) -> dict[str, ModelFailure]:
    """Returns failures by the configured name of the model; none where no server of this version has run."""
    path = newest_file(home)
    if path is None:
        return {}
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return _by_model(db.execute(_ALL))
    except sqlite3.Error:
        return {}


def _by_model(rows: Iterable[tuple[Any, ...]]) -> dict[str, ModelFailure]:
    return {model: ModelFailure(*failure) for model, *failure in rows}
