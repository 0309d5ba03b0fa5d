"""Widgets in a console: progress bars that follow their state, on a terminal, in a pipe and in notebooks."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.cli.terminal.widgets import STATE, VIEW, Widgets
from tests.cli.command import himalia
from tests.cli.pty_command import TerminalCommand, displayed
from tests.cli.terminal.test_kernel_output import say, shown, stream
from tests.servers import RunningServer
from tests.shared_kernel_server import kernel_server

LOOP = "from tqdm.auto import tqdm\nfor n in tqdm(range(5), desc='load'): print('at', n)"
TIMES = re.compile(r"\[[^\[\]]*it/s\]")
NESTED = """
from tqdm.auto import tqdm
for n in tqdm(range(2), desc='outer'):
    for m in tqdm(range(3), desc='inner', leave=False): pass
"""


def opened(comm_id: str, name: str, **state: Any) -> Any:
    content = {
        "comm_id": comm_id,
        "target_name": "jupyter.widget",
        "data": {"state": {"_model_name": name, **state}},
    }
    return say("comm_open", **content)


def changed(comm_id: str, **state: Any) -> Any:
    return say("comm_msg", comm_id=comm_id, data={"method": "update", "state": state})


def display(comm_id: str, text: str = "as text") -> Any:
    return say("display_data", data={"text/plain": text, VIEW: {"model_id": comm_id}})


START = say("execute_input", code="x", execution_count=1)
IDLE = say("status", execution_state="idle")
BAR = opened("p", "IntProgressModel", value=0, min=0, max=4, description="Loading")
EMPTY, HALF, FULL = ("|" + ("█" * count).ljust(24) + "|" for count in (0, 12, 24))


# What is drawn


def test_a_bar_is_drawn_again_in_its_place() -> None:
    """On a terminal there is one line of it, as its state is now."""
    out, _ = shown(START, BAR, display("p"), changed("p", value=2), changed("p", value=4), terminal=True)
    assert displayed(out) == [f"Loading {FULL} 100%", ""]
    assert HALF in out


def test_it_stays_below_what_the_code_prints() -> None:
    """Also below a line that is not finished yet, which goes on where it was."""
    out, _ = shown(
        START,
        BAR,
        display("p"),
        stream("one\ntw"),
        changed("p", value=2),
        stream("o\nthree\n"),
        terminal=True,
    )
    assert displayed(out) == ["one", "two", "three", f"Loading {HALF} 50%", ""]


def test_in_a_pipe_it_comes_once_as_it_is_at_the_end() -> None:
    out, _ = shown(START, BAR, display("p"), changed("p", value=2), stream("x\n"), IDLE, terminal=False)
    assert out == f"x\nLoading {HALF} 50%\n"


def test_a_session_keeps_the_bars_of_earlier_cells() -> None:
    """A watched kernel's next cell begins below the bars of the last one, which then stay as they are."""
    records = [
        START,
        BAR,
        display("p"),
        changed("p", value=2),
        say("execute_input", code="y"),
        changed("p", value=4),
    ]
    out, _ = shown(*records, terminal=True, console=True)
    assert [line for line in displayed(out.replace("\n", "\n\r")) if line] == [
        "In [1]: x",
        f"Loading {HALF} 50%",
        "In [ ]: y",
    ]


@pytest.mark.parametrize("hiding", [say("comm_close", comm_id="p"), changed("l", visibility="hidden")])
def test_a_bar_that_is_closed_or_hidden_is_taken_away(hiding: Any) -> None:
    """As ``tqdm(leave=False)`` does at its end."""
    records = [opened("l", "LayoutModel"), BAR, changed("p", layout="IPY_MODEL_l"), display("p"), hiding]
    out, _ = shown(START, *records, terminal=True)
    assert displayed(out) == [""]
    assert shown(START, *records, IDLE, terminal=False)[0] == ""


def test_clear_output_clears_them_too() -> None:
    out, _ = shown(START, BAR, display("p"), say("clear_output"), changed("p", value=2), terminal=True)
    assert displayed(out) == [""]


def test_only_the_newest_are_drawn_again() -> None:
    """Of very many bars those further up stay as they were: drawing again costs the same for any number."""
    names = [f"p{number}" for number in range(30)]
    bars = [opened(name, "IntProgressModel", value=0, max=4, description=name) for name in names]
    out, _ = shown(
        START, *bars, *map(display, names), changed("p0", value=4), changed("p29", value=4), terminal=True
    )
    rows = displayed(out)
    assert [row.split()[0] for row in rows[:-1]] == names
    assert (rows[0], rows[29]) == (f"p0 {EMPTY} 0%", f"p29 {FULL} 100%")


def test_what_cannot_be_drawn_is_its_text() -> None:
    slider = opened("s", "IntSliderModel", value=7)
    assert (
        shown(START, slider, display("s", "IntSlider(value=7)"), terminal=False)[0] == "IntSlider(value=7)\n"
    )
    assert shown(START, display("unknown", "Thing()"), terminal=False)[0] == "Thing()\n"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
