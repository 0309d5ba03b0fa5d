"""The Jupyter kernel protocol without sockets: messages, connection files, records, outputs and results."""
