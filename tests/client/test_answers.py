"""What the client library knows of an answer is what the server sends: no field is missing on either side."""

from __future__ import annotations

import inspect

import msgspec
import pytest
from pydantic import BaseModel

from himalia.client import answers
from himalia.server.rest import kernel_models, models, tables

PAIRS: list[tuple[type[msgspec.Struct], type[BaseModel]]] = [
    (answers.TopicSummary, models.TopicSummary),
    (answers.TopicStats, models.TopicStatsBody),
    (answers.SubscriberStats, models.SubscriberStatsBody),
    (answers.Rates, models.RatesBody),
    (answers.LastMinute, models.LastMinuteBody),
    (answers.Stats, models.StatsResponse),
    (answers.ClockConfirmed, models.ConfirmClockResponse),
    (answers.Health, models.HealthResponse),
    (answers.SessionSummary, models.SessionSummary),
    (answers.TableColumn, tables.ColumnBody),
    (answers.TableSummary, tables.TableBody),
    (answers.TableRows, tables.TableRows),
    (answers.KernelSpec, kernel_models.KernelSpecBody),
    (answers.KernelSpecs, kernel_models.KernelSpecsResponse),
    (answers.Kernel, kernel_models.KernelBody),
    (answers.Skipped, kernel_models.SkippedBody),
    (answers.Attached, kernel_models.AttachedResponse),
    (answers.Submitted, kernel_models.ExecuteResponse),
    (answers.ExecutionError, kernel_models.ExecutionErrorBody),
    (answers.Execution, kernel_models.ExecutionBody),
]


@pytest.mark.parametrize(("answer", "model"), PAIRS, ids=lambda cls: cls.__name__)
def test_an_answer_has_the_fields_of_the_servers_model(
    answer: type[msgspec.Struct], model: type[BaseModel]
) -> None:
    """A field that the server gets, or loses, has to do so in the client library too."""
    assert set(answer.__struct_fields__) == set(model.model_fields)


def test_every_answer_is_compared() -> None:
    """A new kind of answer is listed here too."""
    defined = {
        cls for _, cls in inspect.getmembers(answers, inspect.isclass) if cls.__module__ == answers.__name__
    }
    assert defined == {answer for answer, _ in PAIRS}
