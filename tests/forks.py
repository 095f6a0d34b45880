"""Children of a test, forked."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def start(work: Callable[[], None]) -> int:
    """Fork a child, which ends with 0 when its work does, with 1 when that raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
