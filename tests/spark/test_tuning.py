"""The settings that are there for speed: each can be left out, and each is documented with its gain."""

from __future__ import annotations

import pytest

from himalia.errors import ConfigurationError
from himalia.spark import tuning
from tests.docs.markdown import DOCS, code_spans, rows, section


def test_every_knob_is_documented_with_its_gain() -> None:
    """The guide lists all of them, in order."""
    listed = rows(section((DOCS / "pipeline.md").read_text(), "## Performance settings"))
    assert [(code_spans(cells[0])[0], cells[1]) for cells in listed] == [
        (knob.name, knob.gain) for knob in tuning.KNOBS
    ]


def test_a_knob_that_is_left_out_sets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own default holds then, and those of the other knobs stay."""
    monkeypatch.setenv(tuning.VARIABLE, "jit, worker-daemon")
    conf = tuning.session_conf(has_worker_daemon=True)
    assert "spark.python.daemon.module" not in conf
    assert conf[tuning.JAVA_OPTIONS] == "-XX:ReservedCodeCacheSize=512m -XX:+UseParallelGC"
    assert not tuning.is_on("jit")
    assert tuning.is_on("class-cache")


def test_all_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of a session or a batch is left then."""
    monkeypatch.setenv(tuning.VARIABLE, "all")
    assert tuning.session_conf(has_worker_daemon=True) == tuning.pipeline_conf() == {}
    assert tuning.small_batch_conf() == tuning.large_batch_conf(2) == {}


def test_a_name_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo would leave the setting on without a word."""
    monkeypatch.setenv(tuning.VARIABLE, "jitt")
    with pytest.raises(ConfigurationError, match="names jitt; there are call-sites, class-cache"):
        tuning.session_conf(has_worker_daemon=False)
