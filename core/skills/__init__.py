"""Skills: instructions that people share as folders with a `SKILL.md`."""
