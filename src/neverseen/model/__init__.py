"""The exact model, and its two public classes in memory: `AnalyticClassifier` and `ForgettingModel`."""
