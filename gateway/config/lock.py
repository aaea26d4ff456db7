"""What is done when a server lists something else than what was approved."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from gateway.config.section import Section, absent, fault

Decision = Literal["accept", "warn", "hold"]
_WORDS = ("accept", "warn", "hold")


class LockPolicyConfig(Section):
    """What is done about each class of changes: accept, warn or hold. One of these words stands for all classes.

    What is held stays listed as it was approved, and cannot be used until somebody approves it as it is.
    """

    model_config = ConfigDict(json_schema_extra={"type": ["object", "string"]})

    added: Decision | None = None
    """Something is new. With a lock file the default is hold: it is not there until it is approved."""
    removed: Decision | None = None
    """Something is gone. The default is warn."""
    renamed: Decision | None = None
    """Something has another name, and is nearly the same otherwise. With a lock file the default is hold: rules and
    settings about the former name would not apply to the new one."""
    text: Decision | None = None
    """What models and people read has changed, in a schema too: a new value of `enum`, a new `pattern` or name. With a
    lock file the default is hold."""
    narrowing: Decision | None = None
    """Less is taken or returned. The default is warn."""
    widening: Decision | None = None
    """More is taken or returned, as by a new optional parameter, or a hint changes: one that promises less warns of
    more, and one that promises more opens the tool to more callers. With a lock file the default is hold."""
    identity: Decision | None = None
    """Another package, version or address stands behind the server. With a lock file the default is hold."""

    @model_validator(mode="before")
    @classmethod
    def _one_word_for_all(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.keys() == {"policy"}:
            # As it stands under `gateway.lock`.
            data = data["policy"]
        if isinstance(data, str):
            if data not in _WORDS:
                raise fault("is no decision", "accept, warn, hold, or an object with one of them for each class")
            return dict.fromkeys(cls.model_fields, data)
        return data

    @property
    def given(self) -> dict[str, Decision]:
        """What is said, by class."""
        return {name: said for name in type(self).model_fields if (said := getattr(self, name)) is not None}


class LockConfig(Section):
    """The lock file, and what is done about servers that list something else."""

    file: str | None = Field(default=None, min_length=1)
    """The lock file; a relative path begins at the folder of the configuration. `typegate lock --config FILE` writes
    it, and where it is named and missing the gateway does not start. By default typegate.lock, if there is one;
    where that one belongs to another configuration of the folder, typegate.NAME.lock, as typegate.other.json.lock."""
    policy: LockPolicyConfig = absent(LockPolicyConfig)
    """What is done about each class of changes. A server may say otherwise by its `lock`."""
