"""Messages between the log's form and LangChain's, their contents, and excerpts of what is too long. Knows no run."""
