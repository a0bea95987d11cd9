"""Renders a page from `page.html.j2`. Macros of a second template draw the data of the sections."""

import dataclasses
import urllib.parse
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from bertjax.pages.charts import packed_plotly

_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, ''),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
_ENVIRONMENT.policies['json.dumps_kwargs'] = {'allow_nan': False, 'separators': (',', ':')}
_ENVIRONMENT.filters['number'] = format  # x|number('.3f') is Python's format(x, '.3f')
_ENVIRONMENT.globals['source'] = lambda name: Markup(_ENVIRONMENT.loader.get_source(_ENVIRONMENT, name)[0])


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
      name: The name of the anchor, and of the macro that draws `data`.
      title: The heading, and the entry in the navigation.
      data: The argument of the macro.
      about: A sentence under the heading.
      note: The reason why `data` is missing, which the page then shows.
    """

    name: str
    title: str
    data: Any = None
    about: str = ''
    note: str = ''


@dataclasses.dataclass(frozen=True)
class Token:
    """A piece in a row of tokens.

    Attributes:
      text: The piece as readable text, such as `##ing`.
      color: A class of style.css: special, b, masked, random, unchanged, right, wrong; '' for none.
      title: The hover text.
      below: Lines under the piece, such as the piece that a mask hides.
    """

    text: str
    color: str = ''
    title: str = ''
    below: str = ''


def link(text: str, target: str) -> Markup:
    """Returns a link to another file. `target` is the path of the file relative to the page."""
    return Markup('<a href="{}">{}</a>').format(urllib.parse.quote(target), text)


def render_page(
    template: str,
    title: str,
    about: str,
    sections: Sequence[Section],
    *,
    charts: bool = False,
    assets: Sequence[str] = (),
) -> str:
    """Returns the text of an HTML file.

    Args:
      template: The second template, a file of this folder that has a macro for each section.
      charts: Whether a section has charts, which make the file two megabytes larger.
      assets: Names of further assets. Each NAME adds the files NAME.css and NAME.js to the page.

    Raises:
      UserError: A section has charts, and Plotly is not installed.
    """
    return _ENVIRONMENT.get_template('page.html.j2').render(
        template=template,
        title=title,
        about=about,
        sections=sections,
        plotly=packed_plotly() if charts else '',
        assets=assets,
    )
