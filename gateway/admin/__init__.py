"""What an operator and an orchestrator ask over HTTP."""
