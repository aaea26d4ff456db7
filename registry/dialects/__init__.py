"""Tool definitions in the subset of JSON Schema that a host or a model API accepts.

`client_profiles` is what they accept, as data. `definitions` lowers one definition and leads calls back;
`lowering` walks its schema, `flattening` takes references and composition apart, `merging` joins several schemas into
one, `shaping` writes types and objects the way an API wants them, `nulls` leaves null out. `hints` puts dropped
keywords into prose, `weakening` reports what was lost, `argument_mapping` leads arguments back to the original schema.
"""
