"""Every tool, prompt and resource that the gateway exposes, as one immutable value.

`listing` is what one server listed, and `build` makes a `catalog` of all listings: `names` compiles wrapper names that
are distinct, short and stable, `overrides` applies configured documentation to a definition, `notes` are operators'
remarks on a tool, and `prompts_and_resources` is everything that is not a tool; `shared_uris` tells equal URIs apart.
`shape` is what configuration says about all of this. `store` is the one mutable cell that holds the current catalog,
and `drift` remembers what was removed or renamed for callers that still use the old names, with `parameter_changes`.
`filters` are the patterns that decide what is shown, `uri_spellings` compares them with every spelling of a URI,
`unmatched` those that nothing answers to, `flagged` the items that seem to instruct a model, and `hints` what a tool
counts as for rules, scopes and repeats.
"""
