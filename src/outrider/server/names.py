"""How tokens are told in log-probabilities: names, bytes, and where their texts begin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.engine.scheduler import ChatTokenizer, Scheduler, TokenLogprob


@dataclass(slots=True)
class Names:
    """Names and bytes of tokens, each worked out once: as many entries as the vocabulary at most.

    May be used by several threads, which at worst work out the same.
    """

    tokenizer: ChatTokenizer
    _names: dict[int, str] = field(default_factory=dict)
    _bytes: dict[int, list[int]] = field(default_factory=dict)

    def name(self, token: int) -> str:
        """The token's text, or what stands for it where that is no text."""
        found = self._names.get(token)
        if found is None:
            found = self._names[token] = self.tokenizer.token_name(token)
        return found

    def bytes(self, token: int) -> list[int]:
        """What the token adds to the text; nothing where the text leaves it out."""
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


def prompt_offsets(scheduler: Scheduler, tokens: Sequence[int], text: str) -> list[int]:
    """Where each token of a prompt begins in its `text`, as it is given back.

    A token in the midst of a character begins where the character does. Special tokens have the
    width that they have in a prompt given as text, and none otherwise. Where a tokenizer changed
    the text before it cut it (normal forms), offsets are right before the first change and after
    the last.
    """
    spell = scheduler.speller(())
    spelled = scheduler.tokenizer.decode(tokens) == text
    width: Callable[[int, int], str] = (lambda _, __: "") if spelled else _special(scheduler, text)
    offsets, parts, position = [], [], 0
    for token in tokens:
        offsets.append(position)
        part = spell(token) or width(token, position)
        parts.append(part)
        position += len(part)
    built = "".join(parts)
    if text.startswith(built):
        return offsets
    pairs = enumerate(zip(built, text, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), len(text))
    more = len(text) - len(built)
    return [at if at <= same else max(same, at + more) for at in offsets]


def _special(scheduler: Scheduler, text: str) -> Callable[[int, int], str]:
    """A function that gives the text of a special token that was written at a place in `text`."""
    tokenizer = scheduler.tokenizer

    def written(token: int, position: int) -> str:
        if tokenizer.token_bytes(token):
            return ""
        content = tokenizer.token_bytes(token, skip_special=False).decode()
        return content if content and text.startswith(content, position) else ""

    return written
