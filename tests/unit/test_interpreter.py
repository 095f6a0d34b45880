"""Bare interpreters are started by threads while the training process forks agents."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

from penstock.node import interpreter

STARTS, WITHIN_S = 12, 10.0


def test_a_start_in_a_thread_does_not_wait_for_children_that_are_forked_meanwhile() -> None:
    done: list[int] = []

    def start() -> None:
        for _ in range(STARTS):
            with interpreter.start("os:getpid", {}, output=subprocess.DEVNULL) as process:
                done.append(process.wait())

    starter = threading.Thread(target=start)
    starter.start()
    children = []
    try:
        while starter.is_alive() and len(children) < 400:
            pid = os.fork()
            if not pid:
                signal.pause()
                os._exit(0)
            children.append(pid)
            time.sleep(0.002)
        starter.join(WITHIN_S)
        assert not starter.is_alive()
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        starter.join()
    assert done == [0] * STARTS
