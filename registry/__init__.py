"""The functional core: the catalog of tools and the checks of calls, without any input or output.

The `__init__` of each package documents its modules. In these diagrams, `└▶` is a call and `═▶` is its result. The path
from a listing to the tools that a caller sees:

    items as the upstream listed them
      └▶ intake.tool_intake, intake.item_intake          accept, repair or set aside each item
           └▶ schema.schemas ─▶ schema.validators      check limits, then compile one validator for each schema
      ═▶ catalog.listing.ServerListing
      └▶ catalog.registry.Registry.put                 ignores a listing with an older epoch
           └▶ catalog.registry                         rebuilds only the server that changed
                ├▶ catalog.names                       distinct, short and stable names
                └▶ catalog.overrides, catalog.shape    changes that the configuration and operators make
      ═▶ catalog.catalog.Catalog
      └▶ views.view.build_view                         one for each profile and set of rights
           ├▶ views.profile                            which servers and tools the profile selects
           ├▶ policy.policy                            which of these tools the caller may use
           ├▶ views.descriptions                       configured texts in each description
           ├▶ dialects.definitions.lower_definition    the schema, rewritten for the profile's host or model API
           └▶ views.disclosure                         which tools are listed, and which have to be searched for
      ═▶ views.view.View

The path from a call to the forwarded arguments:

    Catalog.resolve(name), or arguments.invoke_tool for the generic tool
      ═▶ ToolWrapper and arguments
      └▶ arguments.prepare
           ├▶ dialects.definitions                     map arguments for the rewritten schema to the original schema
           ├▶ schema.validators                        return valid arguments unchanged
           ├▶ arguments.repair                         repair arguments that are not valid
           ├▶ arguments.prepare.fill_defaults          add configured defaults
           └▶ arguments.problems.check                 describe the remaining errors in sentences
      ═▶ Prepared: arguments to send, or problems, which arguments.problems.explain turns into a text for the model

Modules import only packages to their left in this order: errors; schema; intake, dialects; catalog; policy, lock;
arguments, views, search.

How tools become wrappers, and which of them are listed:

    Which tools get a wrapper?     Every tool that the configuration exposes. The disclosure setting decides which tools
                                   a model sees in the list, but the model can call unlisted wrappers by name as well.
    What is the wrapper's name?    `alias__tool`, derived from this pair alone, so that no other server can change it. A
                                   former name still resolves to the current wrapper.
    Which schema does it have?     The schema of the upstream, with configured changes. Hosts see a form of it that they
                                   support; calls are checked against the original.
    What adds a tool to the list?  A search with `find_tools` or `get_server_details`: the tools that it returns are
                                   added to the list of the session, and announced before the response.
    How long is it listed?         Until the session ends, or until later searches need the space; the oldest find is
                                   replaced first. In protocol versions without sessions, a search does not change the
                                   list: its response contains the whole schema, and the tool is called by its name.
    What limits the list?          `maxTools` and `maxTokens` of the profile. Pinned wrappers come first, then one tool
                                   of each server in turn. Found tools use places that are reserved at the end.
    What if a tool changes?        Its wrapper changes as well, and is announced once. A call in the old form gets a
                                   hint about the change. While the server is disconnected, its last listing stays.
    Why `invoke_tool` as well?     For hosts that refuse names that were not in their first list. `invoke_tool` calls a
                                   wrapper by its name, with the same policy, repair, checks and hooks.

The code is synchronous and uses no clock, no sockets, and no files except its own word tables. The validator and the
stemmer are imported on first use, so that importing this package takes only a few milliseconds.
"""
