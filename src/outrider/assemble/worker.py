"""The process of one stage, started by the coordinator with its setup as JSON."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from outrider.assemble.stages import make_picker
from outrider.assemble.target import load_options, load_part, make_kernels
from outrider.config.run import TargetConfig
from outrider.errors import StageError
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.link import LinkSettings
from outrider.stage.part import Part
from outrider.stage.wire import Failed
from outrider.stage.worker import describe, report_ready, serve


def main(text: str) -> int:
    """Load the layers and run until the coordinator has gone; returns the exit status."""
    setup: dict[str, Any] = json.loads(text)
    ends = [socket.socket(fileno=number) for number in setup["sockets"]]
    inbox = Inbox(ends[0], LinkSettings(**setup["link"]), setup["number"])
    outbox = Outbox(ends[1])
    try:
        part = _load(setup)
        if report_ready(part, inbox if setup["number"] else None, outbox):
            serve(part, inbox, outbox)
    except Exception as error:
        return _report(setup, outbox, error)
    return 0


def _load(setup: dict[str, Any]) -> Part:
    config = TargetConfig(**setup["target"])
    assert config.threads is not None
    torch.set_num_threads(config.threads)
    options, kernels = load_options(config), make_kernels(config)
    decoder = load_part(Path(config.path), kernels, options, config, tuple(setup["span"]))
    return Part(decoder, setup["policy"], setup["capacity"], make_picker)


def _report(setup: dict[str, Any], outbox: Outbox, error: Exception) -> int:
    """Tell the side behind what happened; status 0 if it is that one which has gone."""
    name = f"stage {setup['number']} of {setup['count']}"
    try:
        outbox.send(Failed(f"{name} failed: {describe(error)}"))
    except StageError:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
