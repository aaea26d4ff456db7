"""GraphQL operations as tools: an endpoint, a schema and a folder of documents become one more upstream.

`folder` reads and watches files; `documents` takes one apart; `schema` reads a schema or asks for it;
`operations` makes a tool of a document, `inputs` the JSON Schema of its variables; `library` holds what all of
them gave and makes again only what changed. `endpoint` carries requests, `answers` reads what comes back,
`exploring` has the tools that know the schema; `session` and `connector` are what a link sees. `aside` is for
work that would keep the loop from others, `refusals` for words about files.

graphql-core is an extra: only `connector` and `folder` are imported without it.
"""
