"""The gateway's calls to Ray, all from one thread: when Ray's head is gone they block, and nothing else does.

What Ray answers is handed to `post` as a function for the gateway's own thread.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from penstock.remote import actor as actor_module
from penstock.remote.actor import ChildKeeper
from penstock.remote.joining import Joined, require_ray

Reply = dict[str, Any]
Post = Callable[[Callable[[], None]], None]


class Actors:
    """The actors of all slots. Methods return at once; the thread does the work in order."""

    def __init__(self, joined: Joined, command: list[str], child_start_s: float, post: Post) -> None:
        self._joined, self._arguments, self._post = joined, (command, child_start_s, joined.head), post
        self._ray: Any = require_ray()
        self._handles: dict[int, Any] = {}  # used only in the thread
        self._chores: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    def create(self, slot: int, options: dict[str, Any], reply: Callable[[Reply | str], None]) -> None:
        """Ask for an actor; `reply` gets what its `describe` says, or why it is lost."""
        self._chores.put(partial(self._create, slot, options, reply))

    def call(
        self, slot: int, method: str, arguments: tuple[Any, ...], reply: Callable[[Reply | str], None]
    ) -> None:
        """Call a method of a slot's actor; `reply` gets what it returns, or why the actor is lost."""
        self._chores.put(partial(self._call, slot, method, arguments, reply))

    def destroy(self, slot: int) -> None:
        """End an actor, and with it its child."""
        self._chores.put(partial(self._destroy, slot))

    def free_cpus(self, reply: Callable[[Reply | str], None]) -> None:
        """Ask how many CPUs the cluster has and how many are free."""
        self._chores.put(partial(self._free_cpus, reply))

    def close(self, within_s: float) -> None:
        """End all actors and leave the cluster, as far as it can be done in this time."""
        self._chores.put(self._close)
        self._chores.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        self._ray.cloudpickle.register_pickle_by_value(actor_module)
        while (chore := self._chores.get()) is not None:
            chore()

    def _create(self, slot: int, options: dict[str, Any], reply: Callable[[Reply | str], None]) -> None:
        fixed = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3}
        try:
            kind = self._ray.remote(ChildKeeper)
            self._handles[slot] = kind.options(**options, **fixed).remote(*self._arguments)
        except Exception as exc:  # noqa: BLE001 - what Ray says of the user's options, or that it is gone
            self._post(partial(reply, f"Ray refused to create an actor: {one_line(exc)}"))
            return
        self._call(slot, "describe", (), reply)

    def _call(
        self, slot: int, method: str, arguments: tuple[Any, ...], reply: Callable[[Reply | str], None]
    ) -> None:
        handle = self._handles.get(slot)
        if handle is None:
            return
        try:
            future: Future[Reply] = getattr(handle, method).remote(*arguments).future()
        except Exception as exc:  # noqa: BLE001 - as above
            self._post(partial(reply, one_line(exc)))
            return
        future.add_done_callback(lambda done: self._post(partial(reply, _result(done))))

    def _destroy(self, slot: int) -> None:
        handle = self._handles.pop(slot, None)
        if handle is not None:
            # The call reaches the actor although Ray's head is gone; the kill does not.
            with contextlib.suppress(Exception):
                handle.stop.remote()
            with contextlib.suppress(Exception):
                self._ray.kill(handle)

    def _free_cpus(self, reply: Callable[[Reply | str], None]) -> None:
        try:
            total, free = self._ray.cluster_resources(), self._ray.available_resources()
        except Exception as exc:  # noqa: BLE001 - as above
            self._post(partial(reply, one_line(exc)))
            return
        self._post(partial(reply, {"total": total.get("CPU", 0.0), "free": free.get("CPU", 0.0)}))

    def _close(self) -> None:
        for slot in list(self._handles):
            self._destroy(slot)
        self._joined.leave()


def _result(done: Future[Reply]) -> Reply | str:
    try:
        return done.result()
    except Exception as exc:  # noqa: BLE001 - an actor's death has many types
        return death_text(exc)


def death_text(exc: BaseException) -> str:
    """Say in one line why Ray lost an actor: its error has a page, of which one sentence says it."""
    for line in str(exc).splitlines():
        _, found, cause = line.partition("The actor is dead because ")
        if found:
            return f"its actor is gone: {cause.partition('. ')[0]}"
    if type(exc).__name__ == "ActorUnavailableError":
        return "its actor does not answer: its process or its node was lost"
    return f"its actor is gone: {one_line(exc)}"


def one_line(exc: BaseException) -> str:
    """Return the first line of an error."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return (lines[0] if lines else type(exc).__name__)[:400]
