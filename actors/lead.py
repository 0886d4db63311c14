"""The lead agent: executes the runs of threads."""

from __future__ import annotations

from actors.agent.actor import AgentActor
from actors.agent.setup.plan import RunSetup
from core.runs.journal import Journal


class Lead(AgentActor):
    """Executes the runs of a thread with its own agent, in its own folder."""

    name = "lead"

    async def _setup(self, journal: Journal) -> RunSetup:
        run = journal.state.runs[journal.id]
        state = journal.state
        own = state.folder, state.variables
        return await self._planner.plan(run.request, state.user, run.model, None, state.seq, *own)
