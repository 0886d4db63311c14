"""One terminal: `screen`, the only place of the chat that writes; `prompt` and `typed`, what is typed or piped;
`interrupts`, Ctrl-C.
"""