IDS = st.sampled_from(["a", "b", "c"])
REFERENCES = st.lists(IDS.map("IPY_MODEL_{}".format), max_size=3)
MODELS = st.sampled_from(["HBoxModel", "VBoxModel", "FloatProgressModel", "HTMLModel", "LayoutModel", "X"])
STATES = st.fixed_dictionaries(
    {},
    optional={
        "_model_name": MODELS,
        "children": REFERENCES | ANYTHING,
        "value": ANYTHING,
        "max": ANYTHING,
        "layout": ANYTHING,
    },
)
MESSAGES = st.tuples(
    st.sampled_from(["comm_open", "comm_msg", "comm_close"]),
    st.fixed_dictionaries(
        {},
        optional={
            "comm_id": IDS | ANYTHING,
            "target_name": st.just("jupyter.widget") | ANYTHING,
            "data": st.fixed_dictionaries({"state": STATES}, optional={"buffer_paths": ANYTHING}) | ANYTHING,
        },
    ),
    st.lists(st.just("AAAA"), max_size=2),
)


@given(st.lists(MESSAGES, max_size=30))
def test_whatever_a_kernel_says_is_shown_somehow(
    messages: list[tuple[str, dict[str, Any], list[str]]],
) -> None:
    """Models that hold each other, values that are none: nothing raises, and nothing takes long."""
    widgets = Widgets()
    for message in messages:
        widgets.apply(*message)
        for name in "abc":
            assert len(widgets.text(name)) < 20_000
    widgets.as_metadata()


def test_the_state_is_bounded() -> None:
    """The oldest models go first, and it is told how many."""
    widgets = Widgets(bytes_max=10_000)
    for number in range(1000):
        state = {"_model_name": "HTMLModel", "value": "x" * random.Random(number).randint(0, 300)}
        content = {"comm_id": f"c{number}", "target_name": "jupyter.widget", "data": {"state": state}}
        widgets.apply("comm_open", content)
        widgets.apply("comm_msg", {"comm_id": f"c{number}", "data": {"state": {"value": "y"}}})
    assert len(widgets) + widgets.dropped == 1000
    assert 0 < len(json.dumps(widgets.as_metadata())) < 20_000


# With a real kernel


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with kernel_server(tmp_path_factory.mktemp("kernels")) as server:
        yield server


@pytest.mark.slow
def test_tqdm_on_a_terminal(kernels: RunningServer) -> None:
    """At the end it says 5/5 and 100%, once, below what was printed."""
    with TerminalCommand("run", LOOP, env={"HIMALIA_URL": kernels.url}) as terminal:
        assert terminal.end() == 0
        rows = [row for row in displayed(terminal.screen) if row]
    assert rows[:5] == [f"at {number}" for number in range(5)]
    [bar] = rows[5:]
    assert bar.startswith(f"load: 100% {FULL} 5/5 [")


@pytest.mark.slow
def test_tqdm_in_a_pipe(kernels: RunningServer) -> None:
    """The outer bar as it is at the end; the inner ones were taken away by the code."""
    done = himalia("run", NESTED, env={"HIMALIA_URL": kernels.url})
    [bar] = done.stdout.splitlines()
    assert bar.startswith(f"outer: 100% {FULL} 2/2 [")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow
def test_a_notebook_keeps_what_jupyter_would(kernels: RunningServer, tmp_path: Path) -> None:
    """Outputs and the state of widgets are those that nbclient writes for the same notebook."""
    path = tmp_path / "bars.ipynb"
    image = "import ipywidgets as w\nw.HBox([w.Image(value=b'abc'), w.IntProgress(value=3)])"
    cells = [nbformat.v4.new_code_cell(code) for code in (LOOP, NESTED, image)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    assert himalia("run", str(path), env={"HIMALIA_URL": kernels.url}).returncode == 0
    ours = nbformat.read(tmp_path / "bars.executed.ipynb", as_version=4)
    nbformat.validate(ours)
    theirs = nbclient.execute(nbformat.read(path, as_version=4))
    assert compared(ours) == compared(theirs)


def compared(notebook: Any) -> tuple[Any, Any]:
    """Its outputs and models without what differs from run to run: ids and times."""
    models = notebook.metadata.widgets[STATE].state

    def resolved(value: Any) -> Any:
        """With the models in the place of their ids."""
        if isinstance(value, dict):
            return {
                key: resolved(models.get(one, one) if key == "model_id" else one)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [resolved(one) for one in value]
        if isinstance(value, str):
            found = models.get(value.removeprefix("IPY_MODEL_"))
            return resolved(found) if found is not None else TIMES.sub("[]", value)
        return value

    outputs = [[resolved(output) for output in cell.outputs] for cell in notebook.cells]
    return outputs, sorted(json.dumps(resolved(model), sort_keys=True) for model in models.values())
