"""Content filters in CEL."""

from himalia.pubsub.filters.filter import Filter, compile_filter
from himalia.pubsub.filters.reads import VARIABLES

__all__ = ["VARIABLES", "Filter", "compile_filter"]
