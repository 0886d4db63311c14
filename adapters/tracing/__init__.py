"""Traces of runs, sent over OTLP or to the services that LangChain's callbacks know."""
