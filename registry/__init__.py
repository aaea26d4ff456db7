"""The functional core: what tools are, never how to reach them.

Nine packages, each with a map of its own; an arrow in these pictures is a call. A listing, on its way to a caller's
list of tools:

    items as the upstream listed them
      └▶ intake.tools, intake.prompts_and_resources    accept, repair or quarantine each item
           └▶ schema.schemas ─▶ schema.validators      bounds, then one compiled validator for each schema
      ═▶ catalog.listing.ServerListing
      └▶ catalog.store.Registry.put                    an older epoch changes nothing
           └▶ catalog.build                            rebuilds only the server that changed
                ├▶ catalog.names                       distinct, short and stable names
                └▶ catalog.overrides, catalog.notes    what configuration and operators say
      ═▶ catalog.catalog.Catalog
      └▶ views.view.build_view                         for each profile, and callers with the same rights
           ├▶ views.profile                            which servers and tools it selects
           ├▶ policy.grant                             what rules leave of them to this caller
           ├▶ views.descriptions                       configured text in each description
           ├▶ dialects.definitions.lower_definition    what the profile's host or model API accepts
           └▶ views.disclosure                         what is listed, and what is left to `search`
      ═▶ views.view.View

A call, on its way to an upstream's tool:

    Catalog.resolve(name), or arguments.invoke_tool for the generic tool
      ═▶ ToolWrapper and arguments
      └▶ arguments.prepare
           ├▶ dialects.argument_mapping                arguments for the lowered schema become those for the original
           ├▶ schema.validators                        valid arguments are done here
           ├▶ arguments.repair                         unwrapping, then validation_repair with coercion and spelling
           ├▶ arguments.prepare.fill_defaults          configured defaults
           └▶ arguments.problems.check                 what is wrong, with diagnosis for the words
      ═▶ Prepared: arguments to send, or problems, which arguments.problems.explain turns into a text for the model

The packages depend on each other in this order, and on `errors`, the exceptions that the registry raises: schema;
intake, dialects; catalog; policy, lock; arguments, views, search.

What it means that a tool is typed, and found before it is listed:

    Which tools get a wrapper?     All that configuration exposes, always. Listing decides only what a model is shown,
                                   never what it can call: a wrapper that is in no list is called by its name.
    What is it called?             `alias__tool`, compiled from that pair alone, so that no other server can change it;
                                   a former name leads to today's.
    Whose schema does it have?     The upstream's own, with what configuration adds. It is lowered for a host, and calls
                                   are still checked against the original.
    What activates a tool?         `find_tools` and `get_server_details`: what they name joins the list of the session,
                                   announced before the answer. Nothing else does, a call neither.
    For whom, and for how long?    For that session, until it ends, or until later finds need the room: what was found
                                   longest ago gives way. In versions without sessions a list never depends on earlier
                                   requests; there the answer holds the whole schema, and the tool is called by name.
    Who keeps a list short?        `maxTools` and `maxTokens` of the profile. Pinned wrappers come first, then one of
                                   each server in turn; finds go to the end of the list, into places kept for them.
    What if a tool changes?        The wrapper changes with it, announced once; a call in the old form is told what
                                   replaced what. While its server is away the last listing stays, and so do finds.
    Why `invoke_tool` as well?     For hosts that refuse a name which was not in their first list. It finds the wrapper
                                   and takes its path: the same policy, repair, checks and hooks.

Pure and synchronous: no clock, no socket, no file. The validator and the stemmer are imported when they are first
needed, so that importing this package takes a few milliseconds.
"""
