"""The demo: a shop that publishes orders, and a kernel that executes cells. It uses only the client library."""
