"""Restrictions in host files hide the same tools here, or exclude the server."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from gateway.config.load import load, parse
from gateway.config.model import Config
from gateway.protocol.gateway_errors import ConfigError

UP = {"command": "up"}


def read(entry: dict[str, Any], name: str = "gh", **root: Any) -> Config:
    """The configuration of a file with this entry and one that nothing restricts."""
    return parse(json.dumps({"mcpServers": {name: {**UP, **entry}, "other": UP}, **root}), environ={})


def visible_tools(config: Config, name: str = "gh") -> set[str] | None:
    """The tools of a server with three that are shown; None where it is left out."""
    server = config.servers.get(name)
    if server is None:
        return None

    def matches(tool: str, patterns: list[str] | None) -> bool:
        return any(fnmatchcase(tool, pattern) for pattern in patterns or ())

    allowed = server.allow.tools
    tools = {"list_repos", "read_file", "delete_repo"}
    return {
        tool
        for tool in tools
        if (allowed is None or matches(tool, allowed))
        and not matches(tool, server.deny.tools)
        and not (tool in server.tools and server.tools[tool].hidden)
    }


ALL = {"list_repos", "read_file", "delete_repo"}
SAFE = {"list_repos", "read_file"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        # LiteLLM, Gemini CLI, Codex, Roo Code, Windsurf, mcphub.nvim, Goose, deepagents.
        ({"disallowed_tools": ["delete_repo"]}, SAFE),
        ({"excludeTools": ["delete_repo(name)"]}, SAFE),
        ({"disabled_tools": ["delete_repo"]}, SAFE),
        ({"disabledTools": ["delete_repo"]}, SAFE),
        ({"blockedTools": ["delete_repo"]}, SAFE),
        ({"tools_exclude": ["delete_repo"]}, SAFE),
        ({"toolBlocklist": ["delete_repo"]}, SAFE),
        ({"hidden-tools": ["delete_repo"]}, SAFE),
        ({"allowed_tools": ["list_repos"]}, {"list_repos"}),
        ({"allowedTools": []}, set()),
        ({"available_tools": ["list_repos"]}, {"list_repos"}),
        ({"includeTools": ["list_*"]}, {"list_repos"}),
        ({"enabled_tools": ["list_repos", "delete_repo"], "disabled_tools": ["delete_repo"]}, {"list_repos"}),
        ({"tool_filter": ["list_repos"]}, {"list_repos"}),
        ({"options": {"toolFilter": {"mode": "block", "list": ["delete_repo"]}}}, SAFE),
        ({"toolFilter": {"mode": "allow", "list": ["list_repos"]}}, {"list_repos"}),
        ({"filter_tools": {"include": ["list_repos"]}}, None),
        ({"mcp_tools": ["list_repos"]}, {"list_repos"}),
        ({"functions": ["list_repos"]}, {"list_repos"}),
        ({"tool_names": ["list_repos"]}, {"list_repos"}),
        ({"toolList": ["gh__list_repos"]}, {"list_repos"}),
        ({"disabledTools": ["mcp__gh__delete_repo"]}, SAFE),
        ({"disabledTools": ["mcp_gh_delete_repo"]}, SAFE),
        ({"disabledTools": ["gh/delete_repo", "gh.x"]}, SAFE),
        ({"disabledTools": [" delete_repo "]}, SAFE),
        # Copilot, mcphub, FastMCP, Codex, OpenCode.
        ({"tools": ["*"]}, ALL),
        ({"tools": "*"}, ALL),
        ({"tools": ["list_repos"]}, {"list_repos"}),
        ({"tools": []}, set()),
        ({"tools": {"delete_repo": {"enabled": False, "description": "d"}}}, SAFE),
        ({"tools": {"gh-delete_repo": {"enabled": False}}}, SAFE),
        ({"tools": {"delete_repo": {"disabled": True}, "list_repos": {"enabled": True}}}, SAFE),
        ({"tools": {"delete_repo": False}}, SAFE),
        ({"tools": {"delete_repo": 0, "list_repos": 1}}, SAFE),
        ({"tools": {"*": False, "list_repos": True}}, {"list_repos"}),
        ({"tools": {"enabled": False}}, set()),
        ({"tools": {"disabled": True, "list_repos": True}}, {"list_repos"}),
        ({"tools": {"enabled": True, "delete_repo": False}}, SAFE),
        ({"tools": {"delete_repo": {"approval_mode": "prompt"}}}, ALL),
        ({"enableTools": True, "disablePrompts": False}, ALL),
        ({"enableTools": False}, set()),
        ({"disable_tools": True}, set()),
        ({"enabled": False}, None),
        ({"enable": False}, None),
        ({"inactive": True}, None),
        ({"off": True}, None),
        ({"skip": "true"}, None),
        ({"status": "disabled"}, None),
        ({"status": "connected"}, ALL),
        ({"isActive": False}, None),
        ({"enabled": "false"}, None),
        ({"enabled": True, "disabled": True}, None),
        ({"enabled": False, "disabled": False}, None),
        # Settings for questions to the user are not restrictions.
        ({"autoApprove": ["list_repos"], "alwaysAllow": ["list_repos"], "trust": True}, ALL),
        ({"disabledAutoApproveTools": ["delete_repo"], "default_tools_approval_mode": "approve"}, ALL),
        ({"allowInsecure": True, "toolCallTimeout": 3}, ALL),
    ],
)
def test_host_keys_that_hide_tools_are_honored(entry: dict[str, Any], expected: set[str] | None) -> None:
    assert visible_tools(read(entry)) == expected


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ({"disallowed_tools": "delete_repo"}, "disallowed_tools"),
        ({"allowed_tools": {"tool_names": ["list_repos"]}}, "allowed_tools"),
        ({"disabledTools": {"delete_repo": True}}, "disabledTools"),
        ({"blockedTools": [3]}, "blockedTools"),
        ({"tools": "list_repos"}, "tools"),
        ({"tools": [{"name": "list_repos"}]}, "tools"),
        ({"tools": {"delete_repo": {"enabled": "perhaps"}}}, "tools.delete_repo.enabled"),
        ({"tools": {"delete_repo": "off"}}, "tools"),
        ({"enabled": "perhaps"}, "enabled"),
        ({"includeTools": ["a"], "enabledTools": ["b"]}, "enabledTools"),
        ({"allow": ["a"], "allowed_tools": ["b"]}, "allowed_tools"),
        ({"toolFilter": {"mode": "regex", "list": ["a"]}}, "toolFilter"),
        ({"options": {"toolFilter": {"mode": "block"}}}, "options.toolFilter"),
        ({"allowed_params": {"delete_repo": ["name"]}}, "allowed_params"),
        ({"access_groups": ["ops"]}, "access_groups"),
        ({"tool_configuration": {"default": {"enabled": False}}}, "tool_configuration"),
        ({"settings": {"excludeTools": ["delete_repo"]}}, "settings"),
        ({"readOnly": True}, "readOnly"),
        ({"sandboxEnabled": True}, "sandboxEnabled"),
        ({"dissallowedTools": ["delete_repo"]}, "dissallowedTools"),
        ({"readOnlyMode": True}, "readOnlyMode"),
        ({"safeMode": True}, "safeMode"),
        ({"capabilities": {"tools": False}}, "capabilities"),
        ({"features": {"tools": {"enabled": False}}}, "features"),
        ({"filter": {"tools": ["list_repos"]}}, "filter"),
        ({"rules": [{"tool": "delete_repo", "action": "deny"}]}, "rules"),
        ({"roles": {"admin": ["*"]}}, "roles"),
        ({"toolPattern": "list_*"}, "toolPattern"),
        ({"tool_regex": "^list_"}, "tool_regex"),
        ({"functions": {"delete_repo": False}}, "functions"),
        ({"excludeTools": ["delete_.*"]}, "excludeTools"),
        ({"excludeTools": ["/delete.*/i"]}, "excludeTools"),
        ({"excludeTools": ["^delete"]}, "excludeTools"),
        ({"excludeTools": ["delete_repo|x"]}, "excludeTools"),
        ({"tools": ["*", "!delete_repo"]}, "tools"),
        ({"allowed_tools": ["*", "-delete_repo"]}, "allowed_tools"),
    ],
)
def test_unreadable_restriction_excludes_the_server_with_the_reason(entry: dict[str, Any], key: str) -> None:
    config = read(entry)
    assert list(config.servers) == ["other"]
    assert config.left_out["gh"].faulty
    assert f"mcpServers.gh.{key}" in config.left_out["gh"].reason


def test_host_restrictions_apply_to_prompts_and_resources_too() -> None:
    entry = {"disabled_prompts": ["p"], "allowedResources": ["file:///a"], "allowedTools": ["t"]}
    server = read(entry).servers["gh"]
    assert (server.allow.tools, server.allow.resources, server.deny.prompts) == (["t"], ["file:///a"], ["p"])


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        # Gemini CLI and Qwen Code, today and before.
        ({"mcp": {"excluded": ["gh"]}}, None),
        ({"mcp": {"allowed": ["other"]}}, None),
        ({"mcp": {"allowed": ["gh", "other"]}}, ALL),
        ({"excludeMCPServers": ["gh"]}, None),
        ({"allowMCPServers": ["other"]}, None),
        ({"excludeTools": ["gh__delete_repo", "run_shell_command"]}, SAFE),
        ({"tools": {"exclude": ["delete_repo"], "core": ["read_file"]}}, SAFE),
        ({"tools": {"exclude": ["mcp_gh_delete_repo"]}}, SAFE),
        # Claude Code.
        ({"permissions": {"deny": ["mcp__gh__delete_repo", "Bash(rm:*)"]}}, SAFE),
        ({"permissions": {"deny": ["mcp__gh"]}}, None),
        ({"permissions": {"deny": ["mcp__gh__*"]}}, None),
        ({"permissions": {"deny": ["mcp__other__delete_repo"], "allow": ["mcp__gh"]}}, ALL),
        ({"disabledMcpjsonServers": ["gh"]}, None),
        ({"enabledMcpjsonServers": ["other"], "enabledMcpServers": []}, ALL),
        ({"deniedMcpServers": [{"serverName": "gh"}]}, None),
        ({"deniedMcpServers": [{"serverCommand": ["up"]}], "mcpServers": {"gh": UP, "other": {"command": "x"}}}, None),
        ({"allowedMcpServers": [{"serverName": "other"}]}, None),
        ({"disallowedTools": ["mcp__gh__delete_repo", "Edit"]}, SAFE),
        # Cursor, OpenCode, Amazon Q.
        ({"permissions": {"deny": ["Mcp(gh:delete_repo)"]}}, SAFE),
        ({"tools": {"gh_delete_repo": False}}, SAFE),
        ({"tools": {"gh_*": False, "gh_list_repos": True}}, {"list_repos"}),
        ({"tools": {"gh*": False}}, None),
        ({"permission": {"gh_delete_*": "deny", "edit": "deny"}}, SAFE),
        ({"tools": ["@gh/list_repos", "@other"]}, {"list_repos"}),
        ({"tools": ["fs_read", "@other"]}, None),
        ({"tools": ["*"]}, ALL),
    ],
)
def test_host_wide_lists_restrict_its_servers(root: dict[str, Any], expected: set[str] | None) -> None:
    config = read({}, **{"mcpServers": {"gh": UP, "other": UP}, **root})
    assert visible_tools(config) == expected
    assert not config.warnings


@pytest.mark.parametrize(
    "root",
    [
        {"mcp": {"excluded": "gh"}},
        {"permissions": {"deny": "mcp__gh"}},
        {"deniedMcpServers": [{"server": "gh"}]},
        {"excludeTools": {"gh__delete_repo": True}},
        {"tools": {"gh_list_*": False, "gh_list_repos": True}},
        {"permission": {"gh_delete_repo": {"x": "deny", "*": "allow"}}},
    ],
)
def test_unreadable_host_list_excludes_every_server_it_may_concern(root: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="may hide something"):
        parse(json.dumps({"mcpServers": {"gh": UP}, **root}), environ={})


def test_claude_code_settings_beside_a_project_file_are_honored(tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"gh": UP, "other": UP}}))
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"deny": ["mcp__gh__delete_repo"]}, "disabledMcpjsonServers": ["other"]}')
    config = load(path)
    assert visible_tools(config) == SAFE
    assert config.left_out["other"].reason == "disabled in the configuration (disabledMcpjsonServers)"
    assert settings in config.files, "it is watched"
    settings.write_text('{"permissions": ')
    with pytest.raises(ConfigError, match=r"settings\.json"):
        load(path)


def test_servers_disabled_by_a_gemini_user_stay_disabled(tmp_path: Path) -> None:
    path = tmp_path / ".gemini" / "settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"gh": UP, "other": UP}}))
    (path.parent / "mcp-server-enablement.json").write_text('{"gh": {"enabled": false}}')
    assert list(load(path).servers) == ["other"]
