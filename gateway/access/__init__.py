"""Who is calling, and what proves it.

authenticator    the seam between a request and whatever proves who sends it
credentials      keys and tokens behind that seam
api_keys         keys, found by their digests
oauth/           access tokens, and who is at a browser
principal        the caller, as everything behind the door sees it
quotas           what each principal uses at present, within its limits
signing          texts that travel through callers, sealed for whom they were given to
administrators   tokens with roles, sessions of browsers, links that are good once
admin_token      the admin token that a gateway keeps
failed_logins    told, and answered more and more slowly
"""
