"""NATS: the connection, streams, queues, requests, and the server that comes along."""
