"""Conversations on chat platforms: the port that a platform implements, and the facts of a conversation.

The way of a message. A process per account (`sika channel <platform>`) holds the one connection to the platform. What
arrives there becomes `chat.received` on the conversation's log, and only then is it acknowledged to the platform. The
actor `chat`, in any server, decides what it is: a command, an answer, a run. What is to be said becomes
`delivery.planned`, and the account's process says it, one part after another, with a fact for each part.
"""
