"""The guards of object stores and the service that reads them (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import always, never, removed

STORES = "integration/test_object_stores.py::test_"
FAULT = "fault/test_fetch_faults.py::test_"

FETCH_GUARDS = [
    guard(
        "an object that changed is an error, though its store ignores If-Match",
        f"{STORES}an_object_that_changes_after_its_stamp_was_taken_is_an_error[careless]",
        never("object-etag"),
    ),
    guard(
        "fewer bytes than were asked for are an error",
        f"{STORES}source_contract_of_an_object_store",
        never("object-length"),
    ),
    guard(
        "a fetch service that has died is started again at once",
        f"{FAULT}a_service_that_was_killed_is_started_again_and_costs_no_retry",
        always("asked-again"),
    ),
    guard(
        "frames of the fetch service are bounded",
        f"{FAULT}a_frame_above_the_limit_is_refused_before_memory_is_taken_for_it",
        never("fetch-frame-limit"),
    ),
    guard(
        "a fetch service that is stopped costs a deadline",
        f"{FAULT}a_stopped_service_costs_a_deadline_and_is_named",
        removed("fetch-deadline"),
    ),
]
