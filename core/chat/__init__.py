"""Conversations on chat platforms: the port that a platform implements, and the facts of a conversation.

The way of a message. A process per account (`sika channel <platform>`) holds the one connection to the platform. What
arrives there becomes `chat.received` on the conversation's log, and only then is it acknowledged to the platform. The
actor of chats, in any server, decides what it is: a command, an answer, a run. What is to be said becomes
`delivery.planned`, and the account's process says it, one part after another, with a fact for each part.

Its modules: `port` is what a platform implements; `facts` and `state` are a conversation, `inbox` is custody;
`account`, `platforms` and `lease` say which accounts there are and who serves one, `held` and `status` what it does.
`connections` are people who are users here, `push` names chats of runs that nobody asked for there; `objects`,
`download` and `links` are for files, `erasure` for deleted threads.
"""
