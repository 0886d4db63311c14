"""The models that were added beside the configuration file, for commands that read the log as a server does."""

from __future__ import annotations

from dataclasses import replace

from actors.wiring.options import Options
from core.identity.seal import Seal
from core.log.store import EventLog
from core.models.added import AddedModels


async def with_added(options: Options, log: EventLog) -> Options:
    """Returns the options with the models that the log has beside the file, unless they have such already. Raises
    `Unavailable`.
    """
    if options.additions is not None:
        return options
    return replace(options, additions=await AddedModels(log, Seal(options.home)).additions())
