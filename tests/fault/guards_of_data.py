"""The guards against damaged data: images, tar files, their indexes, and servers (see `guards`)."""

from __future__ import annotations

from tests.fault.guards import guard
from tests.fault.markers import changed, never, removed, replaced

IMAGES = "fault/test_mutated_images.py::test_"
VERDICTS = "fault/test_jpeg_verdicts.py::test_"
LOOPS = "property/test_loops_layout_properties.py::test_"
READS = "unit/test_sources.py::test_"
TARS = "unit/test_tar_index.py::test_"
SERVER = f"{READS}a_server_that_does_not_honour_the_range_is_an_error"

DATA_GUARDS = [
    # ---- images
    guard(
        "an image above the pixel cap is refused by its header",
        f"{IMAGES}a_bomb_is_refused_before_anything_is_allocated[png]",
        never("pixel-cap"),
    ),
    guard(
        "an image of another size than its header says is not decoded",
        f"{IMAGES}a_second_header_of_another_size_is_refused",
        never("second-header"),
    ),
    guard(
        "a warning of libjpeg is an error",
        f"{IMAGES}a_file_cut_off_anywhere_is_refused[jpeg]",
        changed("jpeg-warnings", "strict=True", "strict=False"),
    ),
    guard(
        "a JPEG file that Pillow decodes is checked by libjpeg",
        f"{IMAGES}a_jpeg_with_an_end_put_into_its_scan_is_refused[jpeg cmyk]",
        removed("jpeg-by-pillow"),
    ),
    guard(
        "a JPEG file has a bounded number of scans",
        f"{IMAGES}a_jpeg_of_very_many_scans_is_refused",
        removed("jpeg-scans"),
    ),
    guard(
        "what lies behind a JPEG file's end is no scan",
        f"{VERDICTS}markers_that_begin_no_scan_do_not_count_as_scans[behind the end]",
        never("jpeg-end"),
    ),
    guard(
        "a malformed colour profile is no damage",
        f"{VERDICTS}a_colour_profile_that_is_wrong_is_passed_over_with_and_without_the_loops[of no piece-False]",
        removed("jpeg-profile"),
    ),
    guard(
        "compiled loops write to memory in one piece only",
        f"{LOOPS}results_are_right_and_bytes_beside_out_are_left_alone[look_up]",
        changed("loops-one-piece", "and out.flags.c_contiguous", ""),
    ),
    guard(
        "compiled loops do not write over what they read",
        f"{LOOPS}an_image_is_not_written_over_while_it_is_read[look_up]",
        changed("loops-overlap", "not np.may_share_memory(image, out)", "True"),
    ),
    guard(
        "compiled loops take tables of 256 values only",
        f"{LOOPS}a_wrong_argument_is_refused_before_c_sees_it[a table of 5 x 3]",
        changed("loops-table", "table.shape not in ((256,), (256, 1), (256, channels))", "False"),
    ),
    guard(
        "checksums of a PNG file are checked",
        f"{IMAGES}a_png_with_any_byte_changed_is_refused[png]",
        never("png-checksums"),
    ),
    guard(
        "a PNG file has an end",
        f"{IMAGES}a_file_cut_off_anywhere_is_refused[png]",
        replaced("png-end", "return"),
    ),
    guard(
        "a PNG file has all of its rows",
        f"{IMAGES}a_png_with_fewer_rows_than_it_says_is_refused[png]",
        removed("png-rows"),
    ),
    # ---- sources
    guard(
        "a forked process opens its own files",
        f"{READS}a_forked_child_opens_files_of_its_own_and_leaves_the_parents_alone",
        changed("own-files", " and made[0] == pid", ""),
    ),
    guard(
        "a file that is being read is not closed",
        f"{READS}threads_read_while_others_files_are_closed",
        replaced("file-in-use", "os.close(file.fd); file.users = 9"),
    ),
    guard(
        "a changed file is not read",
        f"{READS}a_file_that_was_changed_after_its_stamp_was_taken_is_an_error",
        never("changed-file"),
    ),
    guard(
        "a whole file is not taken for a range",
        f"{SERVER}[all206-the server announced 10240 bytes where 10 are due]",
        never("whole-for-range"),
    ),
    guard(
        "other bytes are not taken for those asked for",
        f"{SERVER}[shift-gave others \\\\(Content-Range: 'bytes 6-14/10240'\\\\)]",
        never("other-range"),
    ),
    guard(
        "a body that ends early is an error",
        f"{SERVER}[short-the connection ended after 5 of 10 bytes]",
        never("short-body"),
    ),
    # ---- tar files and their indexes
    guard(
        "a tar file has an end",
        f"{TARS}a_tar_that_is_cut_off_anywhere_is_an_error[gnu]",
        replaced("tar-end", "return"),
    ),
    guard(
        "no header makes us read more than a name is long",
        f"{TARS}what_cannot_be_read_is_refused_with_a_reason",
        never("tar-header-size"),
    ),
    guard(
        "a damaged index is not used",
        f"{TARS}an_index_that_is_damaged_anywhere_is_rebuilt",
        never("index-checksum"),
    ),
    guard(
        "a stale index is not used",
        f"{TARS}a_stale_index_is_rebuilt",
        never("index-stamp"),
        changed("index-bounds", "within.all()", "True"),
    ),
    guard(
        "an index that points outside of its shard is not used",
        f"{TARS}an_index_that_points_outside_of_its_shard_is_not_believed",
        changed("index-bounds", "within.all()", "True"),
    ),
    guard(
        "a link in an index's place is not followed",
        f"{TARS}a_link_a_folder_and_a_pipe_in_its_place_are_not_followed",
        changed("index-link", " | os.O_NOFOLLOW", ""),
    ),
]
