"""Expose the operations of an HTTP API, which an OpenAPI document describes, as MCP tools.

openapi_yaml        Parse YAML documents to JSON values.
openapi_schemas     Parse documents, resolve their references, and convert their schemas to JSON Schema 2020-12.
openapi_operations  Convert each operation of a document to a tool definition and a plan for building its requests.
openapi_messages    Build the HTTP request for a tool call.
openapi_results     Convert the HTTP response to the result of the tool call.
openapi_session     Load documents, open sessions with the API, and send calls.
"""
