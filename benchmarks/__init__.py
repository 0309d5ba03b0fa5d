"""Compare Himalia with other servers on this machine, in one run. See README.md."""
