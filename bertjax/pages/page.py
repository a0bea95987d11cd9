"""The document around a page: its title, its contents, one stylesheet, one script."""

import dataclasses
import importlib.resources
from collections.abc import Sequence

from markupsafe import Markup

from bertjax.pages.charts import drawing

# A page may not fetch anything, whatever is in it: neither scripts nor pictures nor fonts of others.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
_DOCUMENT = Markup("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<div class="top"><h1>{title}</h1><button id="theme" type="button" title="light or dark"></button></div>
<p class="about">{about}</p>
<nav>{contents}</nav>
</header>
<main>
{sections}
</main>
{drawing}<script>{script}</script>
</body>
</html>
""")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
      name: its anchor, `#name`.
      title: its heading, and its entry in the contents.
      body: what is in it; of several, one below the other.
      about: a sentence under the heading.
    """

    name: str
    title: str
    body: Sequence[Markup]
    about: str | Markup = ''


def page(
    title: str,
    about: str | Markup,
    sections: Sequence[Section],
    *,
    charts: bool = False,
    style: str = '',
    script: str = '',
) -> str:
    """The text of an HTML file.

    Args:
      title: of the page.
      about: a sentence under it.
      sections: in their order.
      charts: whether there are some (see charts.py), which makes the file two megabytes larger.
      style, script: of this page alone, behind those that all pages share; our own code, never data.

    Raises:
      UserError: charts without Plotly.
    """
    links = Markup('').join(Markup('<a href="#{}">{}</a>').format(part.name, part.title) for part in sections)
    return str(
        _DOCUMENT.format(
            policy=_POLICY,
            title=title,
            about=about,
            style=Markup(own(__package__, 'style.css') + style),
            contents=links,
            sections=Markup('\n').join(map(_section, sections)),
            drawing=drawing() if charts else '',
            script=Markup(own(__package__, 'page.js') + script),
        )
    )


def _section(part: Section) -> Markup:
    about = Markup('<p class="about">{}</p>\n').format(part.about) if part.about else ''
    body = Markup('\n').join(part.body)
    return Markup('<section id="{}">\n<h2>{}</h2>\n{}{}\n</section>').format(part.name, part.title, about, body)


def own(package: str, name: str) -> str:
    """The text of a file that lies beside the modules of a package of ours."""
    return (importlib.resources.files(package) / name).read_text(encoding='utf-8')
