"""The functional core: what tools are, never how to reach them.

The way through this room, from an upstream's words to a caller's list:

    upstream's listing ── intake.admit ──▶ ServerListing ── store.Registry.put ──▶ Catalog
                            │    │                              │
              texts, headers┘    └schemas ─ references,         └catalog.build ─ names.compile_names
                                            validators ─ patterns

and for each call:

    Catalog.resolve(name) ─▶ ToolWrapper ─ problems.check ─▶ nothing, or ArgumentProblems
                                                             └ problems.explain: words for a model

`names` makes names that are distinct, short and stable. `intake` looks at each tool alone and lets it
pass as the same object, repairs it, or quarantines it with a reason; `admission` does so with prompts,
resources and templates, and `offerings` knows whose each of them is. `schemas` bounds and caches,
`validators` compiles and checks at a bounded cost; `references` finds where `$ref`s lead, `patterns`
which patterns can be run here. `catalog` is the immutable view, `store` the one cell that holds it,
`problems` says what is wrong with arguments.
`errors` is all that the room raises.

Pure and synchronous: no clock, no socket, no file. Compilers are imported when first needed, so that
importing this package costs a few milliseconds.
"""
