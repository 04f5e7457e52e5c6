"""`outrider bench`: does speculation pay here, and can the figure be trusted?

Exit codes beyond the usual: 3 a gate failed, so no speed is given; 4 `--fail-under` was not met.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option

from outrider.cli.flags import RunFlags, flag, with_flags
from outrider.cli.terminal import OutputFile, busy, put, say
from outrider.config.settings import RunConfig, SpeculativeConfig
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.bench.legs import Peer, Tools
    from outrider.bench.run import Settings

GATE_FAILED = 3
PLAIN = "plain"
"""The peer that is this engine without speculation."""
TOO_SLOW = 4
INTERRUPTED = 130
MOST_DRAFTERS = 16
"""Walked side by side, one for each number of drafts; passes are calibrated with two sessions."""
FAIL_HELP = "Exit with 4 where the ratio is lower."
JSON_HELP = "End standard output with one line of JSON."

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """Scope of a measurement, its size, and where the report goes."""

    workload: str = flag("A shipped workload or a JSON-lines file.", "NAME|FILE", default="mixed")
    prompts: int | None = flag("Prompts taken from it (default 8).", "N")
    tokens: int | None = flag("Most tokens per leg (default 192).", "N")
    repeats: int | None = flag("Timed rounds (default 3).", "N")
    pause: float = flag("Rest before each leg (default 0).", "SECONDS", default=0.0)
    max_drift: float = flag("How far plain legs may lie apart (0.05).", "SHARE", default=0.05)
    seed: int = flag("Seed of the resampling.", "N", default=0)
    ignore_eos: bool = flag("Decode all tokens, beyond the model's own end.", default=False)
    quick: bool = flag("Fewer prompts, tokens and repeats.", default=False)
    peer: list[str] | None = flag(
        "transformers, llama.cpp[:n_max=4,...], plain or a server's URL; repeatable.", "NAME|URL"
    )
    output: Path | None = flag("Write the whole report as JSON.", "FILE")
    html: Path | None = flag("Write the report as one HTML page.", "FILE")
    json: bool = flag(JSON_HELP, default=False)
    fail_under: float | None = flag(FAIL_HELP, "RATIO")

    def settings(self) -> "Settings":
        """The measurement's settings; raises ConfigError for what is out of range."""
        from outrider.bench.run import Settings

        least = {"prompts": 1, "tokens": 8, "repeats": 1}
        given = {name: getattr(self, name) for name in least}
        for name, low in least.items():
            if given[name] is not None and given[name] < low:
                raise ConfigError(f"--{name} {given[name]} is out of range: use {low} or more.")
        if self.pause < 0 or self.max_drift <= 0:
            raise ConfigError(
                f"--pause {self.pause:g} and --max-drift {self.max_drift:g} must not be negative, "
                "and some drift there always is: use 0 or more, and more than 0."
            )
        settings = Settings(
            **{name: value for name, value in given.items() if value is not None},
            pause=self.pause,
            max_drift=self.max_drift,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
        )
        return settings.quick() if self.quick else settings


@app.callback(
    help="Measure whether speculation pays: gates first, then speeds, a cost model and a verdict."
)
@with_flags(flags=BenchFlags, run=RunFlags)
def bench(context: typer.Context, *, flags: BenchFlags, run: RunFlags) -> None:
    if context.invoked_subcommand is not None:
        return
    loaded = run.load()
    settings = flags.settings()
    with ExitStack() as stack:
        named = {"--output": flags.output, "--html": flags.html}
        files = [
            stack.enter_context(OutputFile(path, name)) if path else None
            for name, path in named.items()
        ]
        try:
            record = _measure(loaded.config, flags, settings)
            _deliver(record, flags, files)
        except KeyboardInterrupt:
            say("outrider: interrupted, nothing is reported.")
            raise Exit(INTERRUPTED) from None
    _leave(record["verdict"], record["speedup"], flags.fail_under)


