"""A platform that is open to the world."""

from __future__ import annotations

from tests.actors.chat.office import traits

TRAITS = traits.TRAITS._replace(
    name="world", title="World", open_to_the_world=True, deep_link="https://world.test/{bot_username}?start={code}"
)
