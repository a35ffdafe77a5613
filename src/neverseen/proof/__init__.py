"""Evidence that others can check: keys, receipts, signatures, certificates and the proof of weights."""
