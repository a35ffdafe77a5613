"""First on the path of a worker process: each image file that it decodes is a line in the file that TRACED names."""

import os
import sys
from types import FrameType
from typing import Any


def _called(frame: FrameType, event: str, _: Any) -> None:
    code = frame.f_code
    if event == "call" and code.co_name == "_decoded_file" and code.co_filename.endswith("backbones/contents.py"):
        os.write(_lines, b"decoded\n")


if "TRACED" in os.environ:
    _lines = os.open(os.environ["TRACED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sys.setprofile(_called)
