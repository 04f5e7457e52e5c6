"""The process of one stage, started by the coordinator with its setup as JSON."""

import socket
import sys

from outrider.assemble.stage_setup import StageSetup
from outrider.stage.channel import Inbox, Outbox
from outrider.stage.process import run


def main(text: str, *sockets: str) -> int:
    """Load the layers and run until the coordinator has gone; returns the exit status.

    `sockets` are the numbers of those that it inherited: from the side before, to the one after.
    """
    setup = StageSetup.from_json(text)
    ends = [socket.socket(fileno=int(number)) for number in sockets]
    inbox, outbox = Inbox(ends[0], setup.link, setup.number), Outbox(ends[1])
    failed = run(setup.name, setup.load, inbox, outbox, first=setup.number == 0)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
