"""JSON Schemas as bounded values.

`schemas` measures, digests and caches; `validators` compiles a schema and checks at a bounded cost; `references` finds
where each `$ref` leads, `patterns` which regular expressions can be run here. `json_paths` finds places inside a value
and inside its schema; `text` removes hidden characters from what people and models read.
"""
