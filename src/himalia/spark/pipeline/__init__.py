"""The pipeline: reads the log batch by batch into Delta tables, each record exactly once."""

from pathlib import Path

# The transformations used to be modules of this package; programs that import them here get those of ``transforms``.
__path__.append(str(Path(__file__).parents[1] / "transforms"))
