"""``himalia run``: code and notebooks on a kernel."""
