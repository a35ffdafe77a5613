"""The one writer: what waits, what is made one change, when it is published."""
