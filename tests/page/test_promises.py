"""What the timeline, the overview and the settings promise people, and the tests that show it in a browser."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TIMELINE, OPERATE, SETTINGS = "page/test_timeline.py", "page/test_operate.py", "page/test_settings.py"
STRANGER = "e2e/test_timeline_stranger.py"

PROMISES: Mapping[str, Mapping[str, Sequence[str]]] = {
    TIMELINE: {
        "lanes over time: people, queue, runs, models, tools": ["test_the_list_says_what_the_server_says"],
        "the same as a list, in the words of `sika log show`": [
            "test_the_list_says_what_the_server_says",
            "test_words_are_those_of_the_language_of_now",
        ],
        "zoom and pan by mouse, touch and keys": [
            "test_lanes_are_zoomed_moved_and_pressed",
            "test_lanes_are_dragged_and_spread",
        ],
        "live while a run works, for as long as one looks": [
            "test_what_happens_now_is_there_at_once",
            "test_a_window_stays_one_while_thousands_of_events_come",
        ],
        "filter by kind, text, run": ["test_filters_by_text_kind_and_problem"],
        "from a message in the chat to its place and back": [
            "test_from_a_message_to_its_place",
            "test_from_the_chat_to_what_went_wrong_and_why_and_back",
        ],
        "scrub: the state of a moment": ["test_keys_move_through_the_list_and_the_state_follows"],
        "scrub: the prompt of a call, and what changed since the one before": [
            "test_the_prompt_of_a_call_and_what_is_new_in_it"
        ],
        "scrub: files as they were known, cost so far": ["test_files_and_usage_of_a_moment"],
        "scrub: why, down to the person's words": ["test_from_the_chat_to_what_went_wrong_and_why_and_back"],
        "compare two moments": ["test_two_moments_are_compared"],
        "compare two runs, aligned": ["test_two_runs_are_compared_step_by_step"],
        "compare a run with its replay": ["test_a_run_is_compared_with_its_replay"],
        "from any moment: fork": ["test_a_new_conversation_goes_on_from_a_moment"],
        "from any moment: edit and go on": ["test_a_message_is_changed_in_a_conversation_of_its_own"],
        "from any moment: what-if with another model or prompt, its cost first, results side by side": [
            "test_what_if_names_its_price_before_it_asks_a_model"
        ],
        "from any moment: pin as a test": ["test_a_run_is_pinned_as_a_test"],
        "from any moment: export": ["test_what_was_exported_opens_by_drop_without_a_network"],
        "breakpoints step in the page": [
            "test_steps_lead_from_breakpoint_to_breakpoint",
            "test_steps_of_a_file_lead_from_breakpoint_to_breakpoint",
        ],
        "an exported file opens by drop, also without a server": [
            "test_what_was_exported_opens_by_drop_without_a_network",
            "test_a_file_is_read_without_a_server",
            "test_a_file_is_imported_as_a_conversation_of_one_s_own",
        ],
        "a file tells the state, the prompt of a call and the files of a moment as the server does": [
            "test_what_was_exported_opens_by_drop_without_a_network",
        ],
        "a file names what it lacks: secrets, bodies of long events, prompts, its end": [
            "test_a_file_says_what_it_lacks"
        ],
        "a link to a moment": ["test_a_link_to_a_moment_opens_there"],
        "`sika log open THREAD` opens the browser at the thread": ["test_a_terminal_opens_the_browser_at_the_thread"],
        "long logs window by window": [
            "test_a_long_log_is_looked_at_window_by_window",
            "test_of_a_long_log_only_what_is_in_view_is_drawn",
        ],
        "texts of others run nothing, every part keeps the rules of access": [
            "test_texts_of_others_run_nothing_and_hide_nothing",
            "test_every_part_of_a_moment_keeps_the_rules",
        ],
        "another user's thread is not there": ["test_a_conversation_of_nobody_is_not_there"],
    },
    STRANGER: {
        "a loop of tool errors, in four clicks": ["test_a_tool_failed_again_and_again"],
        "a model that gave up, with the lane of retries": ["test_the_model_gave_up"],
        "an approval that nobody answered, with the lane of approvals": ["test_nobody_answered"],
        "a wrong file of a subagent, with the lane of subagents": ["test_a_subagent_wrote_the_wrong_file"],
        "a run that another process took over": ["test_a_process_was_killed"],
    },
    OPERATE: {
        "runs now, by state, age and user": ["test_what_runs_now_by_state_age_and_user"],
        "queue depth and lag by actor": ["test_queue_depth_and_lag_by_actor"],
        "processes with their load": ["test_each_process_is_shown_with_its_load"],
        "failed runs by their reason": [
            "test_runs_that_fail_are_grouped_by_their_reason_and_lead_to_their_conversation"
        ],
        "dead letters with their content, redrive": [
            "test_a_poisoned_event_is_a_dead_letter_that_is_sent_again_by_a_click"
        ],
        "dead letters: discard": ["test_a_dead_letter_is_discarded_unless_that_is_undone"],
        "slow tools and models": ["test_slow_tools_and_models"],
        "tokens and cost by day, model, user and agent; charts as tables, too": [
            "test_tokens_and_cost_by_day_model_user_and_agent"
        ],
        "health as the doctor says it, with the remedy": ["test_health_as_the_doctor_says_it"],
        "what was configured when, and by whom": [
            "test_what_was_configured_when",
            "test_a_poisoned_event_is_a_dead_letter_that_is_sent_again_by_a_click",
        ],
        "a member sees nothing of it": ["test_a_member_sees_nothing_of_it"],
        "no route answers a secret": ["test_no_route_answers_a_secret"],
        "what others changed": ["test_every_section_shows_what_others_changed_when_it_is_looked_at_again"],
        "the chat loads nothing of it": ["test_the_chat_loads_nothing_of_it"],
    },
    SETTINGS: {
        "models: add, try with a real call, default": ["test_a_model_is_added_tried_made_the_default_and_answers"],
        "models: roles": ["test_models_are_chosen_for_a_role"],
        "memory: read, correct, forget, export; what an agent was told in which run": [
            "test_a_fact_is_remembered_told_corrected_forgotten_and_exported"
        ],
        "skills: by upload, check's verdict, on and off, edit with history": [
            "test_a_skill_is_checked_installed_edited_switched_and_rolled_back"
        ],
        "skills: by address; each user has their own": ["test_a_skill_of_an_address_is_off_until_the_verdict_was_read"],
        "skills: by an address at GitHub": ["test_a_skill_of_a_folder_at_github"],
        "MCP servers: add, try, tools, masked secrets, why one is left out": [
            "test_a_server_of_tools_is_tried_added_and_says_why_it_fails"
        ],
        "MCP servers: login by OAuth": ["test_a_login_at_a_server_of_tools_goes_there_and_back"],
        "agents: make, edit, history": ["test_an_agent_is_made_answers_is_changed_and_becomes_what_it_was"],
        "agents: chat to make one": ["test_an_agent_is_made_in_a_conversation"],
        "channels: status, connect, test, last failure": [
            "test_a_bot_says_how_it_is_and_its_credentials_are_entered_and_tested"
        ],
        "schedules: make, run now, next times in one's zone": ["test_a_schedule_is_made_runs_now_pauses_and_goes"],
        "API keys": ["test_a_key_is_made_for_somebody_works_and_is_revoked"],
        "users and roles": ["test_an_account_is_made_used_disabled_and_given_another_password"],
        "limits, budgets and webhooks: the file decides, with the line to write": [
            "test_what_the_file_alone_decides_says_so_with_the_line_to_write"
        ],
        "the configuration in force: masked, each key with its source and text": [
            "test_the_configuration_says_where_each_value_comes_from_and_no_secret"
        ],
        "appearance and language": ["test_theme_and_language_are_chosen"],
        "a member sees what is theirs, and gets 403 for the rest": [
            "test_a_member_sees_only_what_is_about_their_own_things"
        ],
        "a link to a moment, for colleagues who may see the thread; others get 404": [
            "test_a_link_to_a_moment_is_for_people_who_may_see_the_thread"
        ],
        "another role, or none, while it is open": ["test_what_somebody_may_do_changes_while_settings_are_open"],
        "what others changed, and what one types": [
            "test_every_section_shows_what_others_changed_when_it_is_looked_at_again",
            "test_what_somebody_types_stays_when_it_is_looked_at_again",
        ],
        "every section whole, in both themes and languages, by keys": [
            "test_every_section_is_seen_whole_and_keeps_every_rule",
            "test_sections_are_reached_by_keys",
        ],
    },
}
"""The tests of each promise, by their file."""


def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef))


@pytest.mark.parametrize("file", PROMISES)
def test_each_promise_has_its_tests(file: str) -> None:
    named = {test for tests in PROMISES[file].values() for test in tests}
    assert all(PROMISES[file].values())
    assert named <= names_in(file), "a test was renamed: what shows the promise now?"
