"""The paper's evaluation, whole: every table and figure, with one command. See ``docs/paper.md``."""
