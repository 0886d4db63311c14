"""Every event type of the log, and `RunEnded`, `ENDS`: how a run may end."""

from core.events import *  # noqa: F403 - a new type is public without a second place
from core.lifecycle import ENDS as ENDS
from core.lifecycle import RunEnded as RunEnded
