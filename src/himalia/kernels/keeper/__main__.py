"""``python -m himalia.kernels.keeper DIRECTORY DESCRIPTOR``: the descriptor is a socket to the server that asks."""

from __future__ import annotations

import sys

from himalia.kernels.keeper.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
