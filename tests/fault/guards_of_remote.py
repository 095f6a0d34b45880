"""The guards against what other machines send: layouts, values and greetings (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, replaced

LAYOUTS = "unit/test_layout_text.py::test_"
NO_LAYOUT = f"{LAYOUTS}what_is_no_layout_is_refused_with_a_reason"

VALUES = "unit/test_remote_values.py::test_"
NO_VALUE = f"{VALUES}what_is_no_value_is_refused_with_a_reason"
GREETINGS = "fault/test_handshake.py::test_"

REMOTE_GUARDS = [
    # ---- layouts
    guard(
        "one layout has one text",
        f"{LAYOUTS}a_class_is_known_by_its_own_name_only",
        never("layout-canonical"),
    ),
    guard(
        "a long text of a layout is not parsed",
        f"{LAYOUTS}other_spellings_are_refused[10]",
        never("layout-length"),
    ),
    guard("a layout has a bounded depth", f"{NO_LAYOUT}[33 levels]", never("layout-depth")),
    guard("a layout has a bounded number of leaves", f"{NO_LAYOUT}[4097 leaves]", never("layout-leaves")),
    guard(
        "a layout has a bounded size",
        f"{NO_LAYOUT}[many leaves that are too large together]",
        never("layout-bytes"),
    ),
    guard("a layout has no key twice", f"{NO_LAYOUT}[a key twice]", never("layout-keys")),
    guard(
        "a leaf has the bytes that its shape says",
        f"{NO_LAYOUT}[fewer bytes than its shape has]",
        never("layout-nbytes"),
    ),
    guard("a leaf has few dimensions", f"{NO_LAYOUT}[nine dimensions]", never("layout-ndim")),
    guard("a leaf has positive sizes", f"{NO_LAYOUT}[a negative size]", never("layout-shape")),
    guard("a text has its room", f"{NO_LAYOUT}[a text of too little room]", never("layout-room")),
    guard(
        "a class that a layout names is a named tuple",
        f"{NO_LAYOUT}[a class that is no tuple]",
        never("layout-class"),
    ),
    guard(
        "a named tuple has as many values as fields",
        f"{NO_LAYOUT}[another number of fields]",
        never("layout-fields"),
    ),
    guard(
        "reading a layout from elsewhere imports nothing",
        f"{LAYOUTS}our_own_processes_import_the_module_of_a_class_and_others_text_does_not",
        changed("layout-imports-nothing", "importing and ", ""),
    ),
    # ---- values
    guard(
        "a long description of a value is not parsed",
        f"{VALUES}a_long_description_is_neither_made_nor_parsed",
        never("value-length"),
    ),
    guard("a value has a bounded depth", f"{NO_VALUE}[65 levels]", never("value-depth")),
    guard(
        "a value has a bounded number of parts", f"{NO_VALUE}[a million and one parts]", never("value-nodes")
    ),
    guard("a value's buffers have their lengths", f"{NO_VALUE}[longer bytes]", never("value-buffer-length")),
    guard(
        "a tensor reads nothing behind its buffer",
        f"{NO_VALUE}[strides behind the end]",
        never("value-buffer-length"),
    ),
    guard(
        "no buffer of a value is left over", f"{NO_VALUE}[a buffer left over]", never("value-buffers-left")
    ),
    guard("a tensor has few dimensions", f"{NO_VALUE}[nine dimensions]", never("value-ndim")),
    guard("a tensor has a stride for each dimension", f"{NO_VALUE}[strides missing]", never("value-strides")),
    guard(
        "a tensor has no negative sizes and strides", f"{NO_VALUE}[a negative stride]", never("value-shape")
    ),
    guard(
        "a tensor's size does not overflow",
        f"{NO_VALUE}[a product that wraps around]",
        never("value-product"),
    ),
    guard(
        "a tensor that is there again was there before",
        f"{NO_VALUE}[again from the end]",
        never("value-again"),
    ),
    guard(
        "a key of a value is hashed by Python's own types",
        f"{NO_VALUE}[a key that is a tensor]",
        never("value-key-type"),
    ),
    guard("a dictionary of a value has no key twice", f"{NO_VALUE}[a key twice]", never("value-keys")),
    # ---- greetings
    guard(
        "who greets with another key is refused",
        f"{GREETINGS}a_wrong_key_is_refused_at_both_ends",
        never("greeting-proof"),
    ),
    guard(
        "a worker proves nothing to a stranger",
        f"{GREETINGS}a_worker_proves_nothing_to_a_stranger",
        replaced(
            "greeting-order",
            "self._line.send(self._mac(b'proof', self._role, nonces)); self._hear_proof(nonces)",
        ),
    ),
    guard(
        "a replayed greeting is refused by a worker",
        f"{GREETINGS}a_replay_is_refused[2]",
        changed("greeting-mac", " + nonces", ""),
    ),
    guard(
        "a replayed greeting is refused by a ferry",
        f"{GREETINGS}a_replay_is_refused[1]",
        changed("greeting-mac", " + nonces", ""),
    ),
    guard(
        "a reflected greeting is refused",
        f"{GREETINGS}a_reflection_is_refused",
        changed("greeting-mac", "VERSION, role", "VERSION, 0"),
    ),
    guard(
        "a relayed greeting is refused",
        f"{GREETINGS}a_relay_from_another_address_is_refused",
        changed("greeting-mac", " + self._address.encode()", ""),
    ),
    guard(
        "a greeting has one deadline",
        f"{GREETINGS}an_end_that_drips_is_refused_in_time[2]",
        replaced("greeting-deadline", "self._sock.settimeout(0.5)"),
    ),
    guard(
        "a greeting that ends early is refused at once",
        f"{GREETINGS}an_end_that_closes_too_early_is_refused_at_once[2-43]",
        never("greeting-end"),
    ),
    guard(
        "another program is not greeted", f"{GREETINGS}garbage_is_refused[2-noise]", never("greeting-magic")
    ),
    guard(
        "another version is not greeted",
        f"{GREETINGS}another_version_is_refused_by_its_number[1]",
        never("greeting-version"),
    ),
    guard(
        "an end of the same role is not greeted",
        f"{GREETINGS}an_end_of_the_same_role_is_refused[1]",
        never("greeting-role"),
    ),
]
