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
    "sphinx_design",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_templates", "gallery/**.md5", "gallery/**.ipynb", "gallery/**.py"]
templates_path = ["_templates"]
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
# The code cells of a page run when the page is built, in a folder that is thrown away.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 180
nb_merge_streams = True
nb_output_stderr = "remove"  # warnings name files of the machine
autosummary_generate = True
maximum_signature_line_length = 60  # of longer ones each parameter has its own line
autodoc_typehints = "none"  # numpydoc says the types of parameters
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = f"dpglm {release}"
html_favicon = "_static/mark.svg"
html_sidebars = {"index": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {
        "image_light": "_static/mark.svg",
        "image_dark": "_static/mark.svg",
        "text": "dpglm",
        "alt_text": "dpglm",
    },
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
    "subsection_order": [f"../examples/{part}" for part in ("buys", "says", "publish", "privacy")],
    "filename_pattern": r"plot_",
    "ignore_pattern": r"^(?!plot_)",
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "thumbnail_size": (640, 440),
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
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
    "CODE_OF_CONDUCT.md": "conduct",
    "CITATION.cff": "about",
}
# What the reference has no pages for: public between modules, and not for users.
INTERNAL = {"dpglm.kernels"}
# Groups of the reference: name of the page, heading, and the places where its names are defined. A
# name belongs to the longest place that it begins with.
GROUPS = {
    "estimators": ("Estimators", "estimators workflow.calibration"),
    "schema": ("Schema and encoding", "schema datasets"),
    "privacy": ("Privacy accounting", "privacy calculator workflow.pipelines exceptions"),
    "selection": (
        "Private model selection and scores",
        "workflow study.utility",
    ),
    "inference": ("Inference", "estimators.inference study.utility.expected_errors"),
    "displays": ("Displays and reports", "study"),
    "advanced": (
        "Advanced",
        "estimators.whitening schedules sources audit baselines privacy.noise",
    ),
}


def public_names() -> dict[str, list[str]]:
    """Return the public names of each group by the shortest path that leads to them."""
    modules = ["dpglm", *sorted(m.name for m in pkgutil.walk_packages(dpglm.__path__, "dpglm."))]
    group_of = {place: name for name, (_, places) in GROUPS.items() for place in places.split()}
    seen, groups = set(), {name: [] for name in GROUPS}
    for module in modules:
        if module in INTERNAL or module.endswith("__main__"):
            continue
        face = importlib.import_module(module)
        for name in getattr(face, "__all__", ()):
            member = getattr(face, name)
            if id(member) not in seen and name != "__version__":
                seen.add(id(member))
                home = f"{getattr(member, '__module__', module)}.{name}".removeprefix("dpglm.")
                place = max(filter(home.startswith, group_of), key=len)
                groups[group_of[place]].append(f"{module}.{name}")
    return groups


def write_pages(_app, _config) -> None:
    """Write the reference from the faces of the package, and the pages of files elsewhere."""
    page = ["# Reference", "", "Every public name has a page with its parameters and an example."]
    for group, names in public_names().items():
        names = [
            f"   ~{name}" for name in sorted(names, key=lambda n: n.rpartition(".")[2].lower())
        ]
        table = ["```{eval-rst}", ".. autosummary::", "   :nosignatures:"]
        own = [f"# {GROUPS[group][0]}", "", *table, "   :toctree: .", "", *names, "```", ""]
        write(f"reference/{group}", "\n".join(own))
        page += ["", f"## {GROUPS[group][0]}", "", *table, "", *names, "```"]
    page += ["", "```{toctree}", ":hidden:", "", *(f"reference/{group}" for group in GROUPS), "```"]
    write("reference", "\n".join([*page, ""]))
    for file, name in PAGES.items():
        if name not in ("index", "about"):
            write(name, linked((ROOT / file).read_text(encoding="utf-8"), Path(file).parent))


def write(name: str, text: str) -> None:
    """Write a page, if it is not there already: what did not change is not built again."""
    path = HERE / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def linked(text: str, folder: Path) -> str:
    """Lead the links of a file in a folder of the repository to the pages of the site."""

    def target(match: re.Match) -> str:
        path = os.path.normpath(folder / match[1])
        if not (ROOT / path).exists():
            return match[0]
        if Path(path).name.startswith("plot_"):
            return f"](gallery/{Path(path).relative_to('examples').with_suffix('.rst')}"
        name = PAGES.get(path)
        return f"]({name}.md" if name else f"]({os.path.relpath(path, 'docs')}"

    return re.sub(r"\]\((?!https?:|#)([^)#]+)", target, text)


def read(_app, name, source) -> None:
    """Mend the links of a page that leave the folder."""
    if name not in {*PAGES.values()} - {"index"} and (HERE / f"{name}.md").exists():
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


def signature(_app, what, _name, member, _options, shown, returned):
    """Show the parameters of a class, with defaults and without types."""
    if what != "class":
        return shown, returned
    found = inspect.signature(member)
    parameters = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=found.empty)), None


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
    app.connect("autodoc-process-signature", signature)
    app.connect("build-finished", check_links)
