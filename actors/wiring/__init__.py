"""The composition of actors, channels and adapters: `compose` makes one system of what `discovery` finds."""
