"""Attacks that were tried, one file for each promise."""
