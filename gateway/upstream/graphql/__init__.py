"""GraphQL operations as tools: an endpoint, a schema and a folder of documents become one more upstream.

`folder` reads and watches files; `documents` takes one apart; `schema` reads a schema or fetches it,
and `subgraph` completes one that is a part of another;
`operations` makes a tool of a document, `inputs` the JSON Schema of its variables; `tool_set` holds what all of
them gave and makes again only what changed; `rejections` words why a file gives no tool. `endpoint` sends
requests, `responses` reads what comes back, `introspection_tools` has the two tools that know the schema;
`session` and `connector` are what a link sees.

graphql-core is an extra: only `connector`, `endpoint` and `folder` are imported without it.
"""
