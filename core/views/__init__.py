"""Read models in SQLite, made from the log, which may be made anew at any time: threads, runs, usage, full texts.

`projections` keeps and asks them, `database` is the file, `tables` and `rows` are what events do to it; `search` and
`fulltext` say how threads are found, `sql` is for questions of operators. `console`, `operations`, `overview` and
`model_failures` are the operators' views, `configured` says configuration in words.
"""
