"""Each kind of bad input, and each promise about events and streams, has a test that is about it."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
HOSTILE, INGEST = "runs/api/test_hostile_ingest.py::test_", "runs/api/test_ingest_api.py::test_"
BODIES, SLOW = "runs/api/test_bodies.py::test_", "processes/deployment/test_slow_clients.py::test_"
ANSWERS, LISTS = "runs/api/test_answers.py::test_", "runs/api/test_lists.py::test_"
PARAMETERS, STREAM = "runs/api/test_parameters.py::test_", "live/test_answers.py::test_"
TAIL, LIMITS = "live/test_replay_and_tail.py::test_", "live/test_limits.py::test_"
LOG, REFUSED_PARAMETER = "timeline/test_log.py::test_", f"{PARAMETERS}what_cannot_be_used_is_refused"
STRICT, REFUSED_EVENT = "web/test_strict_json.py::test_", f"{INGEST}events_that_are_refused"

#: Of runners that send events, of programs that read lists, and of readers of streams, by their numbers.
ROWS = {
    1: ("no credential", f"{INGEST}without_a_credential_nothing_is_stored"),
    2: ("a wrong, long or strange key", f"{INGEST}other_credentials_are_invalid"),
    3: ("a revoked key", f"{INGEST}a_revoked_key_is_refused"),
    4: ("a run of another project", f"{INGEST}a_run_of_another_project_is_unknown"),
    5: ("a key that only reads", f"{INGEST}a_key_requires_the_scope_ingest"),
    6: ("a key in the address", f"{HOSTILE}a_key_that_was_sent_as_a_parameter_is_in_no_log"),
    7: ("an empty body", f"{INGEST}bodies_are_read_by_the_parser_of_the_api"),
    8: ("another content type", f"{HOSTILE}a_refusal_changes_nothing"),
    9: ("another charset", f"{BODIES}only_utf8_is_taken"),
    10: ("a compressed bomb", f"{BODIES}a_bomb_is_inflated_no_further"),
    11: ("a length that is wrong, a body without an end", f"{SLOW}an_endless_body_is_not_taken"),
    12: ("two lengths", f"{SLOW}two_lengths_are_refused"),
    13: ("bytes that are not UTF-8", f"{STRICT}it_refuses_what_is_not"),
    14: ("what is not JSON", f"{STRICT}a_refusal_says_where"),
    15: ("JSON that is no object", f"{INGEST}bodies_are_read_by_the_parser_of_the_api"),
    16: ("JSON that is too deep", f"{STRICT}it_refuses_what_is_not"),
    17: ("JSON of too many parts", f"{STRICT}nothing_makes_it_slow"),
    18: ("numbers that are not finite", f"{STRICT}minus_zero_is_zero"),
    19: ("numbers that are too large", f"{STRICT}it_refuses_what_is_not"),
    21: ("NUL in a text", f"{INGEST}nul_and_lone_surrogates_are_replaced"),
    22: ("half of a surrogate pair", f"{STRICT}halves_of_surrogate_pairs"),
    23: ("control characters in an identifier", REFUSED_EVENT),
    24: ("a batch that is none, empty or too large", REFUSED_EVENT),
    25: ("an item that is no object", f"{INGEST}invalid_events_of_a_batch_are_named"),
    26: ("an unknown type", REFUSED_EVENT),
    27: ("an ID that is none", REFUSED_EVENT),
    28: ("an event that is sent again", f"{HOSTILE}a_thousand_repeats_are_one_event"),
    29: ("an ID with another body", f"{INGEST}the_same_id_with_another_body_is_a_conflict"),
    30: ("an ID twice in a batch", f"{INGEST}a_repeat_gets_the_first_number"),
    31: ("a sequence number of the sender", f"{INGEST}what_the_server_sets_is_accepted_and_dropped"),
    32: ("odd times", f"{HOSTILE}times_in_any_order_and_of_any_year_are_shown"),
    33: ("an unknown or deleted run", f"{HOSTILE}a_run_that_is_being_deleted_is_not_opened_again"),
    34: ("two runs, one of others", f"{HOSTILE}of_a_batch_for_several_runs_the_own_ones_are_stored"),
    35: ("events after the end", f"{HOSTILE}the_start_of_a_run_that_has_ended_is_late"),
    36: ("forged types", f"{HOSTILE}reserved_types_are_refused_within_a_batch_too"),
    37: ("fields that the server sets", REFUSED_EVENT),
    38: ("an event that is too large", f"{HOSTILE}an_event_that_is_too_large_leaves_its_neighbours"),
    39: ("secrets", f"{HOSTILE}secrets_of_every_kind_are_masked"),
    40: ("texts that mean something elsewhere", f"{HOSTILE}text_that_means_something_elsewhere"),
    41: ("tool events without a partner", f"{HOSTILE}tool_events_without_a_partner"),
    42: ("too many requests", f"{HOSTILE}the_rate_limit_leaves_what_was_accepted"),
    43: (
        "a client that leaves before the answer",
        "processes/ingest/test_killed_ingest.py::test_a_poster_whose_server",
    ),
    44: ("other methods", f"{HOSTILE}a_method_in_a_header_is_ignored"),
    46: ("cursors that no list has given", f"{LISTS}what_is_no_cursor_is_refused"),
    47: ("a cursor whose row is deleted", f"{LISTS}a_cursor_works_when_its_row_is_deleted"),
    48: ("a page size that is none", REFUSED_PARAMETER),
    49: ("a status that is none", REFUSED_PARAMETER),
    50: ("a parent that is no ID", REFUSED_PARAMETER),
    51: ("events after a number that is none", f"{PARAMETERS}events_after_a_number"),
    52: ("an ID of another project", f"{ANSWERS}a_foreign_run_is_refused_as_fast_as_an_unknown_one"),
    54: ("an unknown parameter", REFUSED_PARAMETER),
    55: ("another format", f"{ANSWERS}the_answer_is_json_or_nothing"),
    56: ("a tool name with marks of patterns", f"{PARAMETERS}a_tools_name_is_taken_literally"),
    58: ("a column to sort by", REFUSED_PARAMETER),
    59: ("strange conditions and ranges", f"{ANSWERS}a_strange_condition_or_a_range_gets_everything"),
    60: ("a place in the stream that is none", f"{STREAM}a_bad_cursor_is_refused"),
    61: ("two places in the stream", f"{TAIL}the_header_wins_over_the_query"),
    62: ("a place in the future", f"{TAIL}a_cursor_of_the_future_starts_over"),
    63: ("a run that has ended", f"{TAIL}a_run_that_has_ended_is_replayed"),
    64: ("rights that end", "live/test_access_ends.py::test_whoever_loses_the_right_is_told_at_once"),
    65: ("too many streams", f"{LIMITS}the_twenty_first_stream_of_a_person_is_refused"),
    67: ("many tabs of a browser", "browser/run/test_scripts.py::test_a_hidden_page_gives_its_connection_back"),
    68: ("parameters of the library below", f"{STREAM}parameters_of_the_library_below_choose_nothing"),
    69: ("a page of another site", f"{STREAM}a_page_of_another_site_cannot_read"),
    70: ("other methods, HTTP/1.0", f"{STREAM}it_speaks_http_1_0"),
}
SCENARIOS = {
    "S-022": ("a listener that fails stops no other", f"{LOG}a_listener_that_fails_does_not_stop_the_others"),
    "S-023": ("a replay calls and changes nothing", "runs/test_replay_is_read_only.py::test_"),
    "S-024": (
        "a fixture goes on where it stopped",
        "runs/fixtures/test_recordings.py::test_a_pause_between_two_answers",
    ),
    "S-201": ("parallel senders", "processes/ingest/test_killed_ingest.py::test_a_storm_is_stored_once_and_in_order"),
    "S-202": ("an event twice", "runs/external/test_ingest_races.py::test_events_that_are_sent_twice_are_stored_once"),
    "S-203": ("numbers of the sender", f"{INGEST}what_the_server_sets_is_accepted_and_dropped"),
    "S-204": ("the runner secret", f"{INGEST}each_of_the_runner_secrets_is_valid_here_and_nowhere_else"),
    "S-205": ("an invalid event in a batch", f"{INGEST}invalid_events_of_a_batch_are_named"),
    "S-206": ("what follows a place", f"{TAIL}it_sends_exactly_what_follows_the_cursor"),
    "S-207": ("a reader that comes back", f"{TAIL}reconnections_while_events_are_written_lose_nothing"),
    "S-208": ("signs of life", f"{LIMITS}a_quiet_stream_shows_that_it_lives"),
    "S-209": ("the end of a stream", f"{TAIL}the_end_of_a_run_ends_the_stream"),
    "S-210": ("more than a page", f"{TAIL}it_delivers_more_than_one_page_without_loss"),
    "S-211": ("lines of output", "runs/api/test_session_aliases.py::test_lines_become_events_and_are_read_back"),
    "S-212": ("events after the end", f"{INGEST}events_after_the_end_are_late_and_change_no_status"),
    "S-213": ("what blocks a call", "runs/engine/approvals/test_hooks_of_runs.py::test_the_reason_of_a_block"),
    "S-214": ("limits of a run", f"{INGEST}too_many_events_of_a_run_are_refused_and_others_are_not"),
    "S-215": ("batches in another order", f"{HOSTILE}batches_in_another_order_are_numbered_as_they_arrive"),
}


def test_each_has_its_test() -> None:
    for number, (_, place) in [*ROWS.items(), *SCENARIOS.items()]:
        path, _, name = place.partition("::")
        assert f"def {name}" in (TESTS / path).read_text(), number
