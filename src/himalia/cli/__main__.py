"""``python -m himalia.cli``, where the script is not installed."""

from himalia.cli import main

main()
