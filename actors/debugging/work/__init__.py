"""`sika eval run work`: tasks with checkers, for any configured model. No task needs the internet.

Reading order: `task` (what a task and its result are), `code`, `data`, `shell`, `talk` (the tasks), `runner`.
"""
