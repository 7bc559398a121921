"""The site: ``python -m sphinx -W --keep-going -b html docs build/site``, offline."""

import importlib
import inspect
import os
import pkgutil
import re
import sys
import warnings
from pathlib import Path
from urllib.parse import unquote, urldefrag

from sphinx.errors import SphinxError
from sphinx.pycode import ModuleAnalyzer

import dpglm
from dpglm.exceptions import PrivacyWarning

HERE = Path(__file__).parent
ROOT = HERE.parent
os.environ["MATPLOTLIBRC"] = str(HERE / "matplotlibrc")  # of the kernels that run code cells, too

project = "dpglm"
author = "the dpglm developers"
copyright = "the dpglm developers"
release = version = dpglm.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_templates", "gallery/*.md5", "gallery/*.ipynb", "gallery/*.py"]
templates_path = ["_templates"]
default_role = "py:obj"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
# The code cells of a page run when the page is built, in a folder that is thrown away.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 180
nb_merge_streams = True
autosummary_generate = True
autodoc_typehints = "none"  # numpydoc says the types of parameters
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"dpglm {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "ignore_pattern": r"^(?!plot_)",
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    "reset_modules": (),  # matplotlib's own would undo matplotlibrc
    "within_subsection_order": "FileNameSortKey",
}
warnings.filterwarnings("ignore", category=PrivacyWarning, message="Scores of scikit-learn have")

# Files outside of this folder, and their pages.
PAGES = {
    "README.md": "index",
    "benchmarks/README.md": "benchmarks",
    "benchmarks/trials.md": "trials",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CODE_OF_CONDUCT.md": "conduct",
    "CITATION.cff": "about",
}
# What the reference has no pages for: public between modules, and not for users.
INTERNAL = {"dpglm.kernels"}
ROOMS = {
    "estimators": "Estimators and preconditioners",
    "privacy": "Budgets, ledgers, noise",
    "calculator": "Calculator",
    "schema": "Tables",
    "sources": "Files",
    "datasets": "Data sets",
    "workflow": "Splits, search, scores and totals",
    "exceptions": "Errors and warnings",
}


def public_names() -> dict[str, dict[str, list[str]]]:
    """Return each face with its names, under headings; a name is where the shortest path leads."""
    modules = ["dpglm", *sorted(m.name for m in pkgutil.walk_packages(dpglm.__path__, "dpglm."))]
    seen, faces = set(), {}
    for module in modules:
        if module in INTERNAL or module.endswith("__main__"):
            continue
        face = importlib.import_module(module)
        for name in getattr(face, "__all__", ()):
            member = getattr(face, name)
            if id(member) in seen or name == "__version__":
                continue
            seen.add(id(member))
            room = getattr(member, "__module__", module).split(".")[1]
            heading = ROOMS[room] if module == "dpglm" else ""
            faces.setdefault(module, {}).setdefault(heading, []).append(name)
    return faces


def write_pages(_app, _config) -> None:
    """Write the reference from the faces of the package, and the pages of files elsewhere."""
    page = ["# Reference", "", "Every public name has a page of its own.", ""]
    for module, rooms in public_names().items():
        summary = inspect.getdoc(importlib.import_module(module)).partition("\n")[0]
        page += [f"## {module}", "", summary, ""]
        for heading, names in rooms.items():
            page += [f"### {heading}", ""] if heading else []
            page += ["```{eval-rst}", f".. currentmodule:: {module}", ""]
            page += [".. autosummary::", "   :toctree: reference", ""]
            page += [*(f"   {name}" for name in sorted(names)), "```", ""]
    write("reference", "\n".join(page))
    for file, name in PAGES.items():
        if name not in ("index", "about"):
            write(name, linked((ROOT / file).read_text(encoding="utf-8"), Path(file).parent))


def write(name: str, text: str) -> None:
    """Write a page, if it is not there already: what did not change is not built again."""
    path = HERE / f"{name}.md"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def linked(text: str, folder: Path) -> str:
    """Lead the links of a file in a folder of the repository to the pages of the site."""

    def target(match: re.Match) -> str:
        path = os.path.normpath(folder / match[1])
        if not (ROOT / path).exists():
            return match[0]
        if path.startswith("examples/plot_"):
            return f"](gallery/{Path(path).stem}.rst"
        name = PAGES.get(path)
        return f"]({name}.md" if name else f"]({os.path.relpath(path, 'docs')}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", target, text)


def read(app, name, source) -> None:
    """Put README before the contents of the site, and mend the links that leave the folder."""
    if name == "index":
        app.env.note_dependency(str(ROOT / "README.md"))
        source[0] = linked((ROOT / "README.md").read_text(encoding="utf-8"), Path()) + source[0]
    elif name not in PAGES.values() and (HERE / f"{name}.md").exists():
        source[0] = linked(source[0], Path("docs"))


def skip_member(_app, _what, name, member, skip, _options):
    """Leave out what scikit-learn documents."""
    module = getattr(member, "__module__", None) or ""
    return skip or module.startswith("sklearn") or bool(re.fullmatch(r"set_\w+_request", name))


def describe_data(_app, what, name, _member, _options, lines) -> None:
    """Describe a constant by the text below it where it is defined, and not by its type."""
    face, _, constant = name.rpartition(".")
    for module in [m for m in sys.modules if what == "data" and m.startswith(f"{face}.")]:
        texts = ModuleAnalyzer.for_module(module).find_attr_docs()
        lines[:] = texts.get(("", constant), lines)


def check_links(app, error) -> None:
    """Refuse a site in which a link or an anchor leads nowhere; nothing is asked of the network."""
    if error or app.builder.name != "html":
        return
    names = [*app.env.found_docs, "genindex", "search"]
    paths = [Path(app.builder.get_outfilename(name)).resolve() for name in names]
    pages = {path: path.read_text(encoding="utf-8") for path in paths}
    broken = set()
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="(?!\w+:|//)([^"]+)"', text):
            file, anchor = urldefrag(unquote(link))
            target = (page.parent / file.partition("?")[0]).resolve() if file else page
            if not target.exists() or (anchor and f'id="{anchor}"' not in pages.get(target, "")):
                broken.add(f"{page.name}: {link}")
    if broken:
        raise SphinxError("links that lead nowhere:\n" + "\n".join(sorted(broken)))


def setup(app) -> None:
    app.connect("config-inited", write_pages)
    app.connect("source-read", read)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("autodoc-process-docstring", describe_data)
    app.connect("build-finished", check_links)
