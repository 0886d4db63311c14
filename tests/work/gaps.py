"""Sessions that do not come through yet, by reason: take a name out with the mend of its cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BY_REASON: Mapping[str, Sequence[str]] = {
    "nothing compacts a conversation by default (compaction)": [
        "test_two_compactions_in_one_run",
        "test_a_conversation_of_ninety_thousand_tokens_goes_on",
    ],
    "a refusal for length ends the run, and the thread (compaction)": [
        "test_the_provider_refuses_a_request_for_its_length",
    ],
    "str_replace changes the first of many places (tools)": [
        "test_a_text_that_stands_in_many_places_is_not_replaced",
    ],
    "read_file ignores start_line alone (tools)": [
        "test_a_long_file_is_read_where_it_matters",
    ],
    "grep finds nothing in a named file over 1 MiB (tools)": [
        "test_a_data_set_of_three_hundred_megabytes",
    ],
    "read_file gives the bytes of documents (tools)": [
        "test_a_workbook_is_read",
        "test_a_document_of_pages_is_read",
        "test_a_document_is_made_and_read_again",
    ],
    "ls hides *.log, and grep finds nothing in one over 1 MiB (tools)": [
        "test_an_upload_is_searched",
    ],
    "ls, glob and grep hide logs, build, dist and *.log (tools)": [
        "test_logs_are_found_and_searched",
    ],
    "grep does not look into lines over 2 000 characters (tools)": [
        "test_a_long_line_is_searched_and_read",
    ],
    "web_fetch gives 4 096 characters of a page and cannot go on (tools)": [
        "test_a_long_page_is_read_to_its_end",
    ],
    "web_fetch refuses PDFs (tools)": [
        "test_a_pdf_of_the_web_is_read",
    ],
    "grep finds nothing in the file of a long output (tools)": [
        "test_the_error_at_the_end_of_a_long_build_is_seen",
    ],
    "outputs over 12 000 characters are cut to 3 000 (tools)": [
        "test_the_middle_of_a_test_report_is_seen",
    ],
    "bash takes no timeout (tools)": [
        "test_a_command_that_hangs_is_ended_in_time",
    ],
    "each command has a network of its own (machine)": [
        "test_a_server_is_started_and_tried",
        "test_a_server_is_looked_at_by_a_browser",
    ],
    "/tmp is new for each command (machine)": [
        "test_the_machine_keeps_its_temporary_files",
    ],
    "the prompt has no <environment> section (prompt, machine)": [
        "test_what_is_there_is_told",
    ],
    "AGENTS.md of the workspace is not read (prompt)": [
        "test_rules_of_a_repository_are_shown",
    ],
}
GAPS = {name: reason for reason, names in BY_REASON.items() for name in names}
