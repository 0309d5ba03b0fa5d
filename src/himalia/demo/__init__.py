"""Something to look at: a shop whose orders come in, and a kernel that does a little work. A client like any other."""
