"""Each external library behind one file, and side effects only where they belong."""

import ast
import sys

import pytest

from tests.architecture.source import PACKAGE, Source, imported, read, sources

# Files or folders that may import a library; libraries that are not named here are refused.
SEAMS = {
    "click": ("cli/",),
    "gguf": ("formats/gguf_", "models/gguf_"),
    "h11": ("server/listen.py",),
    "huggingface_hub": ("formats/hub.py",),
    "jinja2": ("formats/chat_template.py", "bench/report.py"),
    "llama_cpp": ("llamacpp/",),
    "llvmlite": ("kernels/jit.py",),
    "numba": ("kernels/jit.py", "kernels/loading.py"),
    "numpy": ("formats/gguf_file.py", "kernels/jit", "kernels/pages.py"),
    "prometheus_client": ("server/metrics.py",),
    "pydantic": ("server/bodies.py", "server/openapi.py", "server/problems.py"),
    "pydantic_core": ("server/bodies.py",),
    "ray": ("stage/ray_actors.py",),
    "rich": ("cli/",),
    "safetensors": ("formats/folder.py",),
    "starlette": ("server/",),
    "tokenizers": ("formats/tokenizer.py", "formats/gguf_tokenizer.py"),
    "torch": ("",),
    "transformers": ("bench/peers.py",),
    "typer": ("cli/",),
    "uvicorn": ("server/listen.py", "server/listen.py"),
    "xllamacpp": ("bench/server_peers.py",),
}
WRITERS = {"print", "sys.stdout.write", "sys.stderr.write"}
STANDARD = {*sys.stdlib_module_names, "outrider"}


def seam_faults(source: Source) -> list[str]:
    """Libraries that a file imports and may not."""
    outside = imported(source) - STANDARD
    return [
        f"{source.path} imports {name}"
        for name in sorted(outside)
        if not source.path.startswith(SEAMS.get(name, ("\0",)))
    ]


def environment_faults(source: Source) -> list[str]:
    """Reads of the process environment outside `config/`; telling a library something is none."""
    names = {"environ", "environb", "getenv", "putenv"}
    nodes = list(ast.walk(source.tree))
    written = {
        node.value
        for node in nodes
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    hits = [
        node
        for node in nodes
        if (isinstance(node, ast.Attribute) and node.attr in names and node not in written)
        or (isinstance(node, ast.ImportFrom) and names & {alias.name for alias in node.names})
    ]
    return [f"{source.path}:{node.lineno}" for node in hits if source.part != "config"]


def print_faults(source: Source) -> list[str]:
    """Calls of `print` and writes to the standard streams outside `cli/`; asking is allowed."""
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    hits = [node.lineno for node in calls if ast.unparse(node.func) in WRITERS]
    return [f"{source.path}:{line}" for line in hits if source.part != "cli"]


@pytest.mark.parametrize("find", [seam_faults, environment_faults, print_faults])
def test_no_file_has_a_fault(find):
    assert [fault for source in sources() for fault in find(source)] == []


@pytest.mark.parametrize(
    ("find", "code"),
    [
        (seam_faults, "def f():\n    import transformers"),
        (seam_faults, "from safetensors.torch import load_file"),
        (seam_faults, "import_module('tokenizers')"),
        (environment_faults, "import os\nos.environ['A']"),
        (environment_faults, "from os import getenv"),
        (print_faults, "print('x')"),
        (print_faults, "import sys\nsys.stderr.write('x')"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, find, code):
    path = tmp_path / "planted.py"
    path.write_text(code, encoding="utf-8")
    assert len(find(read(path, tmp_path))) == 1


def test_top_level_packages_export_nothing():
    """A subpackage's `__init__` holds a docstring; only the top one has names."""
    inits = [s for s in sources() if s.path.endswith("/__init__.py") and s.part != "demo"]
    assert len(inits) > 5, PACKAGE
    assert [s.path for s in inits if len(s.tree.body) != 1 or not ast.get_docstring(s.tree)] == []
