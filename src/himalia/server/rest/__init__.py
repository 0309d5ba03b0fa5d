"""The REST API, one module per group of calls, and the page."""
