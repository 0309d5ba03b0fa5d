"""Measures Himalia beside its peers, all on this machine and in one run. See README.md."""
