"""JSON Schemas as bounded values.

`schemas` measures, digests and caches schemas. `validators` compiles one and checks values against it at a bounded
cost, `references` finds where each `$ref` leads, and `patterns` which regular expressions can be run. `json_values`
copies and edits plain JSON, `json_paths` finds places inside a value and its schema, and `display_text` removes hidden
characters from what people and models read.
"""
