"""Memory of a user: recorded, searched, chosen for a prompt, read from conversations.

`facts` folds it, `document` is its JSON, `conversation` is what is read of a thread; `words` and `search` find what
bears on a message, `inject` is what an agent is told.
"""
