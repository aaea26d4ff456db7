"""The functional core: what tools are, never how to reach them.

The way through this room, from an upstream's words to a caller's list:

    upstream's listing ── intake.admit ──▶ ServerListing ── store.Registry.put ──▶ Catalog
                            │    │                              │
              texts, headers┘    └schemas ─ references,         └catalog.build ─ names.compile_names
                                            validators ─ patterns

and for each call:

    Catalog.resolve(name), or envelope.addressed(invoke_tool's own arguments) ─▶ ToolWrapper and arguments
    arguments.prepare: repair.repair ─▶ arguments.fill (defaults) ─▶ problems.check ─▶ nothing, or ArgumentProblems
                         └ attempt ─ readings                          └ diagnosis      └ problems.explain: words

`names` makes names that are distinct, short and stable. `intake` looks at each tool alone and lets it
pass as the same object, repairs it, or quarantines it with a reason; `admission` does so with prompts,
resources and templates, and `offerings` knows whose each of them is. `schemas` bounds and caches,
`validators` compiles and checks at a bounded cost; `references` finds where `$ref`s lead, `patterns`
which patterns can be run here. `catalog` is the immutable view, `store` the one cell that holds it,
`problems` says what is wrong with arguments. `repair` reads a wrong call as it was surely meant: `envelope`
takes off what is around the arguments, `attempt` answers each error of the validator by an edit, `readings`
knows what one value may mean, `places` finds the way inside values and schemas. `enrichment` lays what
configuration says over a definition, `notes` what operators noted; `shape` is all that configuration says.
`hosts` is what hosts and model APIs accept, as data; `dialects` lowers a definition to it and leads calls back:
`flattening` takes references and composition apart, `joining` puts them together as one schema, `lowering` walks
and takes out what is not understood, `shaping` gives types and objects their form, `hints` puts keywords into words,
`weakening` notes what went, `restoring` is the way back.
What a caller is shown is a `view`: `profile` says what is asked for, `wording` adds what configuration says, and
`disclosure` plans what is listed by what `tokens` says it costs; `search` finds the rest by words, `meaning` beside
them.
`errors` is all that the room raises.

Pure and synchronous: no clock, no socket, no file. Compilers are imported when first needed, so that
importing this package costs a few milliseconds.
"""