def _measure(config: RunConfig, flags: BenchFlags, settings: "Settings") -> dict[str, Any]:
    """Load, measure and describe; torch is loaded here."""
    from outrider.assemble.engine import Engine
    from outrider.bench import record, workload
    from outrider.bench.run import measure

    prompts = workload.load(flags.workload)
    with busy(f"loading {config.target.path}"):
        engine = Engine.load_run(config, sequences=2, drafters=MOST_DRAFTERS)
        peers = _peers(config, flags.peer or ())
    try:
        with _tools() as tools:
            run = measure(engine, engine.tokenizer.encode, prompts, settings, tools, peers)
        facts = _provenance(config, engine.describe())
    finally:
        engine.close()
    return record.build(run, engine.speculation.method, facts)


def _peers(config: RunConfig, names: Sequence[str]) -> "list[Peer]":
    if not names:
        return []
    from outrider.assemble.engine import Engine
    from outrider.bench import peers

    folders = _folders(config)
    target = peers.PeerTarget(
        target=folders[0],
        draft=folders[1] if len(folders) > 1 else None,
        dtype=config.target.dtype,
        device=config.target.device,
    )
    off = replace(config, speculative=SpeculativeConfig(method="off"))
    own = [peers.PlainPeer(Engine.load_run(off)) for name in names if name == PLAIN]
    return [*own, *(one for name in names if name != PLAIN for one in peers.make(name, target))]


def _folders(config: RunConfig) -> list[Path]:
    """Where the models in use lie: the target's, then the draft model's if there is one."""
    from outrider.formats.hub import resolve

    names = [config.target.path, config.speculative.draft_model]
    return [resolve(name) for name in names if name]


def _provenance(config: RunConfig, engine: dict[str, object]) -> dict[str, object]:
    import torch

    from outrider.bench import provenance
    from outrider.config.keys import flatten

    gpu = torch.cuda.get_device_name() if config.target.device.startswith("cuda") else None
    return {
        **provenance.collect(_folders(config), provenance.command_line()),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "dtype": config.target.dtype,
        "engine": engine,
        "config": dict(flatten(config)),
    }


@contextmanager
def _tools() -> "Iterator[Tools]":
    """The real clock, and a progress bar on a terminal."""
    import sys

    from outrider.bench.legs import Tools

    if not sys.stderr.isatty():
        yield Tools(clock=time.perf_counter, sleep=time.sleep, progress=lambda *_: None)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting")

        def show(phase: str, done: int, total: int) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        yield Tools(clock=time.perf_counter, sleep=time.sleep, progress=show)


def _deliver(record: dict[str, Any], flags: BenchFlags, files: Sequence[OutputFile | None]) -> None:
    from outrider.bench.report import lines, render, summary

    for line in lines(record):
        _show(line, flags.json)
    report, html = files
    if report is not None:
        report.write(json.dumps(record, indent=1) + "\n")
    if html is not None:
        html.write(render(record))
    if flags.json:
        put(json.dumps(summary(record)) + "\n")


def _show(line: str, as_json: bool) -> None:
    """To standard output, unless that is kept for JSON."""
    if as_json:
        say(line)
    else:
        put(line + "\n")


def _leave(verdict: str, speedup: dict[str, float] | None, fail_under: float | None) -> None:
    """Exit by what was found; an inconclusive run cannot meet `--fail-under`."""
    if verdict == "failed":
        raise Exit(GATE_FAILED)
    if fail_under is not None:
        value = speedup["value"] if speedup and verdict != "inconclusive" else 0.0
        _check_ratio(value, fail_under)


def _check_ratio(value: float, fail_under: float) -> None:
    if value < fail_under:
        say(f"outrider: {value:.2f} is below --fail-under {fail_under:g}.")
        raise Exit(TOO_SLOW)


@app.command()
def compare(
    a: Annotated[Path, Argument(metavar="A.json", help="The report to compare with.")],
    b: Annotated[Path, Argument(metavar="B.json", help="The newer report.")],
    as_json: Annotated[bool, Option("--json", help=JSON_HELP)] = False,
    fail_under: Annotated[float | None, Option(metavar="RATIO", help=FAIL_HELP)] = None,
) -> None:
    """Set two reports side by side: B's speculative speed over A's."""
    from outrider.bench import record

    comparison = record.compare(record.read(a), record.read(b))
    for line in record.comparison_lines(comparison):
        _show(line, as_json)
    if as_json:
        put(json.dumps(comparison) + "\n")
    if fail_under is not None:
        _check_ratio(comparison["ratio"], fail_under)
