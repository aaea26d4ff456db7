"""API keys are removed from a file without changing anything else in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.config.file_edits import NoSuchKey, revoke_keys
from gateway.config.load import load
from gateway.protocol.gateway_errors import ConfigError

HASHES = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(3)]
YAML = f"""\
# ours
mcpServers: {{}}
gateway:
  auth:
    apiKeys:
      # of the robots
      - name: ci      # since spring
        keyHash: "sha256:{HASHES[0]}"
      # of ann
      - {{name: ann, keyHash: "sha256:{HASHES[1]}", profiles: [default]}}
      - name: ci
        keyHash: sha256:{HASHES[2]}
  # where
  listen: {{port: 1}}
"""
FLOW = f"""\
mcpServers: {{}}
gateway:
  auth: {{apiKeys: [{{name: ci, keyHash: "sha256:{HASHES[0]}"}}, {{name: ann, keyHash: "sha256:{HASHES[1]}"}}]}}  # all
"""
JSON = """\
{
  "mcpServers": {}, // none yet
  "gateway": {
    "auth": {
      "apiKeys": [
        {"name": "ci", "keyHash": "sha256:%s"},
        {
          "name": "ann",
          "keyHash": "sha256:%s"
        }
      ]
    }
  }
}
""" % (HASHES[0], HASHES[1])  # noqa: UP031 - braces of JSON


def left(path: Path) -> list[str]:
    return [key.name for key in load(path).gateway.auth.api_keys]


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("b.yaml", FLOW), ("c.json", JSON)])
def test_key_is_revoked_by_name_or_hash_prefix(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    for which in ("ann", HASHES[1][:6], f"sha256:{HASHES[1]}"):
        path.write_text(text)
        before = left(path)
        revoked = revoke_keys(path, which)
        assert (revoked.names, revoked.file, revoked.kept) == (["ann"], path, False)
        assert left(path) == [key for key in before if key != "ann"]
        after = path.read_text()
        assert (after.count("#"), after.count("//")) == (text.count("#"), text.count("//"))
        assert 'ann"' not in after


def test_all_keys_of_one_name_are_revoked_together(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    assert revoke_keys(path, "ci").names == ["ci", "ci"]
    assert left(path) == ["ann"]
    assert "# of ann" in path.read_text()
    assert "# where" in path.read_text()


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("b.yaml", FLOW), ("c.json", JSON)])
def test_last_keys_are_kept_as_expired_so_that_access_stays_closed(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    revoke_keys(path, "ci")
    assert revoke_keys(path, "ann").kept
    (key,) = load(path).gateway.auth.api_keys
    assert key.expires is not None
    assert key.name == "ann"


def test_key_in_an_included_file_is_removed_there(tmp_path: Path) -> None:
    main, keys = tmp_path / "main.yaml", tmp_path / "keys.yaml"
    main.write_text("include: [keys.yaml]\nmcpServers: {}\n")
    keys.write_text(YAML.replace("mcpServers: {}\n", ""))
    assert revoke_keys(main, "ann").file == keys
    assert left(main) == ["ci", "ci"]
    assert main.read_text() == "include: [keys.yaml]\nmcpServers: {}\n"


def test_unknown_or_ambiguous_key_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    for which, message in (("an", "expected ann"), (HASHES[1][:5], "there is no key"), ("", "there is no key")):
        with pytest.raises(NoSuchKey, match=message):
            revoke_keys(path, which)
    assert path.read_text() == YAML
    commented = tmp_path / "c.json"
    commented.write_text(JSON.replace('"name": "ann",', '"name": "ann", // hers'))
    with pytest.raises(ConfigError, match="contains comments, which would be lost"):
        revoke_keys(commented, "ann")
