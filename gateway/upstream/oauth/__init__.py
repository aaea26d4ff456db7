"""Sign in to upstreams that require OAuth, with the gateway as their client.

guarded_requests     Send the HTTP requests of a sign-in: check addresses, and limit size, time and redirects.
metadata_discovery   Discovery: find the authorization server of an upstream (RFC 9728, RFC 8414), and choose scopes.
authorization        Build OAuth authorization requests, parse authorization responses, and name the gateway's own URLs.
token_store          Store sign-ins on disk or in memory, optionally encrypted.
client_registration  Register the gateway as an OAuth client, and authenticate it at the token endpoint.
token_endpoint       Request tokens with each supported grant, and prove possession of a key (DPoP).
token_flow           Token flow: lead a user through a sign-in, or request tokens without one.
sign_in              The sign-in of one principal to one upstream: its tokens and their renewal.
account_linking      Account linking: the link with which a caller of a shared gateway signs in to an upstream.
sign_ins             All sign-ins of a gateway.
"""
