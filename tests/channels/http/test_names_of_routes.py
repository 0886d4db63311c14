"""Names that people choose, and that a route of the API would hide: what has such a name could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from channels.http.endpoints.table import all_routes
from core.errors import Invalid, Refused
from core.skills import archive
from core.user import agents
from core.user.agents import Definition
from tests.support.skills import document


def hidden() -> Iterator[tuple[str, str]]:
    """Yields each route with a name at its end, and the word that another route has in its place."""
    for one, other in permutations(all_routes(), 2):
        ours, theirs = one.path.split("/"), other.path.split("/")
        if one.method == other.method and ours[:-1] == theirs[:-1] and ours[-1][:1] == "{" != theirs[-1][:1]:
            yield one.path, theirs[-1]


def test_every_name_that_a_route_hides_is_refused() -> None:
    """The pages of the documentation are ours, and have other names."""
    chosen = {(path, word) for path, word in hidden() if not path.startswith("/docs/")}
    expected = {("/agents/{name}", word) for word in agents.TAKEN} | {
        ("/skills/{name}", word) for word in archive.TAKEN
    }
    assert chosen == expected


@pytest.mark.parametrize("name", agents.TAKEN)
def test_agents(name: str) -> None:
    with pytest.raises(Refused, match=f"GET /api/agents/{name} is something else"):
        agents.create(agents.Roster(), Definition(name))


@pytest.mark.parametrize("name", archive.TAKEN)
def test_skills(tmp_path: Path, name: str) -> None:
    (tmp_path / "SKILL.md").write_text(document(name))
    with pytest.raises(Invalid, match=f"GET /api/skills/{name} is something else"):
        archive.check(tmp_path)
