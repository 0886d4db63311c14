"""What makes actors, channels and adapters one system: `compose` builds it, `discovery` finds its parts."""
