"""Every tool, prompt and resource that the gateway exposes, as one immutable value.

`names` compiles wrapper names that are distinct, short and stable. `shape` is what configuration says of servers and
their tools, `overrides` lays it over a definition, `notes` are the operators' own. `catalog` builds the catalog from
listings, with `prompts_and_resources` for what is not a tool. `store` is the one mutable cell that holds it, and
`drift` remembers what changed for callers who still use yesterday's names.
"""
