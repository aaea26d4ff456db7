"""The functional core: what tools are, independent of how they are reached.

Nine packages, each documented in its `__init__`. In these diagrams, `▶` is a call and `═▶` is its result. The path
from a listing to the tools that a caller sees:

    items as the upstream listed them
      └▶ intake.tool_intake, intake.item_intake          accept, repair or quarantine each item
           └▶ schema.schemas ─▶ schema.validators      bounds, then one compiled validator for each schema
      ═▶ catalog.listing.ServerListing
      └▶ catalog.registry.Registry.put                 ignores a listing with an older epoch
           └▶ catalog.build                            rebuilds only the server that changed
                ├▶ catalog.names                       distinct, short and stable names
                └▶ catalog.overrides, catalog.shape    changes by configuration and operators
      ═▶ catalog.catalog.Catalog
      └▶ views.view.build_view                         one for each profile and set of rights
           ├▶ views.profile                            which servers and tools the profile selects
           ├▶ policy.policy                            which of them the caller may use
           ├▶ views.descriptions                       configured text in each description
           ├▶ dialects.definitions.lower_definition    the schema that the profile's host or model API accepts
           └▶ views.disclosure                         which tools are listed, and which are found by `search`
      ═▶ views.view.View

The path from a call to the forwarded arguments:

    Catalog.resolve(name), or arguments.invoke_tool for the generic tool
      ═▶ ToolWrapper and arguments
      └▶ arguments.prepare
           ├▶ dialects.definitions                     map arguments for the lowered schema to the original schema
           ├▶ schema.validators                        return valid arguments unchanged
           ├▶ arguments.repair                         repair the others, with validation_repair and coercion
           ├▶ arguments.prepare.fill_defaults          add configured defaults
           └▶ arguments.problems.check                 list what is wrong, with sentences from diagnosis
      ═▶ Prepared: arguments to send, or problems, which arguments.problems.explain turns into a text for the model

The packages depend on each other in this order: errors; schema; intake, dialects; catalog; policy, lock;
arguments, views, search.

How tools are typed and disclosed:

    Which tools get a wrapper?     Every tool that the configuration exposes. Disclosure decides which tools a model
                                   sees, not which it can call: an unlisted wrapper can be called by its name.
    What is the wrapper's name?    `alias__tool`, derived from this pair alone, so that no other server can change it. A
                                   former name still resolves to the current one.
    Which schema does it have?     The schema of the upstream, with configured changes. It is lowered for the host;
                                   calls are checked against the original.
    What activates a tool?         Only `find_tools` and `get_server_details`: the tools that they return are added to
                                   the list of the session, and announced before the response.
    How long is it active?         Until the session ends, or until later finds need the space and replace the oldest.
                                   In versions without sessions, the list does not depend on earlier requests: the
                                   response contains the whole schema, and the tool is called by its name.
    What limits the list?          `maxTools` and `maxTokens` of the profile. Pinned wrappers come first, then one tool
                                   of each server in turn; finds use places reserved at the end.
    What if a tool changes?        Its wrapper changes with it, and is announced once. A call in the old form gets a
                                   hint about the change. While the server is away, its last listing and finds stay.
    Why `invoke_tool` as well?     For hosts that refuse names missing from their first list. It resolves the wrapper
                                   and follows the same path: policy, repair, checks and hooks.

Pure and synchronous: no clock, no sockets, no files. The validator and the stemmer are imported on first use, so that
importing this package takes only a few milliseconds.
"""
