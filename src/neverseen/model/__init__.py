"""The exact model and what people use it through: `AnalyticClassifier` and `ForgettingModel`."""
