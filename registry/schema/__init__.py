"""JSON Schema: limits, references, compiled validators, and the text of values and errors.

display_text       Clean text for people and models: remove hidden characters, join lines, and limit the length.
references         Resolve the references of one schema document, and recognize the drafts of JSON Schema.
json_values        Copy, traverse and edit plain JSON values.
json_paths         Paths inside a value and inside its schema: format, read, and find declared names.
failing_parts      Find the parts of an invalid value that cause its errors, at a bounded cost.
patterns           Decide which patterns of a schema can be run, and derive the form of the schema for checks.
portable_patterns  Rewrite a pattern in the common syntax of ECMAScript with the `u` flag and Python's `re`.
check_cost         Estimate the highest cost of checking a value against a schema.
weakening          Edit a schema so that it still accepts every value that it accepted before.
alternatives       Choose the alternative of a schema that a value was meant to match.
schema_nodes       The compiled subschemas of a document, and the parts of a value to which each of them applies.
validators         Compile schemas into validators with a bounded cost.
packed_definition  Store a tool definition as JSON, and parse it on first use.
schemas            Canonical JSON, digests, size limits and cached validators of schemas.
"""
