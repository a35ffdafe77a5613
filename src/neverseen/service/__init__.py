"""The forgetting service: a store behind HTTP. Needs the extra ``service``.

`create_app` returns the ASGI application, `serve` runs it. ``neverseen serve FOLDER`` is the same from a shell.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from neverseen.errors import MissingPackageError

for _package in ("fastapi", "prometheus_client", "python_multipart", "uvicorn"):
    if find_spec(_package) is None:
        raise MissingPackageError(f"the service needs {_package}: pip install 'neverseen[service]'")

__all__ = ["ApiKey", "AuditReport", "KeyFile", "Settings", "audit_key", "check_audit", "create_app", "serve"]

# Imported when they are first asked for: a process that reads bodies does without them.
_LATE = {
    "ApiKey": "reception.access",
    "AuditReport": "operations.audit_check",
    "KeyFile": "reception.access",
    "Settings": "operations.settings",
    "audit_key": "operations.audit",
    "check_audit": "operations.audit_check",
    "create_app": "edge.app",
    "serve": "edge.server",
}

if TYPE_CHECKING:
    from neverseen.service.edge.app import create_app
    from neverseen.service.edge.server import serve
    from neverseen.service.operations.audit import audit_key
    from neverseen.service.operations.audit_check import AuditReport, check_audit
    from neverseen.service.operations.settings import Settings
    from neverseen.service.reception.access import ApiKey, KeyFile
else:

    def __getattr__(name: str) -> object:
        """Import a name on its first use, and keep it."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"neverseen.service.{_LATE[name]}"), name)
        return found

    def __dir__() -> list[str]:
        """Return all names, including those that are not imported yet."""
        return sorted({*globals(), *_LATE})
