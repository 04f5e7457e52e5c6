"""`outrider plan`: what stages over links would bring, before any of them is started."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.cli.flags import RunFlags, flag, with_flags
from outrider.cli.terminal import busy, put
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """Subject of a plan."""

    acceptance: float = flag("Chance of a draft if those before were right.", "P", default=0.8)
    rtt_ms: float | None = flag("All links together, there and back.", "X")
    draft_ms: float = flag("Drafting one token.", "X", default=0.0, min=0.0)
    most_depth: int = flag("Most windows in flight.", "N", default=16, min=1, max=64)
    json: bool = flag("Print JSON.", default=False)

    def check(self) -> None:
        """Raise for what no pipeline has."""
        if not 0.0 <= self.acceptance < 1.0:
            raise ConfigError(
                f"--acceptance {self.acceptance} is out of range: use at least 0 and less than 1."
            )
        if self.rtt_ms is not None and self.rtt_ms < 0.0:
            raise ConfigError(f"--rtt-ms {self.rtt_ms} is out of range: use 0 or more.")


@with_flags(flags=PlanFlags, run=RunFlags)
def plan(*, flags: PlanFlags, run: RunFlags) -> None:
    """Predict tokens/s of cuts, depths and run-ahead budgets from layer times measured here.

    With --stage-processes the stages are tried together on this machine, whose processors they
    share; stages on machines of their own are taken to share nothing.
    """
    flags.check()
    loaded = run.load()
    from outrider.assemble import planning

    with busy("measuring layers"):
        found = planning.plan(
            loaded.config,
            planning.Question(
                acceptance=flags.acceptance,
                round_trip_ms=flags.rtt_ms,
                draft_ms=flags.draft_ms,
                most_depth=flags.most_depth,
            ),
        )
    put(json.dumps(found, indent=2) + "\n" if flags.json else "\n".join(_lines(found)) + "\n")


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"plain decoding: {found['plain_tokens_per_second']:.1f} tokens/s"
    for cut in found["cuts"]:
        stages = ", ".join(f"{ms:.1f}" for ms in cut["stage_ms"])
        yield f"layers {_sizes(cut)}: {cut['tokens_per_second']:.1f} tokens/s ({stages} ms a stage)"
    yield "  window  depth  run-ahead  tokens/s  law"
    for row in found["table"]:
        yield (
            f"  {row['max_tokens']:6}  {row['depth']:5}  {row['runahead_tokens']:9}  "
            f"{row['tokens_per_second']:8.1f}  {row['law_tokens_per_second']:.1f}"
        )
    chosen = found["recommended"]
    yield (
        f"recommended: --stage-layers {_sizes(chosen)} --window {chosen['max_tokens']} "
        f"--depth {chosen['depth']} for {chosen['tokens_per_second']:.1f} tokens/s, "
        f"{chosen['speedup']:.2f}x plain decoding"
    )


def _sizes(cut: Mapping[str, Any]) -> str:
    return ",".join(map(str, cut["layers"]))
