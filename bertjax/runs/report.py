"""run=report: what a workdir holds as one HTML page, WORKDIR/report.html."""

import pathlib

from ml_collections import ConfigDict

from bertjax.config import plain
from bertjax.files.atomic import write_atomic
from bertjax.pages.charts import check_plotly
from bertjax.report.build import build_page
from bertjax.report.run import read_run


def run(config: ConfigDict, workdir: str, recipe: str) -> None:
    """Writes the page of a run or a sweep, finished or not, whatever its recipe; what is missing is said on it.

    Args:
      config: of the command line; of use where the workdir has a corpus and no run.
      workdir: of the run.
      recipe: as the command line names it, which the run is compared with.

    Raises:
      UserError: nothing of a run is there, its config.json is damaged, or Plotly is not installed.
    """
    check_plotly()
    folder = pathlib.Path(workdir)
    text = build_page(read_run(plain(config), folder, recipe))
    path = folder / 'report.html'
    write_atomic(path, text)
    print(f'written: {path}, which any browser opens ({len(text) / 2**20:.1f} MB)')
