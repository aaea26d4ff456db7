"""The published servers of the differential test, pinned, and how each is started without a network or credentials."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corpus.packages import node_program
from support.clients import installed

_UV = ("uv==0.13.9",)
_INSTALL_S = 300
_POINTS = """
import importlib.metadata, sys
points = importlib.metadata.distribution(sys.argv[1]).entry_points
print(*(point.name for point in points if point.group == "console_scripts"))
"""
_OAUTH_KEYS = '{"installed": {"client_id": "a", "client_secret": "b", "redirect_uris": ["http://127.0.0.1:1/"]}}'
_LSP = '{"servers": [{"extensions": ["py"], "command": ["true"], "rootDir": "."}]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedServer:
    """One server of a registry.

    Attributes:
        package: The package with its version, in the form of npm or pip.
        arguments: What follows its program; `{scratch}` is the directory that it runs in.
        files: Files that it needs in that directory, by name.
        real_calls: Whether calls are made on the server itself. Otherwise they need credentials, a network, a browser
            or rights that a test must not use, and are made on a server that replays its definitions.
        sdk1: Whether it needs the first generation of the Python SDK without saying so.
    """

    alias: str
    registry: Literal["npm", "pypi"]
    package: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    real_calls: bool = False
    sdk1: bool = False

    def entry(self, scratch: Path) -> dict[str, Any]:
        """Return its entry in `mcpServers`; the directory that it runs in is prepared here."""
        scratch.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            file = scratch / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        place = str(scratch)
        command, *first = self.command()
        arguments = [one.replace("{scratch}", place) for one in self.arguments]
        environment = {name: value.replace("{scratch}", place) for name, value in self.environment.items()}
        return {"command": command, "args": [*first, *arguments], "env": {"HOME": place, **environment}, "cwd": place}

    def command(self) -> list[str]:
        """Return what starts its program, installing the package if needed."""
        kind = f"differential-{self.alias}"
        if self.registry == "npm":
            modules = installed.npm(kind, (self.package,), scripts=False)
            return [str(installed.node22()), str(node_program(modules, self.package))]
        python = _fast_venv(kind, (self.package, *(installed.SDK1 if self.sdk1 else ())))
        name = self.package.partition("==")[0]
        points = subprocess.run([python, "-c", _POINTS, name], capture_output=True, check=True, text=True).stdout
        # Return the program with the name of the package, or else the configured one.
        return [str(python.parent / min(points.split(), key=lambda one: (one != name, "mcp" not in one, len(one))))]


def _fast_venv(kind: str, packages: tuple[str, ...]) -> Path:
    """Return the Python of a virtual environment with these packages; uv installs dozens of them in a minute."""

    def install(place: Path) -> None:
        uv = installed.venv("uv", _UV).parent / "uv"
        python = place / "venv/bin/python"
        for command in (
            [uv, "venv", "-q", "--python", sys.executable, place / "venv"],
            [uv, "pip", "install", "-q", "--python", python, *packages],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S)
            if done.returncode:
                installed.missing(f"uv could not install {packages[0]}: {done.stderr[-500:]}")

    return installed.kept(kind, packages, install) / "venv/bin/python"


def _npm(alias: str, package: str, *arguments: str, **others: Any) -> PublishedServer:
    return PublishedServer(alias=alias, registry="npm", package=package, arguments=arguments, **others)


def _pypi(alias: str, package: str, *arguments: str, **others: Any) -> PublishedServer:
    return PublishedServer(alias=alias, registry="pypi", package=package, arguments=arguments, **others)


_SCOPE = "@modelcontextprotocol/server-"
# The most downloaded servers of npm in November 2026 come first. Of the first thirty these do not start offline:
# @supabase/mcp-server-supabase, @stripe/mcp and @apify/actors-mcp-server ask their service for the tools, and
# @azure-devops/mcp needs a program for the desktop's keyring that is downloaded when it is installed.
SERVERS: tuple[PublishedServer, ...] = (
    _npm("playwright", "@playwright/mcp@0.0.83"),
    _npm("devtools", "chrome-devtools-mcp@1.11.0"),
    _npm("context7", "@upstash/context7-mcp@4.1.1"),
    _npm("filesystem", f"{_SCOPE}filesystem@2026.8.31", "{scratch}", real_calls=True),
    _npm("thinking", f"{_SCOPE}sequential-thinking@2026.8.31", real_calls=True),
    _npm("github", f"{_SCOPE}github@2025.4.8", environment={"GITHUB_PERSONAL_ACCESS_TOKEN": "none"}),
    _npm("memory", f"{_SCOPE}memory@2026.8.31", environment={"MEMORY_FILE_PATH": "{scratch}/memory"}, real_calls=True),
    _npm("postgres", f"{_SCOPE}postgres@0.6.2", "postgresql://127.0.0.1:1/none"),
    _npm("azure", "@azure/mcp@2.0.5", "server", "start"),
    _npm("everything", f"{_SCOPE}everything@2026.8.31", "stdio"),
    _npm("notion", "@notionhq/notion-mcp-server@2.5.2", environment={"NOTION_TOKEN": "none"}),
    _npm("maps", f"{_SCOPE}google-maps@0.6.2", environment={"GOOGLE_MAPS_API_KEY": "none"}),
    _npm("gmail", "@gongrzhe/server-gmail-autoauth-mcp@1.1.11", files={".gmail-mcp/gcp-oauth.keys.json": _OAUTH_KEYS}),
    _npm("nx", "nx-mcp@0.25.0"),
    _npm("circleci", "@circleci/mcp-server-circleci@0.20.0"),
    _npm("n8n", "n8n-mcp@2.87.0"),
    _npm("cclsp", "cclsp@0.7.0", environment={"CCLSP_CONFIG_PATH": "{scratch}/cclsp.json"}, files={"cclsp.json": _LSP}),
    _npm("next", "next-devtools-mcp@0.4.0"),
    _npm("expo", "expo-mcp@0.2.4", "--dev-server-url", "http://127.0.0.1:1"),
    _npm(
        "mongodb",
        "mongodb-mcp-server@3.0.4",
        environment={"MDB_MCP_TELEMETRY": "disabled", "MDB_MCP_CONNECTION_STRING": "mongodb://127.0.0.1:1/none"},
    ),
    _npm("tavily", "tavily-mcp@0.2.22", environment={"TAVILY_API_KEY": "none"}),
    _npm("slack", f"{_SCOPE}slack@2025.4.25", environment={"SLACK_BOT_TOKEN": "none", "SLACK_TEAM_ID": "none"}),
    _npm("gitlab", "@zereight/mcp-gitlab@2.1.64", environment={"GITLAB_PERSONAL_ACCESS_TOKEN": "none"}),
    _npm("firecrawl", "firecrawl-mcp@3.26.0", environment={"FIRECRAWL_API_KEY": "none"}),
    _npm("desktop", "@wonderwhy-er/desktop-commander@0.2.52"),
    _npm("brave", "@brave/brave-search-mcp-server@2.1.4", environment={"BRAVE_API_KEY": "none"}),
    _npm("sentry", "@sentry/mcp-server@0.39.0", "--access-token=none"),
    _npm("puppeteer", f"{_SCOPE}puppeteer@2025.5.12"),
    _npm("launchdarkly", "@launchdarkly/mcp-server@0.6.2", "start", "--api-key", "api-1"),
    _npm("hello", "mcp-hello-world@1.1.2", real_calls=True),
    _npm("figma", "figma-developer-mcp@0.13.2", "--figma-api-key=x", "--stdio"),
    _npm("eslint", "@eslint/mcp@0.3.13"),
    _npm("mastra", "@mastra/mcp-docs-server@1.2.27"),
    _npm("datadog", "@winor30/mcp-server-datadog@1.8.0", environment={"DATADOG_API_KEY": "a", "DATADOG_APP_KEY": "b"}),
    _npm("chart", "@antv/mcp-server-chart@0.9.10"),
    _npm(
        "gcalendar",
        "@cocal/google-calendar-mcp@2.6.3",
        environment={"GOOGLE_OAUTH_CREDENTIALS": "{scratch}/keys.json"},
        files={"keys.json": _OAUTH_KEYS},
    ),
    _npm("dbhub", "@bytebase/dbhub@1.4.0", "--demo"),
    _npm("hubspot", "@hubspot/mcp-server@0.4.0", environment={"PRIVATE_APP_ACCESS_TOKEN": "none"}),
    _npm("perplexity", "@perplexity-ai/mcp-server@1.2.1", environment={"PERPLEXITY_API_KEY": "none"}),
    _npm("shortcut", "@shortcut/mcp@0.25.0", environment={"SHORTCUT_API_TOKEN": "none"}),
    _npm("drawio", "@drawio/mcp@1.6.1"),
    _npm("mobile", "@mobilenext/mobile-mcp@1.0.4"),
    _npm("currents", "@currents/mcp@2.1.1"),
    _npm("cloud-run", "@google-cloud/cloud-run-mcp@1.10.0"),
    _npm("exa", "exa-mcp-server@3.4.1"),
    _npm("airtable", "airtable-mcp-server@1.14.0", environment={"AIRTABLE_API_KEY": "none"}),
    _npm("kubernetes", "mcp-server-kubernetes@4.1.7"),
    _npm("ms365", "@softeria/ms-365-mcp-server@0.155.0", "--preset", "calendar"),
    _npm("echarts", "mcp-echarts@0.7.1"),
    _npm("shadcn", "@jpisnice/shadcn-ui-mcp-server@2.0.0"),
    _npm("netlify", "@netlify/mcp@1.15.1"),
    _npm("open-meteo", "open-meteo-mcp-server@2.1.0"),
    _npm("pdf-reader", "@sylphx/pdf-reader-mcp@2.4.0", real_calls=True),
    _npm("shrimp", "@tosin2013/mcp-shrimp-task-manager@1.1.3"),
    _npm("airbnb", "@openbnb/mcp-server-airbnb@0.3.0"),
    _pypi("git", "mcp-server-git==2026.10.19", real_calls=True),
    _pypi("aws-documentation", "awslabs-aws-documentation-mcp-server==1.2.3"),
    _pypi("fetch", "mcp-server-fetch==2026.10.24"),
    _pypi(
        "atlassian",
        "mcp-atlassian==0.23.1",
        environment={
            "JIRA_URL": "https://jira.example.test",
            "JIRA_USERNAME": "a",
            "JIRA_API_TOKEN": "b",
            "CONFLUENCE_URL": "https://wiki.example.test",
            "CONFLUENCE_USERNAME": "a",
            "CONFLUENCE_API_TOKEN": "b",
        },
        sdk1=True,
    ),
    _pypi("word", "office-word-mcp-server==1.1.11", sdk1=True),
    _pypi("excel", "excel-mcp-server==2.2.2", "stdio", real_calls=True),
    _pypi("web-forager", "web-forager==4.0.0", "serve", sdk1=True),
    # Its description names the members of a set, in another order for each seed.
    _pypi(
        "cli",
        "cli-mcp-server==0.2.5",
        environment={"ALLOWED_DIR": "{scratch}", "PYTHONHASHSEED": "0"},
        sdk1=True,
    ),
    _pypi("lean", "lean-lsp-mcp==0.32.0"),
    _pypi("duckdb", "mcp-server-duckdb==1.1.0", "--db-path", "{scratch}/data.db", sdk1=True, real_calls=True),
    _pypi("aws-location", "awslabs-aws-location-mcp-server==2.1.1"),
    _pypi("memcached", "awslabs-memcached-mcp-server==1.1.1"),
    _pypi("powerpoint", "office-powerpoint-mcp-server==2.0.7", sdk1=True),
    _pypi("time", "mcp-server-time==2026.10.19", "--local-timezone", "UTC", real_calls=True),
    _pypi("jcodemunch", "jcodemunch-mcp==1.108.399", sdk1=True),
    _pypi("clickhouse", "mcp-clickhouse==0.7.0"),
    _pypi("opensearch", "opensearch-mcp-server-py==0.12.0"),
    _pypi("arxiv", "arxiv-mcp-server==0.8.2", sdk1=True),
    _pypi("calculator", "mcp-server-calculator==0.2.1", sdk1=True, real_calls=True),
    _pypi("sqlite", "mcp-server-sqlite==2025.4.25", "--db-path", "{scratch}/data.db", sdk1=True, real_calls=True),
    _pypi("obsidian", "mcp-obsidian==0.2.3", environment={"OBSIDIAN_API_KEY": "none"}, sdk1=True),
    _pypi("duckduckgo", "duckduckgo-mcp-server==0.6.1", sdk1=True),
    _pypi("nixos", "mcp-nixos==3.1.0"),
    _pypi("redis", "redis-mcp-server==0.5.1", sdk1=True),
    _pypi("wikipedia", "wikipedia-mcp==2.0.1", sdk1=True),
    _pypi("ffmpeg-lite", "ffmpeg-mcp-lite==0.2.2", sdk1=True),
    _pypi("minizinc", "minizinc-mcp==0.1.0"),
    _pypi("pubchempy", "pubchempy-mcp-server==1.0.0", sdk1=True),
    _pypi("recipe", "recipe-finder-ai-mcp==1.0.8", sdk1=True),
    _pypi("neo4j", "mcp-neo4j-cypher==0.6.0", sdk1=True),
    _pypi("jenkins", "mcp-jenkins==3.6.0", sdk1=True),
    _pypi("elasticsearch", "elasticsearch-mcp-server==2.1.6", sdk1=True),
    _pypi("mysql", "mysql-mcp-server==0.4.4", sdk1=True),
)
