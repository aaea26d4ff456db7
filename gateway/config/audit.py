"""The record of who called what, and of what was refused or changed."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from gateway.config.section import Count, Section, fault

_SWITCH = {False: False, True: True, "off": False, "on": True}


class AuditConfig(Section):
    """The record of calls, refusals and changes: one line of JSON for each. `false` keeps none."""

    model_config = ConfigDict(json_schema_extra={"type": ["object", "boolean"]})

    enabled: bool = True
    """Whether the record is kept; it is also not kept where there is no state directory."""
    file: str = Field(default="audit.jsonl", min_length=1)
    """Where to; a relative path begins at the state directory."""
    # A quarter, which is what most rules of companies ask for at least; and ten years at most.
    keep_days: Count = Field(default=90, ge=1, le=3_660)
    """Days after which a file of the record is deleted; a new file is begun each day."""
    # Two million calls. It is on by default, and must not fill the disk of somebody who does not know of it.
    max_mebibytes: Count = Field(default=1_024, ge=1, le=1_048_576)
    """Size of all its files together; beyond it the oldest is deleted before its time, with a warning."""
    arguments: bool = False
    """Whether lines have the arguments of calls too, without known secrets."""
    results: bool = False
    """Whether lines have the results of calls too, without known secrets."""
    required: bool = False
    """Whether calls are refused while the record cannot be written: before each one it is tried whether it can."""

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, data: Any) -> Any:
        if isinstance(data, bool | str):
            if data not in _SWITCH:
                raise fault("is no setting of the record", "true, false, or an object with keys as keepDays")
            return {"enabled": _SWITCH[data]}
        return data
