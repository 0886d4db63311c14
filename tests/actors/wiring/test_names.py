"""Names in the configuration that name nothing are said, wherever the configuration takes names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actors.wiring import compose
from actors.wiring.names import remarks
from core.config.load import parse
from core.config.reference import all_keys
from core.errors import Invalid

GUARD = "provider: {use: 'deerflow.guardrails.builtin:AllowlistProvider', config: "
AGENT = "description: d, system_prompt: p"
NAMED = {
    "approvals[].tool": "approvals: [{tool: basch}]",
    "guardrails.provider.config": f"guardrails: {{enabled: true, {GUARD}{{denied_tools: [basch]}}}}}}",
    "mcp_server.tools": "mcp_server: {tools: [basch]}",
    "subagents.custom_agents.*.tools": f"subagents: {{custom_agents: {{n: {{{AGENT}, tools: [basch]}}}}}}",
    "subagents.custom_agents.*.disallowed_tools": f"subagents: {{custom_agents: {{n: {{{AGENT}, "
    "disallowed_tools: [basch]}}}",
    "subagents.custom_agents.*.skills": f"subagents: {{custom_agents: {{n: {{{AGENT}, skills: [pfd]}}}}}}",
    "subagents.custom_agents.*.model": f"subagents: {{custom_agents: {{n: {{{AGENT}, model: nope}}}}}}",
    "subagents.agents": "subagents: {agents: {basch: {max_turns: 3}}}",
    "subagents.agents.*.skills": "subagents: {agents: {bash: {skills: [pfd]}}}",
    "subagents.agents.*.model": "subagents: {agents: {bash: {model: nope}}}",
    "loop_detection.tool_freq_overrides": "loop_detection: {tool_freq_overrides: {basch: {warn: 2, hard_limit: 3}}}",
    "tool_output.overrides": "tool_output: {overrides: {basch: 4000}}",
    "tool_output.exempt_tools": "tool_output: {exempt_tools: [basch]}",
    "skills.secrets": "skills: {secrets: {pfd: {A: a-long-secret-value-1234}}}",
    "tools[].group": "{tool_groups: [{name: web}], tools: [{name: ls, group: wbe, use: 'adapters.tools.ls:ls'}]}",
    "model_roles": "model_roles: {lead: [nope]}",
    "title.model_name": "title: {model_name: nope}",
    "goals.model_name": "goals: {model_name: nope}",
    "suggestions.model_name": "suggestions: {model_name: nope}",
    "input_polish.model_name": "input_polish: {model_name: nope}",
    "summarization.model_name": "summarization: {model_name: nope}",
    "memory.model_name": "memory: {model_name: nope}",
    "skill_evolution.moderation_model_name": "skill_evolution: {moderation_model_name: nope}",
    "channels.session.context": "channels: {session: {context: {model_name: nope}}}",
    "channels.session.users.*.context": "channels: {session: {users: {u: {context: {model_name: nope}}}}}",
    "channels.*.session.context": "channels: {slack: {session: {context: {model_name: nope}}}}",
    "channels.*.session.users.*.context": "channels: {slack: {session: {users: {u: {context: {model_name: nope}}}}}}",
    "channels.*.accounts.*.session.context": "channels: {slack: {accounts: {a: {session: {context: "
    "{model_name: nope}}}}}}",
    "channels.*.accounts.*.session.users.*.context": "channels: {slack: {accounts: {a: {session: {users: {u: {context: "
    "{model_name: nope}}}}}}}}",
    "channels.session.assistant_id": "channels: {session: {assistant_id: 'nope!'}}",
    "channels.session.users.*.assistant_id": "channels: {session: {users: {u: {assistant_id: 'nope!'}}}}",
    "channels.*.session.assistant_id": "channels: {slack: {session: {assistant_id: 'nope!'}}}",
    "channels.*.session.users.*.assistant_id": "channels: {slack: {session: {users: {u: {assistant_id: 'nope!'}}}}}",
    "channels.*.accounts.*.session.assistant_id": "channels: {slack: {accounts: {a: {session: {assistant_id: "
    "'nope!'}}}}}",
    "channels.*.accounts.*.session.users.*.assistant_id": "channels: {slack: {accounts: {a: {session: {users: {u: "
    "{assistant_id: 'nope!'}}}}}}}",
    "mcp.interceptors": "mcp: {interceptors: ['nope.auth:build']}",
    "channel_connections.*": "channel_connections: {enabled: true, telegram: {enabled: true}}",
    "channels.*": "channels: {telegramm: {enabled: true}}",
}
"""Keys that name something of this server, and a file in which one names nothing."""
OTHERS = re.compile(
    r"""http\.(cors_origins|trusted_proxies) | auth\.oidc\[\]\.(scopes|allowed_domains)
    | actors | installed | middlewares\[\]\.config       # of code, which is imported at the start
    | models\[\]\.(when_)?thinking.* | mcp\.servers(\.\*\..*)? | acp_agents(\.\*\..*)?    # given names; of programs
    | channels\..*(allowed_users|allowed_chats|session(\.users\.\*)?\.config|session\.users|accounts)
    | sandbox\.(egress\.allow(_private)?|folders|environment) | tracing\.otlp\.headers
    | subagents\.custom_agents | approvals\[\]\.(match|allowed)
    | summarization\.skill_file_read_tool_names""",  # words of models, also for tools of other programs
    re.VERBOSE,
)
"""Keys with names that are of something else, or that are given there."""


def test_each_key_that_takes_names_is_tried_or_is_of_something_else() -> None:
    naming = {
        key.path
        for key in all_keys()
        if key.type.startswith(("list of text", "list of one", "mapping", "text, or mapping"))
        or key.path.endswith(("model_name", ".model", ".group", "[].tool", "assistant_id"))
    } - {"models[].model", "acp_agents.*.model"}
    assert {path for path in naming if not OTHERS.fullmatch(path)} == NAMED.keys()


@pytest.mark.parametrize("path", NAMED)
def test_a_name_of_nothing_is_said_with_its_key(path: str, tmp_path: Path) -> None:
    try:
        config = parse(NAMED[path])
        said = compose.problems(config) or remarks(config, tmp_path)
    except Invalid as error:
        said = [str(error)]
    [line] = said
    beginning = re.escape(path).replace(r"\[\]", r"\[0\]").replace(r"\*", r"\w+")
    assert re.match(rf"(config\.yaml: )?{beginning}\b", line.replace("subagents: ", "subagents.")), line
    assert any(name in line for name in ("basch", "pfd", "wbe", "nope", "telegram"))


def test_names_of_tools_that_come_later_or_stand_for_many_are_not_said(tmp_path: Path) -> None:
    text = (
        "{mcp: {servers: {web: {command: x}}}, mcp_server: {tools: [web_x, bash]}, tool_output: {overrides: {ls: 9}}}"
    )
    assert remarks(parse(text), tmp_path) == []
    assert "did you mean bash?" in remarks(parse("mcp_server: {tools: [basch]}"), tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("channels: {telegram: {enabled: true, bot_token: t}}", "channels.telegram.allowed_users: is empty"),
        ("channels: {telegram: {enabled: true, bot_token: t, allowed_users: [1]}}", ""),
        ("channels: {telegram: {enabled: true, bot_token: t, allow_everyone: true}}", ""),
        ("channels: {slack: {enabled: true, bot_token: t, app_token: t}}", ""),
        (
            "sandbox: {provider: host, allow_host_bash: true, mounts: [{host_path: /a, container_path: /mnt/a, "
            "read_only: true}]}",
            "sandbox.mounts[0].read_only: holds for the file tools only",
        ),
        (
            "sandbox: {allow_host_bash: true, mounts: [{host_path: /a, container_path: /mnt/a, read_only: true}]}",
            "sandbox.mounts[0].read_only: where bubblewrap does not work, holds for the file tools only",
        ),
        (
            "sandbox: {provider: bubblewrap, allow_host_bash: true, mounts: [{host_path: /a, container_path: /mnt/a, "
            "read_only: true}]}",
            "",
        ),
        ("sandbox: {provider: host, mounts: [{host_path: /a, container_path: /mnt/a, read_only: true}]}", ""),
    ],
)
def test_what_another_setting_keeps_from_having_an_effect_is_said(text: str, said: str, tmp_path: Path) -> None:
    lines = remarks(parse(text), tmp_path)
    assert [line.startswith(said) for line in lines] == ([True] if said else [])


KEYED = "provider: serper, api_key: a-long-secret-value-1234"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("name: web_fetch, use: 'adapters.tools.web_fetch:web_fetch', zebra: 1, max_results: 3", "tools[0].zebra: "),
        ("name: web_search, use: 'adapters.tools.web_search:web_search', zebra: 1, " + KEYED, "tools[0].zebra: "),
        (
            "name: web_search, use: 'deerflow.community.serper.tools:web_search_tool', zebra: 1, " + KEYED[18:],
            "tools[0].z",
        ),
        ("name: ls, use: 'adapters.tools.ls:ls', zebra: 1", "tools[0].zebra: the tool ls knows no such setting"),
        ("name: ls, use: 'deerflow.sandbox.tools:ls_tool', max_results: 3", "tools[0].max_results: "),
        (
            "name: web_search, use: 'adapters.tools.web_search:web_search'",
            "tools[0]: DuckDuckGo needs the package ddgs; ",
        ),
        ("name: image_search, use: 'deerflow.community.image_search.tools:image_search_tool'", "tools[0]: DuckDuckGo "),
        ("name: web_search, use: 'adapters.tools.web_search:web_search', " + KEYED, ""),
        ("name: grep, use: 'adapters.tools.grep:grep', max_results: 3", ""),
        ("name: web_fetch, use: 'adapters.tools.web_fetch:web_fetch', timeout: 3", ""),
    ],
)
def test_settings_that_a_tool_does_not_know_and_packages_that_it_lacks_are_said(
    entry: str, said: str, tmp_path: Path
) -> None:
    lines = remarks(parse(f"tools: [{{{entry}}}]"), tmp_path)
    assert [line.startswith(said) for line in lines] == ([True] if said else [])


def test_a_package_that_is_installed_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ddgs.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    text = "tools: [{name: web_search, use: 'adapters.tools.web_search:web_search'}]"
    assert remarks(parse(text), tmp_path) == []
