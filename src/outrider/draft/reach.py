"""Where the context of a drafter's own model ends before the target's does."""

import logging

LOG = logging.getLogger(__name__)


class Reach:
    """Says once of one loaded model, whichever session comes there first, that it drafts no more.

    Only a text that long shows it, so nothing is said at the start. Belongs to what is loaded and
    is shared by all sessions; a server says it once, not once a request.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the model, for the message."""
        self._name, self._said = name, False

    def ended(self, length: int) -> None:
        """A text has outgrown the model's context of `length` tokens."""
        if self._said:
            return
        self._said = True
        LOG.warning(
            "%s has a context of %d tokens, and a text has outgrown it: from there on it drafts "
            "nothing, in this request and in every other. Use one with a longer context, or set "
            "target.max_length = %d.",
            *(self._name, length, length),
        )
