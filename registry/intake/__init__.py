"""Check what servers list: each item is accepted, repaired, or left out with a reason (quarantined).

content         Repair content items and annotations that clients would reject.
issues          Report an issue for each item that is not accepted, and detect texts that try to instruct a model.
item_intake     Check the prompts, resources and templates of a listing one by one.
keyword_forms   Convert malformed values of schema keywords to the form that the specification requires.
schema_repairs  Repair the schemas of tools, so that no client rejects a tool list because of an invalid schema.
tool_intake     Check the tools of a listing one by one.
"""
