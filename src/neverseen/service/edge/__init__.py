"""The HTTP edge: from bytes on a connection to a request that may be carried out, and back to an answer."""
