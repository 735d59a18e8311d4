"""Sphinx configuration: ``python -m sphinx -W --keep-going -b html docs docs/_build/html`` builds the site, offline."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pymc_stiefel

sys.path.insert(0, str(Path(__file__).parent))  # for our directives

project = "pymc_stiefel"
author = "The pymc_stiefel developers"
copyright = author
version = release = pymc_stiefel.__version__

extensions = [
    "myst_nb",  # Markdown, and the notebooks of docs/gallery
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_design",
    "examples_directive",
    "gallery_directive",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [
    # types of other packages: resolving them would take their inventories from the network
    (r"py:.*", r"(numpy|np|xr|xarray|pd|pandas|pymc|pm|pytensor|matplotlib|Figure|pathlib|collections|typing)\b.*"),
    (r"py:class", r"(optional|callable|Matrix|Array|NDArray|Any|TensorVariable|Transform|Mapping|Sequence)\b.*"),
]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # docs/run_gallery.py records the outputs
nb_merge_streams = True

smartquotes_action = "qe"  # not "--" to a dash: sign patterns such as +-- stay as they are

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"pymc_stiefel {release}"
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": [], "tutorial": []}
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False

# One file of MathJax, taken from a package on PyPI, draws the formulas as SVG: no network, no fonts.
_mathjax = importlib.util.find_spec("sphinx-mathjax-offline")
if _mathjax is None or _mathjax.origin is None:
    raise ModuleNotFoundError("the formulas need sphinx-mathjax-offline: pip install -e '.[docs]'")
html_static_path = ["_static", str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js")]
html_css_files = ["site.css"]
mathjax_path = "tex-svg.js"


def call_signature(app, what, name, obj, options, signature, returns):
    """What a user writes: PyMC's metaclasses hide the arguments of variables and steps behind ``*args``."""
    if what != "class" or not name.startswith("pymc_stiefel."):
        return None
    if hasattr(obj, "dist"):
        return str(inspect.signature(obj.dist)).replace("(", "(name, ", 1), returns
    if hasattr(obj, "step"):
        arguments = inspect.signature(obj.__init__)
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in list(arguments.parameters.values())[1:]]
        return str(inspect.Signature(plain)), returns
    return None


def setup(app):
    app.connect("autodoc-process-signature", call_signature)
