"""The one writer: its queue, requests joined into one change, and the time to publish."""
