"""A container for each thread, by an engine that sees this machine's files: `provider`, `sandbox`, and the `engine`."""
