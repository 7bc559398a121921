"""The documentation: its blocks of code run, and every public name has a page."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import dpglm
from dpglm import seeded_noise

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(
    r"^(<!-- not run: .+ -->\n)?```(?:python|\{code-cell\} ipython3)\n((?::[^\n]+\n)*)(.*?)^```",
    re.M | re.S,
)
BLOCKS = {page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, blocks in BLOCKS.items() if blocks])
def test_the_blocks_of_a_page_run_one_after_the_other(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for left_out, options, text in BLOCKS[name]:
        if not left_out and "skip-execution" not in options:
            exec(compile(text, name, "exec"), names)


@pytest.mark.slow
def test_the_code_of_readme_prints_what_stands_below_it(capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = (
        re.search(rf"^```{k}\n(.*?)^```", readme, re.M | re.S)[1] for k in ("python", "text")
    )
    with seeded_noise(0):
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_every_public_name_has_a_page():
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    listed = {name.rpartition(".")[2] for group in conf.public_names().values() for name in group}
    package = Path(dpglm.__file__).parent
    for path in package.rglob("*.py"):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = set(ast.literal_eval(node.value)) - {"__version__"}
                assert module.removesuffix(".__init__") in conf.INTERNAL or names <= listed, module


def test_the_version_is_the_same_wherever_it_is_written():
    for file, pattern in {
        "CITATION.cff": "^version: (.+)$",
        "recipe/meta.yaml": 'version: "(.+)"',
    }.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(pattern, text, re.M)[1] == dpglm.__version__, file
