"""The directive ``examples``: a section for every script of a directory, from its docstring, records and source."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent


def described_scripts(directory: Path) -> list[tuple[Path, str]]:
    """Scripts that can be run, with their docstrings; modules that others import have no main guard."""
    found = []
    for path in sorted(directory.glob("*.py")):
        source = path.read_text()
        if '__name__ == "__main__"' in source:
            found.append((path, ast.get_docstring(ast.parse(source)) or ""))
    return found


def pictures_of(path: Path) -> list[str]:
    """Pictures in the records that this script wrote to docs/results."""
    records = [json.loads(record.read_text()) for record in sorted((DOCS / "results").glob("*.json"))]
    made = [record for record in records if path.name in record.get("command", "")]
    names = [Path(picture).name for record in made for picture in record["pictures"]]
    own = DOCS / "images" / f"{path.stem}.png"
    return names or ([own.name] if own.exists() else [])


def section(path: Path, docstring: str) -> str:
    title, _, rest = docstring.partition("\n")
    name, _, more = title.rstrip(".").partition(": ")
    name = re.split(r"[.,]", name)[0]
    opening = f"{more[:1].upper()}{more[1:]}{'' if more.endswith('?') else '.'}" if more else title
    opening = "" if opening.rstrip(".") == name else opening  # the heading says it
    pictures = "\n\n".join(f"![{title}](images/{picture})" for picture in pictures_of(path))
    return f"""## {name}

{opening}
{rest}

```bash
python examples/{path.name}
```

{pictures}

<details>
<summary>Source</summary>

```python
{path.read_text()}
```

</details>
"""


class Examples(SphinxDirective):
    """``{examples} ../examples``"""

    required_arguments = 1

    def run(self):
        directory = (DOCS / self.arguments[0]).resolve()
        scripts = described_scripts(directory)
        for path, _ in scripts:
            self.env.note_dependency(str(path))
        text = "\n".join(section(path, docstring) for path, docstring in scripts)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app):
    app.add_directive("examples", Examples)
    return {"parallel_read_safe": True}
