"""The guards of lent cores (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, changed, never, removed, replaced

AGENT = "unit/test_agent_lending.py::test_"
SIDE = "unit/test_lending_side.py::test_"
CORE = "unit/test_core_lending.py::test_"
SPARES = "integration/test_lending_spares.py::test_"
JOBS = "fault/test_lending_faults.py::test_"
LOADERS = "integration/test_lending.py::test_"
MANAGER = "unit/test_lending_manager.py::test_"

LENDING_GUARDS = [
    guard(
        "a rank takes its cores back from a silent manager",
        f"{AGENT}it_takes_back_what_it_has_lent_when_the_manager_is_silent",
        never("silent-manager"),
    ),
    guard(
        "an idle rank takes its cores back from a silent manager too",
        f"{AGENT}an_idle_agent_that_looks_seldom_notices_a_silent_manager_too",
        changed("pause-of-an-agent", "> SILENT_S", "> SILENT_S / 2"),
    ),
    guard(
        "a pause of a rank's own is not the manager's silence",
        f"{AGENT}time_in_which_the_agent_was_stopped_is_not_the_managers_silence",
        replaced("pause-of-an-agent", "paused = False"),
    ),
    guard(
        "a stream that was lost at once is replaced",
        f"{SIDE}a_stream_that_is_lost_before_its_thread_has_ended_is_replaced",
        replaced("lost-while-looking", "again = False"),
    ),
    guard(
        "a forked child leaves its parent's loaders alone",
        f"{SIDE}a_forked_child_shares_no_cores_with_its_parents_loaders",
        changed("sides-of-a-parent", " and side.facts.pid == self.facts.pid", ""),
    ),
    guard(
        "a loader may begin while another one ends",
        f"{SIDE}a_loader_begins_while_others_are_closed",
        changed("sides-of-a-parent", ".copy()", ""),
    ),
    guard(
        "a loader goes on if no thread can be started",
        f"{SIDE}a_loader_works_on_if_no_thread_can_be_started",
        changed("no-thread", "except RuntimeError", "except OSError"),
    ),
    guard(
        "a thread that failed is replaced",
        f"{SIDE}a_thread_that_fails_is_not_taken_for_one_that_looks",
        removed("thread-failed"),
    ),
    guard(
        "another loader's agent has no copy of a stream",
        f"{SIDE}a_process_that_is_forked_while_a_stream_is_opened_gets_no_copy",
        changed("stream-in-passing", ", no_forks_until=passed_on", ""),
    ),
    guard(
        "a stream that could not be received is asked for again",
        f"{AGENT}it_asks_again_for_a_stream_that_it_could_not_receive_but_not_at_once",
        removed("stream-not-received"),
    ),
    guard(
        "the manager sees an agent's end whoever has a copy of its stream",
        f"{AGENT}the_manager_sees_that_it_leaves_though_another_process_has_the_stream",
        removed("stream-ended"),
    ),
    guard(
        "a forked worker leaves its agent's stream alone",
        f"{AGENT}a_worker_that_is_forked_closes_its_copy_and_no_more",
        always("stream-of-the-agent"),
    ),
    guard(
        "an agent that ends ends its stream",
        f"{LOADERS}the_manager_sees_that_a_loader_ends_though_another_process_has_its_stream",
        removed("agent-leaves"),
    ),
    guard(
        "a manager that did not answer once is asked again",
        f"{JOBS}stats_are_there_again_behind_a_manager_that_was_silent",
        changed("silent-once", "self.link(ANSWER_S)", "self._link"),
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
        replaced("silent-lender", "return self.reported"),
    ),
    guard(
        "a loader that follows the cores has one at least",
        f"{MANAGER}of_loaders_that_follow_too_few_cores_each_has_one[]",
        changed("one-core-at-least", "max(1, next(shares))", "next(shares)"),
    ),
    guard(
        "a spare worker whose init fails does not end training",
        f"{CORE}a_spare_worker_whose_init_fails_is_asked_to_end_and_the_others_go_on",
        always("init-of-a-spare"),
    ),
    guard(
        "a spare worker that dies again and again does not end training",
        f"{CORE}a_spare_worker_that_dies_at_its_start_is_started_again_and_then_given_up",
        never("fruitless-spare"),
    ),
    guard(
        "a spare worker that cannot be forked does not end the agent",
        f"{SPARES}a_machine_without_descriptors_for_another_worker_costs_no_batch",
        always("spare-not-forked"),
    ),
    guard(
        "a spare worker that cannot be spawned does not end training",
        f"{SPARES}a_dataset_that_can_be_pickled_no_more_costs_no_batch",
        changed("spare-not-spawned", "self._start_spare", "self.spawned.start"),
    ),
    guard(
        "a rank borrows no core for a worker that cannot start",
        "unit/test_core_standing.py::test_a_rank_whose_spare_worker_has_failed_wants_no_core_that_no_worker_could_use",
        removed("cores-of-use"),
    ),
]
