"""The package's own files as syntax trees, for the tests beside this file."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "outrider"


@dataclass(frozen=True)
class Source:
    """One file: path inside the package with `/`, text and syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def part(self) -> str:
        """The layer that the file belongs to: its top folder, or its own name."""
        return self.path.split("/")[0].removesuffix(".py")


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the package."""
    return tuple(read(path, PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))


def read(path: Path, base: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(base).as_posix(), text, ast.parse(text, str(path)))


def imported(source: Source) -> set[str]:
    """Top names of every module a file imports, inside functions and by `import_module` too."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and called(node) in {"import_module", "__import__"}:
            found |= {str(a.value).split(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    return found


def called(node: ast.Call) -> str:
    """The last name of what a call calls: `f` of `f()`, `g` of `a.g()`."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def functions(source: Source) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(source.tree) if isinstance(node, kinds)]
