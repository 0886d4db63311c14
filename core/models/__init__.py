"""Models that administrators add beside the configuration file: facts, and how each process has them in force."""
