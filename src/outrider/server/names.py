"""How tokens are told in log-probabilities: their names and bytes."""

from dataclasses import dataclass, field

from outrider.engine.scheduler import TokenLogprob
from outrider.formats.tokenizer import Tokenizer


@dataclass(slots=True)
class Names:
    """Names and bytes of tokens, each worked out once: as many entries as the vocabulary at most.

    May be used by several threads, which at worst work out the same.
    """

    tokenizer: Tokenizer
    _names: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, list[int]] = field(default_factory=dict)

    def name(self, token: int) -> str:
        """The token's text, or what stands for it where that is no text."""
        found = self._names.get(token)
        if found is None:
            found = self._names[token] = self.tokenizer.token_name(token)
        return found

    def bytes(self, token: int) -> list[int]:
        """The text that the token adds; nothing where the text leaves it out."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = list(self.tokenizer.token_bytes(token))
        return found

    def alternatives(self, entry: TokenLogprob) -> list[tuple[str, int, float]]:
        """(name, id, log-probability) of each alternative, no name twice: the chosen token keeps
        its own, and a second one of that name is told by its id."""
        used, found = {self.name(entry.token)}, []
        for token, logprob in entry.top:
            name = self.name(token)
            if token != entry.token and name in used:
                name = f"token_id:{token}"
            used.add(name)
            found.append((name, token, logprob))
        return found
