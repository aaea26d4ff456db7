"""Operations of an HTTP API, described by an OpenAPI document, as tools.

openapi_document    Parse documents and resolve their references.
openapi_yaml        Parse YAML to the values that JSON has.
openapi_schemas     Convert the schemas of a document to JSON Schema 2020-12.
openapi_operations  Convert each operation of a document to a tool definition and a plan for building its requests.
openapi_messages    Build the HTTP request for a call.
openapi_results     Convert the response to the result of the call.
openapi_session     Load documents, open sessions with the API, and send calls.
"""
