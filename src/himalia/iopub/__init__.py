"""The IOPub broker of a Jupyter front end."""
