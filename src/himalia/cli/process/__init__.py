"""Processes and signals: what ``himalia up`` starts, and how commands stop."""
