"""Running a service: settings, start and stop, metrics, the audit log, checks on request."""
