"""Who asks: people, programs and our own processes; what they may do, and how much of it."""
