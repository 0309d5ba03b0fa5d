"""The former name of ``himalia.spark.pipeline.runner``, for programs that import it."""

from himalia.spark.pipeline.runner import Pipeline

__all__ = ["Pipeline"]
