"""Tool definitions in the subset of JSON Schema that a host or a model API accepts.

`client_profiles` is what each of them accepts, as data. `definitions` lowers one definition and maps the arguments of
calls back. `lowering` walks a schema: `flattening` replaces references and composition, with `merging` to make one
schema of several, and `shaping` writes types and objects in the required form. What a dialect cannot express is noted
in a `loss_report` and described by `schema_prose`. `argument_mapping` turns arguments for the lowered schema into
arguments for the original. `null_removal` is independent of all dialects.
"""
