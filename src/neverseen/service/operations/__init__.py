"""Operations: settings, the log, metrics, charts, and the audit log."""
