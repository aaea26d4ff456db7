"""Rewrite tool definitions in the subset of JSON Schema that a host or a model API accepts.

Such a subset is called a dialect, and rewriting a definition for a dialect is called lowering.

definitions      Lower a definition to a dialect, report the losses, and map calls back.
client_profiles  The rules of hosts and model APIs, as data.
merging          Merge combined or alternative schemas into a single schema that accepts at least the same values.
lowering         Lower one schema to a dialect: replace what the dialect does not support, and record what was lost.
shaping          Write one schema in the form that a model API requires, and describe schemas in a few words.
"""
