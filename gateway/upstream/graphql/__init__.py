"""GraphQL operations as tools.

folder             Read a folder of operations within size limits, and watch the folder for changes.
graphql_connector  Open sessions with a GraphQL endpoint; imports graphql-core lazily.
graphql_session    The session with a GraphQL endpoint. The session lists tools and sends calls.
documents          Parse one GraphQL document, and explain why a file cannot become a tool.
responses          Send requests to a GraphQL endpoint, and convert responses to tool results.
graphql_schema     Load the schema of an endpoint, and provide the tools that show and search it.
operations         Convert a document to a tool definition, and the types of its variables to JSON Schema.
tool_set           Build the tools from a folder and a schema, and report rejected files.
"""
