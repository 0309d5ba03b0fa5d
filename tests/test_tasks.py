from __future__ import annotations

import asyncio
import logging

import pytest

from himalia.tasks import TaskSet

logger = logging.getLogger("himalia.tests.tasks")


async def test_a_task_that_has_ended_is_dropped() -> None:
    """The set is true exactly while a task runs."""
    tasks, may_end = TaskSet(logger, "failed"), asyncio.Event()

    async def work() -> None:
        await may_end.wait()

    assert not tasks
    task = tasks.spawn(work())
    assert tasks and len(tasks) == 1
    may_end.set()
    await task
    await asyncio.sleep(0)
    assert not tasks


async def test_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing awaits the tasks, so the log has the failure and its traceback; ``wait`` does not raise it."""
    tasks = TaskSet(logger, "the work failed")

    async def work() -> None:
        raise ZeroDivisionError

    tasks.spawn(work())
    await tasks.wait()
    [record] = caplog.records
    assert record.message == "the work failed"
    assert record.exc_info is not None and record.exc_info[0] is ZeroDivisionError


async def test_cancelling_waits_for_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """After ``cancel`` no task runs, and a cancelled task is no failure."""
    tasks = TaskSet(logger, "the work failed")
    has_cleaned_up = False

    async def work() -> None:
        nonlocal has_cleaned_up
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            has_cleaned_up = True

    tasks.spawn(work())
    await asyncio.sleep(0)
    await tasks.cancel()
    assert has_cleaned_up
    assert not caplog.records
