"""The guards of lent cores (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, replaced

AGENT = "unit/test_agent_lending.py::test_"
MANAGER = "unit/test_lending_manager.py::test_"

LENDING_GUARDS = [
    guard(
        "a rank takes its cores back from a silent manager",
        f"{AGENT}it_takes_back_what_it_has_lent_when_the_manager_is_silent",
        never("silent-manager"),
    ),
    guard(
        "a rank uses its own cores without a manager",
        f"{AGENT}it_uses_its_own_cores_when_the_manager_ends_or_talks_nonsense[]",
        never("manager-gone"),
    ),
    guard(
        "a loader that talks nonsense is dropped",
        f"{MANAGER}facts_that_are_none_are_nonsense",
        changed("lender-talks-nonsense", "(OSError, ValueError)", "OSError"),
    ),
    guard(
        "a loader that does not read is told no more",
        f"{MANAGER}who_does_not_read_is_told_no_more_and_delays_nobody",
        never("lender-does-not-read"),
    ),
    guard(
        "a loader that is silent lends and borrows nothing",
        f"{MANAGER}a_loader_that_is_silent_lends_nothing_more_and_borrows_nothing",
        replaced("silent-lender", "heard = joined"),
    ),
    guard(
        "no thread forks while another starts the node process",
        "unit/test_interpreter.py::test_a_start_in_a_thread_does_not_wait_for_children_that_are_forked_meanwhile",
        changed("no-fork-while-starting", "forks_held()", "threading.Lock()"),
    ),
]
