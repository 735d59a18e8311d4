"""The directive ``notebooks``: a card for each named notebook, from its title, first paragraph and last picture."""

from __future__ import annotations

import json
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent


def card(path: Path) -> str:
    """One card; the first cell of a notebook is its title and a paragraph."""
    title, *rest = "".join(json.loads(path.read_text())["cells"][0]["source"]).split("\n\n")
    paragraph = " ".join(rest[0].split())
    return f"""
:::{{grid-item-card}} {title.removeprefix("# ").strip()}
:link: {path.stem}
:link-type: doc
:img-top: ../images/gallery/{path.stem}.png
:img-alt: last picture of this notebook

{paragraph}
:::
"""


class Notebooks(SphinxDirective):
    """Names of notebooks in the content, one a line; they get cards and entries in the table of contents."""

    has_content = True

    def run(self):
        paths = [DOCS / "gallery" / f"{name.strip()}.ipynb" for name in self.content if name.strip()]
        missing = [path.stem for path in paths if not path.exists()]
        if missing:
            raise self.error(f"not recorded: {missing}; run python docs/run_gallery.py docs/gallery/<name>.py")
        for path in paths:
            self.env.note_dependency(str(path))
        cards = "".join(card(path) for path in paths)
        names = "\n".join(path.stem for path in paths)
        text = f"::::{{grid}} 1 2 2 3\n:gutter: 3\n{cards}\n::::\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
        return self.parse_text_to_nodes(text)


def setup(app):
    app.add_directive("notebooks", Notebooks)
    return {"parallel_read_safe": True}
