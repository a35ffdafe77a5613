"""Exact sums and the certified solve: integers in, correctly rounded weights out."""
