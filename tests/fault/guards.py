"""The guards that keep the promises: each with the test that fails when it is gone. A fault test counts only if it does.

A guard is a statement of the sources with a marker (see `markers`); it is removed in a copy of them. Where two guards stand
behind one another, so that either alone would do, both are removed at once. This module is imported by programs that run a
mutant, so it must not import penstock itself.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.fault.markers import Edit, always, changed, mutants, never, removed, replaced

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 100, 101
"""Exit codes that no interpreter gives of itself."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    name: str
    """The promise that it keeps."""
    edits: tuple[Edit, ...]
    """What is changed in the source when the guard is gone."""
    test: str


def guard(name: str, test: str, *edits: Edit) -> Guard:
    return Guard(name=name, edits=edits, test=f"tests/{test}")


def played(guards: list[Guard]) -> list[Guard]:
    """Return the guards that are removed in this run: all with PENSTOCK_FULL=1, else every third."""
    return guards[:: 1 if os.environ.get("PENSTOCK_FULL") == "1" else 3]


GUARDS = [
    # ---- the ledger and the core
    guard(
        "local workers do what a pool that is to do everything has lost",
        "unit/test_core_shares.py::test_at_share_1_a_due_batch_goes_to_local_workers_when_a_remote_one_is_lost",
        never("returned-to-local"),
    ),
    guard(
        "local workers do what a pool that is to do everything may not take",
        "sim/test_remote_schedules.py::test_a_remote_schedule_that_failed_once_does_not_fail_again[91249]",
        never("rest-stays-here"),
    ),
    guard(
        "a trial of remote workers that complete nothing ends",
        "unit/test_offloading.py::test_a_trial_that_completes_nothing_ends",
        changed("stalled-trial", "now_s - last_s >", "False and now_s - last_s >"),
    ),
    guard(
        "ranks that found other costs do not deal by them",
        "integration/test_deal_by_cost.py::test_ranks_that_found_other_costs_do_not_deal_by_them",
        removed("costs-agreed"),
    ),
    guard(
        "a dataset that changes after ranks compared costs is not dealt by them",
        "integration/test_deal_costs_that_change.py::test_a_rank_whose_dataset_changes_says_so_and_waits_for_nobody",
        removed("costs-stay"),
    ),
    guard(
        "an iterator that cannot begin uses up no epoch",
        "integration/test_sampler_resume.py::test_a_sampler_that_fails_in_iter_uses_up_nothing[False]",
        removed("begun-or-not"),
    ),
    guard(
        "attempt ids are never used twice",
        "unit/test_core.py::test_the_work_of_a_lost_worker_is_issued_again_under_a_new_id",
        replaced(
            "attempt-ids",
            "return 1 + max((task for worker in state.workers for task in worker.tasks), default=0)",
        ),
    ),
    guard(
        "a lost worker's work is issued again",
        "unit/test_core.py::test_the_work_of_a_lost_worker_is_issued_again_under_a_new_id",
        never("lost-work"),
    ),
    guard(
        "a cancelled task's result is dropped",
        "sim/test_schedules.py::test_no_schedule_of_faults_costs_a_sample[0]",
        never("cancelled-result"),
        never("cancelled-task"),
    ),
    guard(
        "a cancelled task keeps its memory until it is gone",
        "unit/test_core.py::test_an_abort_voids_what_is_open_and_keeps_its_memory_until_no_task_can_write_it",
        replaced("cancelled-memory", "issued.cancelled = True; unpin(state, issued)"),
    ),
    guard(
        "memory is not freed while a task can touch it",
        "unit/test_core.py::test_an_abort_voids_what_is_open_and_keeps_its_memory_until_no_task_can_write_it",
        changed("slab-in-use", " or slab.pins or slab.holds", ""),
    ),
    guard(
        "parts that a collate function keeps stay where they are",
        "unit/test_core.py::test_parts_that_a_collate_function_holds_on_to_are_kept_until_it_lets_go",
        never("held-parts"),
    ),
    guard(
        "a batch is not delivered while its slab can be written",
        "unit/test_core_slow_samples.py::test_a_batch_waits_for_a_task_that_was_taken_back_and_may_be_about_to_write",
        replaced("late-writers", "return True"),
    ),
    guard(
        "a batch that a late task may still write is lent to nobody",
        "unit/test_core_slow_samples.py::test_a_batch_does_not_wait_for_a_task_that_is_held_up_but_is_to_be_copied",
        changed("late-writers-copy", "0 if late_writers(batch) else ", ""),
    ),
    guard(
        "a worker whose core is lent begins nothing",
        "unit/test_core_lending.py::test_workers_whose_cores_are_lent_finish_what_they_have_and_begin_nothing",
        changed("rests", "worker.rests or ", ""),
    ),
    guard(
        "a worker that hangs while it starts is noticed",
        "unit/test_core.py::test_a_worker_that_hangs_while_it_starts_is_killed_and_the_second_time_given_up",
        changed("hang-at-start", "not worker.starting and ", ""),
    ),
    guard(
        "an agent that is stopped is noticed",
        "fault/test_agent_death.py::test_an_agent_that_is_stopped_is_replaced",
        changed("silent-agent", " or self._is_silent(left)", ""),
    ),
    guard(
        "batches leave in order",
        "unit/test_core.py::test_batches_leave_in_the_order_they_were_fed",
        always("in-order"),
    ),
    guard(
        "the first failing sample is the one that is raised",
        "unit/test_ledger.py::test_the_smallest_failure_counts",
        changed("first-failure", " or ordinal < self.error[0]", ""),
    ),
    guard(
        "three deaths on one sample are enough",
        "unit/test_core.py::test_a_sample_that_takes_three_workers_down_fails_its_batch",
        always("deaths-limit"),
    ),
    guard(
        "deaths are counted per sample",
        "sim/test_schedules.py::test_no_schedule_of_faults_costs_a_sample[0]",
        replaced(
            "deaths-per-sample", "tries = state.deaths[task.seq, 0] = state.deaths.get((task.seq, 0), 0) + 1"
        ),
    ),
    guard(
        "workers that never finish anything are given up",
        "unit/test_core.py::test_a_worker_that_dies_again_and_again_with_work_it_never_began_is_given_up",
        never("fruitless-worker"),
    ),
    guard(
        "a silent worker is killed",
        "unit/test_core.py::test_a_silent_worker_is_killed_after_the_hang_timeout",
        never("silent-worker"),
    ),
    guard(
        "a worker that waits for memory does not hang",
        "unit/test_core.py::test_a_worker_that_waits_for_memory_does_not_hang",
        changed("waits-for-memory", " and not all_waiting(state, worker)", ""),
    ),
    guard(
        "memory that comes free goes to the due batch",
        "unit/test_core_memory.py::test_a_later_batch_gets_no_slab_while_an_earlier_ones_result_waits_for_memory",
        never("due-batch-memory"),
    ),
    guard(
        "a batch of which nothing is left is an error, not a missing batch",
        "unit/test_core.py::test_left_out_samples_are_named_and_a_batch_of_none_is_an_error",
        never("empty-batch"),
    ),
    guard(
        "a lost worker of an iterable dataset is there again in the next epoch",
        "unit/test_core_streams.py::test_a_lost_worker_is_started_again_for_the_next_epoch_not_for_this_one",
        removed("stream-worker-restart"),
    ),
    # ---- memory
    guard(
        "batches beyond half of the ring are copied",
        "unit/test_leases.py::test_beyond_half_of_the_limit_batches_are_copied",
        changed("half-of-ring", " or self.held_bytes + nbytes > self._limit // 2", ""),
    ),
    guard(
        "a batch is free only when its last view is gone",
        "unit/test_leases.py::test_a_batch_is_free_when_the_last_of_its_tensors_is_gone",
        changed("last-view", " and not tenancy.views", ""),
    ),
    guard(
        "a batch is not free before it is complete",
        "unit/test_leases.py::test_a_tensor_that_dies_before_the_batch_is_complete_frees_nothing",
        changed("last-view", "tenancy.sealed and ", ""),
    ),
    guard(
        "a forked child frees nothing of its parent's",
        "unit/test_leases.py::test_a_forked_child_does_not_free_its_parents_batches",
        changed("child-frees-nothing", " or os.getpid() != self._owner", ""),
    ),
    guard(
        "a batch that a forked child sees is not reused",
        "integration/test_forked_children.py::test_a_forked_child_keeps_the_batch_it_saw_while_the_parent_goes_on",
        never("seen-by-child"),
    ),
    guard(
        "memory is reserved before it is touched",
        "unit/test_arena.py::test_memory_that_is_not_to_be_had_is_an_error_and_not_a_signal",
        removed("memory-reserved"),
    ),
    # ---- randomness and state
    guard(
        "randomness depends on the position",
        "unit/test_seeds.py::test_a_million_neighbouring_positions_and_keys_have_a_million_seeds",
        changed("seed-position", " ^ (int(position) & MASK64)", ""),
    ),
    guard(
        "randomness depends on the epoch",
        "integration/test_randomness.py::test_epochs_differ_in_order_and_in_noise_and_repeat_under_the_same_seed",
        changed("seed-epoch", " ^ (int(epoch) & MASK64)", ""),
    ),
    guard(
        "preparing inline leaves the program's generators alone",
        "integration/test_randomness.py::test_without_workers_the_processs_own_generators_are_put_back_after_each_batch",
        changed("inline-generators", "with generators_kept()", "if True"),
    ),
    guard(
        "a state of a newer version is refused",
        "fault/test_messages.py::test_a_state_that_cannot_be_loaded_is_refused",
        never("state-version"),
    ),
    guard(
        "a state counts only what was delivered",
        "fault/test_epochs_cut_short.py::test_a_state_taken_after_a_break_goes_on_there",
        removed("count-delivered"),
    ),
    # ---- the training process and its agent
    guard(
        "a new agent is asked for all that is open",
        "fault/test_agent_death.py::test_the_very_first_batch_survives_the_death_of_the_agent",
        removed("ask-again"),
    ),
    guard(
        "training outlives an agent that dies while a worker is started for it",
        "fault/test_spawned_deaths.py::test_an_agent_that_dies_while_a_worker_is_started_for_it_is_replaced",
        changed("agent-gone-at-a-start", "BrokenPipeError, ConnectionResetError", ""),
    ),
    guard(
        "agents that die again and again are given up",
        "fault/test_agent_death.py::test_agents_that_die_without_ever_delivering_are_an_error_not_an_endless_loop",
        never("agent-restarts"),
    ),
    guard(
        "an interrupt voids the connection it may have cut",
        "fault/test_interrupts.py::test_an_interrupt_at_any_line_of_next_loses_no_batch_and_counts_none_twice[2]",
        removed("interrupted-connection"),
    ),
    guard(
        "Ctrl-C is held back during a fork",
        "fault/test_interrupts.py::test_ctrl_c_at_the_moment_of_a_fork_is_not_lost",
        removed("signals-in-fork"),
    ),
    guard(
        "other signals are held back during a fork",
        "fault/test_interrupts.py::test_what_other_handlers_raise_at_the_moment_of_a_fork_is_not_lost[one]",
        changed("signals-held", " *ASKS", ""),
    ),
    guard(
        "the agent ignores Ctrl-C",
        "fault/test_interrupts.py::test_agent_and_workers_ignore_the_terminals_ctrl_c",
        changed("agent-ignores-interrupt", "SIG_IGN", "SIG_DFL"),
    ),
    guard(
        "results of an epoch that was left are not taken for the next one's",
        "fault/test_epochs_cut_short.py::test_what_has_arrived_for_an_epoch_that_was_left_is_not_taken_for_the_next",
        always("left-epoch"),
    ),
    guard(
        "a daemonic process may not have workers",
        "integration/parity/test_iterators.py::test_workers_inside_workers_are_refused_as_in_torch",
        never("daemonic"),
    ),
    guard(
        "a forked child does not end its parent's agent",
        "fault/test_forks.py::test_a_forked_child_that_drops_the_loader_does_not_end_the_parents_workers",
        never("child-ends-nothing"),
    ),
    guard(
        "workers end with their agent, whatever they are doing",
        "fault/test_agent_death.py::test_workers_in_the_middle_of_c_code_go_with_their_agent_too",
        replaced("worker-lifeline", "return"),
    ),
    guard(
        "the agent ends with its training process",
        "fault/test_trainer_death.py::test_nothing_is_left_one_second_after_the_training_process_was_killed[training-]",
        removed("trainer-hangs-up"),
        never("trainer-is-parent"),
        removed("trainer-ends"),
    ),
    guard(
        "a worker that is being imported is killed with the training process",
        "fault/test_trainer_death.py::test_a_worker_that_is_being_imported_is_killed_with_the_training_process",
        changed("stop-grace", "STOP_GRACE_S if self.polite else 0.0", "60.0"),
    ),
    # ---- frames
    guard(
        "a frame that is too long is refused",
        "unit/test_wire.py::test_a_frame_over_the_limit_is_refused_before_anything_is_allocated",
        never("frame-size"),
    ),
]


def mutate(package: Path, gone: Guard) -> None:
    """Remove a guard from a copy of `src/penstock`."""
    for file, text in mutants(package, gone.edits).items():
        file.write_text(text)


def run_tests(sources: str, tests: list[str]) -> None:
    """A program: run these tests against a copy of the sources. Exits with PASSED or FAILED, or with something else."""
    import pytest

    assert "penstock" not in sys.modules, "the zygote must not have imported what is mutated"
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    path = f"pythonpath={sources} {ROOT} {ROOT / 'tests'}"
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", path, *tests])
    spec = importlib.util.find_spec("penstock")
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).is_relative_to(sources), f"the tests have used {spec.origin}"
    sys.exit({pytest.ExitCode.OK: PASSED, pytest.ExitCode.TESTS_FAILED: FAILED}.get(pytest.ExitCode(code), 3))
