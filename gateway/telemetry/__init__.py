"""What the gateway tells its operator: `logs` on standard error, and `metrics` for Prometheus."""
