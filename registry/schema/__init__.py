"""JSON Schemas as bounded values.

`schemas` measures, digests and caches schemas. `validators` compiles one in its `checked_form` and checks values
against it, `drafts` knows the drafts, `references` finds where each `$ref` leads, and `weakening` edits a schema so
that it still accepts what it did. `patterns` tells which regular expressions can be run, with `ecma_patterns` for those
in another syntax, and `portable_patterns` writes them for clients. `packed_definition` keeps thousands of definitions,
each as its JSON. `json_values` copies and edits plain JSON, `json_paths` finds places inside a value and its schema,
and `display_text` removes hidden characters from what people and models read.

A check is closed by default: `check_cost` estimates from the `instance_size`, or from the `applications` of schemas to
parts of the value, what it may take. One that may take more than the `effort` that holds is not made (NotChecked): its
caller may run it where it harms nobody, refuse the value, or let it pass by choice. Where errors multiply with the
alternatives of a schema, or the value is large, `failing_parts` finds the parts that are to blame, schema by schema
(`schema_nodes`, with `compiled_parts`) and in the one of the `alternatives` that was meant, and tells their errors as
those of the whole (`located_errors`).
"""
