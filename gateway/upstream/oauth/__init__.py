"""Sign in to upstreams that require OAuth, with the gateway as their client.

guarded_requests     Send the HTTP requests of a sign-in: check addresses, and limit size, time and redirects.
metadata_discovery   Discovery: find the authorization server of an upstream (RFC 9728, RFC 8414), and choose scopes.
authorization        Build OAuth authorization requests, parse responses, and build the gateway's own URLs.
token_store          Store sign-ins on disk or in memory, optionally encrypted.
client_registration  Register the gateway as an OAuth client, and authenticate it at the token endpoint.
token_endpoint       Request tokens with each supported grant, and prove possession of a key (DPoP).
token_flow           Token flow: create links for users to sign in, or request tokens with a grant that needs no user.
sign_in              The sign-in to one upstream, of one caller or shared by all: its tokens and their renewal.
account_linking      Account linking: links with which the callers of a shared gateway sign in to an upstream.
sign_ins             All sign-ins of a gateway.
"""
