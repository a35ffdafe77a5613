"""The forgetting service: a store behind HTTP. Needs the extra ``service``.

`create_app` returns the ASGI application, `serve` runs it. ``neverseen serve FOLDER`` is the same from a shell.
"""

from neverseen.errors import MissingPackageError

try:
    import fastapi as _fastapi  # noqa: F401
    import prometheus_client as _prometheus_client  # noqa: F401
    import python_multipart as _python_multipart  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPackageError(f"the service needs {error.name}: pip install 'neverseen[service]'") from error

from neverseen.service.access import ApiKey, KeyFile
from neverseen.service.app import create_app
from neverseen.service.audit import audit_key
from neverseen.service.audit_check import AuditReport, check_audit
from neverseen.service.run import serve
from neverseen.service.settings import Settings

__all__ = ["ApiKey", "AuditReport", "KeyFile", "Settings", "audit_key", "check_audit", "create_app", "serve"]
