"""The functional core: what tools are, never how to reach them.

Seven packages, each with a map of its own; an arrow in these pictures is a call. A listing, on its way to a caller's
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
      └▶ views.view.build_view                         for each profile
           ├▶ views.profile                            which servers and tools it selects
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
intake, dialects; catalog; arguments, views, search.

Pure and synchronous: no clock, no socket, no file. The validator and the stemmer are imported when they are first
needed, so that importing this package takes a few milliseconds.
"""
