"""A hook that keeps the accounts of others private, and marks what it let through."""

from gateway.hooks import Block, Call, Hook, Result


class PermittedAccounts(Hook):
    """Lets calls ask only for the accounts listed in the configuration."""

    async def before_call(self, call: Call) -> Block | None:
        """Block a call for another account; the server is then not called."""
        account = str(call.args.get("account_id"))
        permitted = self.config["accounts"]
        if account in permitted:
            return None
        return Block(
            reason=f"account {account} is not permitted", description=f"Ask for one of: {', '.join(permitted)}."
        )

    async def after_call(self, call: Call, result: Result) -> Result:
        """Add a line to the result that says who asked."""
        line = {"type": "text", "text": f"Permitted for {call.metadata.principal}."}
        return result.with_value({**result.value, "content": [*result.value["content"], line]})
