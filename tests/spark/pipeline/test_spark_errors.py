"""What went wrong in a batch, in a sentence."""

from __future__ import annotations

from himalia.errors import ConfigurationError, TopicNotFound
from himalia.spark.pipeline.spark_errors import LINE_LENGTH_MAX, find_himalia_error, first_line

WORKER = """
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4197, in invoke_udf
    func = read_command(pickleSer)
           ^^^^^^^^^^^^^^^^^^^^^^^
{last}
"""
JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted: Cannot run program "/no/such/python": No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
"""


def test_a_workers_traceback_is_told_by_its_last_line() -> None:
    """What was raised, and not that something was."""
    assert first_line(Exception(WORKER.format(last="ValueError: no\nmore of it"))) == "ValueError: no"


def test_of_several_tracebacks_the_last_counts() -> None:
    """The one before it was only on the way."""
    several = WORKER.format(last="KeyError: 1") + WORKER.format(
        last="OSError: full\n\n\tat org.apache.spark.X"
    )
    assert first_line(Exception(several)) == "OSError: full"


def test_a_failure_in_java_is_told_by_what_java_said() -> None:
    """And not by which call of ours it was."""
    assert first_line(Exception(JAVA)).startswith("org.apache.spark.SparkException: Job aborted: Cannot run")


def test_anything_else_is_told_by_its_first_line() -> None:
    """As far as it fits; its kind, if it says nothing."""
    assert first_line(Exception("\n one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(Exception("x" * 10_000))) == LINE_LENGTH_MAX


def test_a_module_that_executors_lack_is_told() -> None:
    """Which one, and where to put it: to try again does not help."""
    error = find_himalia_error(
        Exception(WORKER.format(last="ModuleNotFoundError: No module named 'pyarrow'"))
    )
    assert isinstance(error, ConfigurationError)
    assert "executors lacks the module 'pyarrow'" in error.message
    assert "PYSPARK_PYTHON" in error.message


def test_an_error_of_ours_is_found_again() -> None:
    """With its own sentence."""
    error = find_himalia_error(
        Exception(WORKER.format(last="himalia.errors.TopicNotFound: there is no topic x"))
    )
    assert isinstance(error, TopicNotFound)
    assert error.message == "there is no topic x"
    assert find_himalia_error(Exception("something")) is None
