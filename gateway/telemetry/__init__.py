"""What the gateway tells its operator."""
