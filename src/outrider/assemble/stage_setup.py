"""Setup with which the process of a stage loads its layers; travels as JSON."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from outrider.assemble.target import load_options, load_part
from outrider.config.settings import LinkConfig, TargetConfig
from outrider.formats.hub import resolve
from outrider.stage.layer_range import LayerRange
from outrider.stage.link import LOCAL, LinkSettings
from outrider.stage.local import link_settings
from outrider.state.spec import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetup:
    """Stage `number` of `count`: layers [first, last) of a target, and the link that leads to it.

    States can take `capacity` rows back without a checkpoint.
    """

    number: int
    count: int
    first: int
    last: int
    target: TargetConfig
    policy: Policy
    capacity: int
    link: LinkSettings = LOCAL

    @property
    def name(self) -> str:
        return f"stage {self.number} of {self.count}"

    @property
    def folder(self) -> Path:
        """Where the target lies on this machine; CheckpointError where it does not."""
        return resolve(self.target.path)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "StageSetup":
        fields = json.loads(text)
        target, link = TargetConfig(**fields.pop("target")), LinkSettings(**fields.pop("link"))
        return cls(target=target, link=link, **fields)

    def load(self) -> LayerRange:
        """Load the layers; passes of this thread use as many processor threads as were given."""
        assert self.target.threads is not None
        torch.set_num_threads(self.target.threads)
        span = self.first, self.last
        decoder = load_part(self.folder, load_options(self.target), self.target, span)
        return LayerRange(decoder, self.policy, self.capacity)


def make_setups(
    target: TargetConfig,
    spans: Sequence[tuple[int, int]],
    policy: Policy,
    capacity: int,
    link: LinkSettings = LOCAL,
    threads: Sequence[int] | None = None,
) -> list[StageSetup]:
    """One for each of `spans`; `threads` of each, unless the target names them (None: an even
    share of this machine's)."""
    share = threads or [max((os.cpu_count() or 1) // len(spans), 1)] * len(spans)
    links = link_settings(len(spans), link)
    return [
        StageSetup(
            number=number,
            count=len(spans),
            first=first,
            last=last,
            target=replace(target, threads=target.threads or share[number]),
            policy=policy,
            capacity=capacity,
            link=links[number],
        )
        for number, (first, last) in enumerate(spans)
    ]


def link_of(config: LinkConfig) -> LinkSettings:
    """A link as it was configured."""
    return LinkSettings(**asdict(config))
