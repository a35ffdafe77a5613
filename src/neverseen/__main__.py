"""``python -m neverseen``, where the command is not on the path."""

from neverseen.cli.program import main

main()
