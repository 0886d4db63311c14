"""Skills: instructions that people share as folders with a `SKILL.md`.

`format` and `folders` read them, `archive` and `rules` judge those of strangers, `facts` and `trees` keep those of
users. `library` is all that a user has, `selection` what a run has of it; `search` finds some of many, `commands` says
who gets secrets.
"""
