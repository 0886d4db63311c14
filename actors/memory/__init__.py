"""What the agent remembers of people: extracted from conversations (`extract`), decided on (`decide`), by one actor."""
