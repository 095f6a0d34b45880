"""The guards of the node process (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, removed, replaced

JOB = "unit/test_node_job.py::test_"
SHARED = "integration/test_node.py::test_"
FAULT = "fault/test_node_faults.py::test_"
STRANGE = "fault/test_node_strangers.py::test_"

NODE_GUARDS = [
    guard(
        "runs of torchrun that have no name are told apart by their store",
        f"{JOB}two_runs_without_a_name_are_two_jobs",
        never("unnamed-runs"),
    ),
    guard(
        "one process of a job is the node",
        f"{SHARED}a_process_that_finds_the_address_taken_is_not_the_node",
        never("one-node"),
    ),
    guard(
        "a node without members ends",
        f"{SHARED}a_node_to_which_nobody_comes_ends",
        replaced("node-ends", "return False"),
    ),
    guard(
        "descriptors are not inherited by programs",
        f"{SHARED}descriptors_and_a_hello_arrive_and_are_not_inherited_by_programs",
        replaced("fds-close-on-exec", "FLAGS = 0"),
    ),
    guard(
        "a forked child lets go of its parent's link",
        f"{SHARED}a_forked_child_does_not_keep_its_parents_node",
        removed("link-disinherited"),
    ),
    guard(
        "a closed link counts no more though its socket was copied",
        f"{SHARED}a_closed_link_counts_no_more_whoever_has_a_copy_of_its_socket",
        removed("link-closed"),
    ),
    guard(
        "a fork does not hold up a start of the node",
        f"{FAULT}a_fork_while_a_node_is_started_does_not_hold_up_who_starts_it",
        removed("no-fork-while-starting"),
    ),
    guard(
        "a child of a process that may not fork can",
        "fault/test_forks.py::test_a_child_can_fork_though_its_parent_may_not",
        removed("fresh-fork-lock"),
    ),
    guard(
        "a service ends with a killed node",
        f"{FAULT}a_service_that_does_not_look_at_its_socket_ends_with_the_node[killed]",
        removed("service-lifeline"),
    ),
    guard(
        "a service that dies at once is not started again and again",
        f"{FAULT}a_service_that_cannot_start_says_why_and_is_not_started_again_and_again",
        never("restart-pause"),
    ),
    guard(
        "a service that takes nothing costs a deadline",
        f"{FAULT}a_stopped_service_costs_a_deadline_and_no_other_service",
        never("request-deadline"),
    ),
    guard(
        "descriptors of requests that were given up are closed",
        f"{FAULT}a_stopped_service_costs_a_deadline_and_no_other_service",
        removed("answered-requests"),
    ),
    guard(
        "a silent node costs a deadline",
        f"{FAULT}a_stopped_node_costs_a_deadline_and_is_named",
        removed("open-deadline"),
    ),
    guard(
        "a node that does not start costs a deadline",
        f"{FAULT}a_start_that_takes_too_long_is_given_up_and_leaves_nothing",
        changed("start-deadline", "timeout=left(deadline_s)", ""),
    ),
    guard(
        "who attaches to a node that ends gets a new one",
        f"{FAULT}an_attach_in_the_moment_in_which_the_node_ends_makes_a_new_one",
        changed("node-about-to-end", "TryAgain", "NodeUnavailable"),
    ),
    guard(
        "a node does not end with its starter's process group",
        f"{FAULT}the_end_of_its_starters_process_group_is_not_the_nodes",
        removed("own-group"),
    ),
    guard(
        "a process of another user is no member",
        f"{STRANGE}a_process_of_another_user_is_refused",
        never("member-uid"),
    ),
    guard(
        "a node of another user is not trusted",
        f"{STRANGE}a_node_of_another_user_is_not_trusted",
        never("node-uid"),
    ),
    guard(
        "a message over the limits is no message",
        f"{STRANGE}too_many_descriptors_are_dropped_with_their_sender",
        never("node-message-limit"),
    ),
    guard(
        "a message that is too short is no message",
        f"{STRANGE}who_sends_nonsense_is_dropped_and_nobody_else_notices[half a name]",
        never("short-message"),
    ),
    guard(
        "last words are heard though a message was left unread",
        f"{FAULT}last_words_are_heard_though_the_other_side_left_a_message_unread",
        replaced("last-words", "raise"),
    ),
    guard(
        "a member has one request at a time",
        f"{STRANGE}a_second_request_before_the_answer_to_the_first_is_nonsense",
        changed("one-request", " or member.request is not None", ""),
    ),
    guard(
        "a member that does not read holds up nobody",
        f"{STRANGE}who_asks_and_never_reads_holds_up_nobody",
        removed("member-blocks-nobody"),
    ),
    guard(
        "a node without descriptors does not spin",
        f"{STRANGE}more_connections_than_descriptors_are_waited_for_without_haste",
        never("no-descriptors"),
    ),
]
