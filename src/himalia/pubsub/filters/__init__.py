"""Content filters in CEL."""

from himalia.pubsub.filters.fields import VARIABLES
from himalia.pubsub.filters.filter import Filter, compile_filter

__all__ = ["VARIABLES", "Filter", "compile_filter"]
