"""Every tutorial runs as a notebook, and kernels behave there: cells define, redefine and break them.

One IPython kernel executes all of a worker's notebooks, its names cleared in between: what takes long is torch's
import. ``make notebooks`` makes the files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

jupytext = pytest.importorskip("jupytext", reason="notebooks need the extra 'notebooks'")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra 'notebooks'")
nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra 'notebooks'")

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
CELL_LIMIT_S = 300
"""A cell that hangs; none comes near."""

Execute = Callable[[Any], Any]


@pytest.fixture(scope="module")
def execute() -> Iterator[Execute]:
    """Executes a notebook and gives it back with its outputs; raises what a cell raised."""

    def run(notebook: Any) -> Any:
        reset = nbformat.v4.new_code_cell("%reset -f\n%matplotlib inline")
        client.nb = nbformat.v4.new_notebook(cells=[reset, *notebook.cells])
        client.reset_execution_trackers()
        for number, cell in enumerate(client.nb.cells):
            client.execute_cell(cell, number)
        return client.nb

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Jupyter's own packages
        client = nbclient.NotebookClient(
            nbformat.v4.new_notebook(),
            kernel_name="python3",
            timeout=CELL_LIMIT_S,
            resources={"metadata": {"path": str(ROOT)}},
        )
        with client.setup_kernel():
            yield run


def notebook_of(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])


def printed(cell: Any) -> str:
    """What a cell wrote to standard output."""
    return "".join(o.text for o in cell.outputs if o.output_type == "stream")


def html_of(cell: Any) -> str:
    """What a browser is shown of a cell's value."""
    (output,) = (o for o in cell.outputs if "data" in o and "text/html" in o.data)
    text = output.data["text/html"]
    assert isinstance(text, str)
    return text


WATCH = """\
import contextlib, warnings
from tests import roundtrip
_watch = contextlib.ExitStack()
_watch.enter_context(warnings.catch_warnings())
warnings.simplefilter("error")
_found = _watch.enter_context(roundtrip.lowered_functions())
"""
CHECK = """\
_watch.close()
assert _found
for _function in _found:
    roundtrip.check(_function)
"""


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorials(path: Path, execute: Execute) -> None:
    """Without a warning; what a tutorial lowers survives the IR's round trips."""
    notebook = jupytext.read(path)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    watch, check = (nbformat.v4.new_code_cell(source) for source in (WATCH, CHECK))
    done = execute(nbformat.v4.new_notebook(cells=[watch, *notebook.cells, check]))
    said = [c for c in done.cells if c.cell_type == "code" and c.outputs]
    assert said, "no cell shows anything"


IMPORTS = "import torch\nimport tilejit as tile\nfrom tilejit import T\nx = torch.zeros(32)"
KERNEL = """\
@tile.jit
def fill(X: T.Tensor(("N",), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = {value}
"""
SHOW = "fill(x)\nprint(x[3].item())"


def test_a_redefined_kernel_is_the_new_one(execute: Execute) -> None:
    done = execute(
        notebook_of(
            IMPORTS, KERNEL.format(value="1.0"), SHOW, KERNEL.format(value="2.0"), SHOW, "fill"
        )
    )
    cells = done.cells[1:]
    assert (printed(cells[2]), printed(cells[4])) == ("1.0\n", "2.0\n")
    assert "= 2.0" in html_of(cells[5]) and "= 1.0" not in html_of(cells[5])


def test_a_redefined_helper_reaches_the_kernel(execute: Execute) -> None:
    helper = "@tile.jit\ndef value():\n    return {}"
    kernel = KERNEL.format(value="value()")
    done = execute(
        notebook_of(IMPORTS, helper.format(3.0), kernel, SHOW, helper.format("4.0"), SHOW)
    )
    cells = done.cells[1:]
    assert (printed(cells[3]), printed(cells[5])) == ("3.0\n", "4.0\n")


def test_an_error_points_into_the_cell(execute: Execute) -> None:
    """In the traceback that the notebook shows, and in the page of the caught error."""
    broken = KERNEL.format(value="undefined_name")
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        execute(notebook_of(IMPORTS, broken, "fill(x)"))
    shown = str(caught.value)
    assert 'X[T.cuda.thread_idx("x")] = undefined_name' in shown
    assert ".py:4:" in shown and "^" * len("undefined_name") in shown
    assert "frontend/lowering.py" not in shown

    catch = "try:\n    fill(x)\nexcept tile.TileError as error:\n    caught = error\ncaught"
    done = execute(notebook_of(IMPORTS, broken, catch))
    page = html_of(done.cells[-1])
    assert "a notebook cell, line 4" in page and 'data-line="4"' in page


def test_layouts_and_faults_are_pictures(execute: Execute) -> None:
    race = """\
@tile.jit
def shift(X: T.Tensor((64,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((64,), "float32", layout="default")
    s[t] = X[t]
    X[t] = s[(t + 1) % 64]

try:
    shift(torch.zeros(64))
except tile.SimulationFault as fault:
    caught = fault
caught
"""
    done = execute(notebook_of(IMPORTS, race, 'T.layout("(8,4,2):(4@laneid,1@laneid,1)")'))
    assert "sim/race" in html_of(done.cells[2]) and "a notebook cell" in html_of(done.cells[2])
    assert "<svg" in html_of(done.cells[3])
