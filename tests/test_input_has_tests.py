"""Each kind of bad input, and each guarantee for events and streams, has a test."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parent
HOSTILE, INGEST = "runs/api/test_hostile_ingest.py::test_", "runs/api/test_ingest_api.py::test_"
WATCH, KILLED = (
    "runs/external/watching/test_watching_troubles.py::test_",
    "processes/ingest/test_killed_ingest.py::test_",
)
BODIES, SLOW = "runs/api/test_bodies.py::test_", "processes/deployment/test_slow_clients.py::test_"
ANSWERS, LISTS = "runs/api/test_answers.py::test_", "runs/api/test_lists.py::test_"
PARAMETERS, STREAM = "runs/api/test_parameters.py::test_", "live/test_answers.py::test_"
TAIL, LIMITS = "live/test_replay_and_tail.py::test_", "live/test_limits.py::test_"
LOG, REFUSED_PARAMETER = "timeline/test_log.py::test_", f"{PARAMETERS}what_cannot_be_used_is_refused"
STRICT, REFUSED_EVENT = "web/test_strict_json.py::test_", f"{INGEST}events_that_are_refused"

FLOWS = "runs/api/test_flows_api.py::test_"
RESUME, WRITES = "runs/api/test_resume_api.py::test_", "runs/api/test_writes.py::test_"
EXPORTS, FIXTURE = "runs/api/test_hostile_exports.py::test_", "runs/fixtures/test_format.py::test_"

#: Inputs of runners, API clients, stream readers, pages, files, the command line, models, tools and hooks.
INPUTS = {
    "no credential": f"{INGEST}without_a_credential_nothing_is_stored",
    "a wrong, long or strange key": f"{INGEST}other_credentials_are_invalid",
    "a revoked key": f"{INGEST}a_revoked_key_is_refused",
    "a run of another project": f"{INGEST}a_run_of_another_project_is_unknown",
    "a key that only reads": f"{INGEST}a_key_requires_the_scope_ingest",
    "a key in the address": f"{HOSTILE}a_key_that_was_sent_as_a_parameter_is_in_no_log",
    "an empty body": f"{INGEST}bodies_are_read_by_the_parser_of_the_api",
    "another content type": f"{HOSTILE}a_refusal_changes_nothing",
    "another charset": f"{BODIES}only_utf8_is_taken",
    "a compressed bomb": f"{BODIES}a_bomb_is_inflated_no_further",
    "a length that is wrong, a body without an end": f"{SLOW}an_endless_body_is_read_only_to_the_limit",
    "two lengths": f"{SLOW}two_lengths_are_refused",
    "bytes that are not UTF-8": f"{STRICT}invalid_json_is_refused",
    "what is not JSON": f"{STRICT}refusal_names_the_position",
    "JSON that is no object": f"{INGEST}bodies_are_read_by_the_parser_of_the_api",
    "JSON that is too deep": f"{STRICT}invalid_json_is_refused",
    "JSON of too many parts": f"{STRICT}hostile_input_is_parsed_quickly",
    "numbers that are not finite": f"{STRICT}minus_zero_is_zero",
    "numbers that are too large": f"{STRICT}invalid_json_is_refused",
    "NUL in a text": f"{INGEST}nul_and_lone_surrogates_are_replaced",
    "half of a surrogate pair": f"{STRICT}lone_surrogates_are_left_to_the_redactor_except_in_files",
    "control characters in an identifier": REFUSED_EVENT,
    "a batch that is none, empty or too large": REFUSED_EVENT,
    "an item that is no object": f"{INGEST}invalid_events_of_a_batch_are_named",
    "an unknown type": REFUSED_EVENT,
    "an ID that is none": REFUSED_EVENT,
    "an event that is sent again": f"{HOSTILE}a_thousand_repeats_are_one_event",
    "an ID with another body": f"{INGEST}the_same_id_with_another_body_is_a_conflict",
    "an ID twice in a batch": f"{INGEST}a_repeat_gets_the_first_number",
    "a sequence number of the sender": f"{INGEST}what_the_server_sets_is_accepted_and_dropped",
    "odd times": f"{HOSTILE}times_in_any_order_and_of_any_year_are_shown",
    "an unknown or deleted run": f"{HOSTILE}a_run_that_is_being_deleted_is_not_opened_again",
    "two runs, one of others": f"{HOSTILE}of_a_batch_for_several_runs_the_own_ones_are_stored",
    "events after the end": f"{HOSTILE}the_start_of_a_run_that_has_ended_is_late",
    "forged types": f"{HOSTILE}reserved_types_are_refused_within_a_batch_too",
    "fields that the server sets": REFUSED_EVENT,
    "an event that is too large": f"{HOSTILE}an_event_that_is_too_large_leaves_its_neighbours",
    "secrets": f"{HOSTILE}secrets_of_every_kind_are_masked",
    "texts that mean something elsewhere": f"{HOSTILE}text_that_means_something_elsewhere",
    "tool events without a partner": f"{HOSTILE}tool_events_without_a_partner",
    "too many requests": f"{HOSTILE}the_rate_limit_leaves_what_was_accepted",
    "a client that leaves before the answer": f"{KILLED}a_request_to_a_killed_server",
    "other methods": f"{HOSTILE}a_method_in_a_header_is_ignored",
    "cursors that no list has given": f"{LISTS}what_is_no_cursor_is_refused",
    "a cursor whose row is deleted": f"{LISTS}a_cursor_works_when_its_row_is_deleted",
    "a page size that is none": REFUSED_PARAMETER,
    "a status that is none": REFUSED_PARAMETER,
    "a parent that is no ID": REFUSED_PARAMETER,
    "events after a number that is none": f"{PARAMETERS}events_after_a_number",
    "an ID of another project": f"{ANSWERS}a_foreign_run_is_refused_as_fast_as_an_unknown_one",
    "an unknown parameter": REFUSED_PARAMETER,
    "another format": f"{ANSWERS}the_answer_is_json_or_nothing",
    "a tool name with marks of patterns": f"{PARAMETERS}a_tools_name_is_taken_literally",
    "a column to sort by": REFUSED_PARAMETER,
    "strange conditions and ranges": f"{ANSWERS}a_strange_condition_or_a_range_gets_everything",
    "a place in the stream that is none": f"{STREAM}a_bad_cursor_is_refused",
    "two places in the stream": f"{TAIL}the_header_wins_over_the_query",
    "a place in the future": f"{TAIL}a_cursor_of_the_future_starts_over",
    "a run that has ended": f"{TAIL}a_run_that_has_ended_is_replayed",
    "rights that end": "live/test_access_ends.py::test_whoever_loses_the_right_is_told_at_once",
    "too many streams": f"{LIMITS}the_twenty_first_stream_of_a_person_is_refused",
    "many tabs of a browser": "browser/run/test_scripts.py::test_a_hidden_page_closes_its_stream",
    "parameters of the library below": f"{STREAM}parameters_of_the_library_below_choose_nothing",
    "a page of another site": f"{STREAM}a_page_of_another_site_cannot_read",
    "other methods, HTTP/1.0": f"{STREAM}it_speaks_http_1_0",
    "a resume of a run that is not paused": f"{RESUME}only_paused_runs_can_be_resumed",
    "a resume at the last step": f"{RESUME}the_cap_of_a_lineage",
    "a resume near the last step": f"{RESUME}a_resumed_run_has_a_fresh_budget_and_the_steps_count_on",
    "a number of steps that is none": f"{RESUME}it_refuses_what_it_cannot_use",
    "a resume many times at once": f"{RESUME}fifty_at_once_make_one_run",
    "a resume of a run of another project": f"{RESUME}another_projects_run_is_an_unknown_one",
    "an empty message": f"{RESUME}it_refuses_what_it_cannot_use",
    "a message that plays another role": "runs/actions/test_resume_plan.py::test_a_message_is_only_text",
    "a command for no run": f"{FLOWS}commands_are_recorded_also_when_they_are_invalid",
    "a command to a run that has ended": f"{WRITES}an_ended_run_takes_no_command",
    "an idempotency key with another body": "runs/api/test_idempotency.py::test_another_request_needs",
    "a parent that cannot be": f"{WRITES}a_parent_and_its_limits",
    "a pause of what is paused": f"{WRITES}pause_and_stop",
    "a stop at the end": f"{WRITES}stop_races_with_completion",
    "an agent of unknown parts": f"{WRITES}an_agent_that_cannot_work_is_refused",
    "a policy that is none": "runs/agents/test_policies.py::test_what_it_refuses",
    "a database that takes no writes": f"{WRITES}storage_that_takes_no_writes",
    "no Redis": f"{WRITES}redis_down",
    "texts with elements": "browser/run/test_hostile_text.py::test_hostile_events_are_text_live_and_at_first",
    "texts with attributes of htmx": "browser/test_components.py::test_hostile_content_does_nothing",
    "texts with links and pictures": "browser/run/test_hostile_text.py::test_a_hostile_model_and_tools_are_text",
    "control sequences": "runs/commands/test_agent_runs.py::test_nothing_that_was_written_steers_the_terminal",
    "a long or invisible text": "admin/test_hostile.py::test_a_megabyte_is_cut",
    "a title that is a file's name": f"{EXPORTS}files_have_names_of_the_server",
    "a reader that leaves an export": f"{EXPORTS}a_reader_that_leaves_ends_the_export",
    "inner addresses": "runs/tools/test_address_policy.py::test_nothing_but_public_addresses_passes",
    "a receiver that rebinds": "runs/tools/test_guarded_http.py::test_a_host_that_rebinds_gets_only_the_address",
    "guessed passwords": "accounts/test_login.py::test_after_five_failures_the_right_password_is_refused_too",
    "an ambiguous prefix": "runs/commands/test_agent_steering.py::test_an_ambiguous_beginning_is_refused",
    "a kill without a terminal": "runs/commands/test_agent_resume_all.py::test_live_runs_are_taken_only_where",
    "a pipe or device as a file": f"{FIXTURE}it_refuses_what_is_not_a_regular_file",
    "a broken fixture": f"{FIXTURE}it_refuses_a_broken_fixture_and_says_where",
    "a fixture with a secret": "runs/commands/test_fixture_command.py::test_exit_1_for_a_missing_result_and",
    "a flow that cannot be": f"{FLOWS}everything_that_is_wrong_with_a_definition_is_told_with_its_place",
    "a path out of the root": "runs/tools/test_rooted_files.py::test_it_refuses_paths_that_lead_outside",
    "a command that takes everything": "runs/tools/sandbox/test_shell.py::test_a_fork_bomb_is_bounded",
    "an invalid setting": "test_settings.py::test_a_bad_one_is_named",
    "an answer of a model that is none": "runs/engine/turns/test_answers.py::test_ten_thousand_calls",
    "a result of a tool that is none": "runs/tools/test_tool_results.py::test_whatever_is_raised_becomes",
    "a hook that fails or hangs": "runs/hooks/test_resolution.py::test_a_hook_that_hangs_counts_as_failed",
}
#: The same inputs at other endpoints.
OTHER_ENDPOINTS = {
    "OTLP: a key in the address": "runs/external/otlp/test_hostile_bodies.py::test_a_key_in_the_address_is_no_key",
    "OTLP bodies: bodies of every kind": "runs/external/otlp/test_hostile_bodies.py::test_a_body_that_is_refused",
    "watch: a pipe or device as a session": f"{WATCH}what_is_no_file_keeps_no_session_waiting",
    "session hooks: events of nothing": "runs/external/watching/test_hooks.py::test_what_is_unknown_is_dropped",
    "MCP: a page of another site": "web/test_mcp.py::test_a_page_of_another_site_cannot_use_it",
    "exports: formats, parameters, other projects": f"{EXPORTS}what_cannot_be_exported_is_refused",
}
#: Guarantees for replays, streams and ingest.
GUARANTEES = {
    "a listener that fails stops no other": f"{LOG}a_listener_that_fails_does_not_stop_the_others",
    "a replay calls and changes nothing": "runs/test_replay_is_read_only.py::test_",
    "a fixture goes on where it stopped": "runs/fixtures/test_recordings.py::test_a_pause_between_two_answers",
    "parallel senders": f"{KILLED}a_storm_is_stored_once_and_in_order",
    "an event twice": "runs/external/test_ingest_races.py::test_events_that_are_sent_twice_are_stored_once",
    "numbers of the sender": f"{INGEST}what_the_server_sets_is_accepted_and_dropped",
    "the runner secret": f"{INGEST}each_of_the_runner_secrets_is_valid_here_and_nowhere_else",
    "an invalid event in a batch": f"{INGEST}invalid_events_of_a_batch_are_named",
    "what follows a place": f"{TAIL}it_sends_exactly_what_follows_the_cursor",
    "a reader that comes back": f"{TAIL}reconnections_while_events_are_written_lose_nothing",
    "signs of life": f"{LIMITS}a_quiet_stream_shows_that_it_lives",
    "the end of a stream": f"{TAIL}the_end_of_a_run_ends_the_stream",
    "more than a page": f"{TAIL}it_delivers_more_than_one_page_without_loss",
    "lines of output": "runs/api/test_session_aliases.py::test_lines_become_events_and_are_read_back",
    "events after the end": f"{INGEST}events_after_the_end_are_late_and_change_no_status",
    "what blocks a call": "runs/engine/approvals/test_hooks_of_runs.py::test_the_reason_of_a_block",
    "limits of a run": f"{INGEST}too_many_events_of_a_run_are_refused_and_others_are_not",
    "batches in another order": f"{HOSTILE}batches_in_another_order_are_numbered_as_they_arrive",
}


def test_each_input_has_a_test() -> None:
    for tested in (INPUTS, OTHER_ENDPOINTS, GUARANTEES):
        for what, place in tested.items():
            path, _, name = place.partition("::")
            assert f"def {name}" in (TESTS / path).read_text(), what
