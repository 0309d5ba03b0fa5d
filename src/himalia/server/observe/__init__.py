"""What an operator sees of a server: metrics, traces, log lines and the audit trail."""
