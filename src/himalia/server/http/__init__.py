"""HTTP below the application: connections, heads, bodies and their limits."""
