"""Keys are taken out of a file, and everything else in it stays as it was written."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.config.edit_keys import NoSuchKey, revoke_keys
from gateway.config.load import load
from gateway.errors import ConfigError

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
def test_a_key_is_taken_out_by_its_name_or_the_first_digits_of_its_hash(tmp_path: Path, name: str, text: str) -> None:
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


def test_all_keys_of_a_name_go_together(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    assert revoke_keys(path, "ci").names == ["ci", "ci"]
    assert left(path) == ["ann"]
    assert "# of ann" in path.read_text()
    assert "# where" in path.read_text()


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("b.yaml", FLOW), ("c.json", JSON)])
def test_the_last_keys_stay_as_expired_so_that_nothing_is_opened(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    revoke_keys(path, "ci")
    assert revoke_keys(path, "ann").kept
    (key,) = load(path).gateway.auth.api_keys
    assert key.expires is not None
    assert key.name == "ann"


def test_keys_of_an_included_file_are_taken_out_of_that_one(tmp_path: Path) -> None:
    main, keys = tmp_path / "main.yaml", tmp_path / "keys.yaml"
    main.write_text("include: [keys.yaml]\nmcpServers: {}\n")
    keys.write_text(YAML.replace("mcpServers: {}\n", ""))
    assert revoke_keys(main, "ann").file == keys
    assert left(main) == ["ci", "ci"]
    assert main.read_text() == "include: [keys.yaml]\nmcpServers: {}\n"


def test_what_is_not_there_or_could_be_two_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML)
    for which, said in (("an", "expected ann"), (HASHES[1][:5], "there is no key"), ("", "there is no key")):
        with pytest.raises(NoSuchKey, match=said):
            revoke_keys(path, which)
    assert path.read_text() == YAML
    commented = tmp_path / "c.json"
    commented.write_text(JSON.replace('"name": "ann",', '"name": "ann", // hers'))
    with pytest.raises(ConfigError, match="has comments, which would be lost"):
        revoke_keys(commented, "ann")
