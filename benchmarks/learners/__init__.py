"""Analytic continual learners: what their papers publish, beside what this library makes of them exactly."""
