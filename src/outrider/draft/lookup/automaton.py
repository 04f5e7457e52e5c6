"""A suffix automaton over a growing token list (Blumer et al. 1985).

Knows every substring of the tokens appended so far: `follow` finds the longest suffix of anything
that occurs in them in amortised constant time per token. Appending is amortised constant too.
States and transitions live in flat arrays, and only states with several transitions own a dict,
so a token costs about 150 bytes.
"""

from array import array

ROOT = 0
_NONE = -1


class SuffixAutomaton:
    """Substrings of the tokens from absolute position `base` on, each with a recent occurrence.

    `end[state]` is the position of the last token of an occurrence of the state's substrings.
    Appending refreshes it for the `refreshed` longest suffixes that occurred before, so it is the
    most recent occurrence unless a suffix was never among the longest ones when it occurred.
    """

    def __init__(self, base: int, *, refreshed: int = 16) -> None:
        self.base = base
        self.size = 0
        self.length = array("q", [0])
        self.end = array("q", [base - 1])
        self.match = ROOT
        """State of the longest suffix of the tokens that occurred before; its `length` counts."""
        self.match_end = base - 1
        """Where that earlier occurrence ends."""
        self._refreshed = refreshed
        self._link = array("q", [_NONE])
        self._token = array("q", [_NONE])
        self._target = array("q", [_NONE])
        self._more: dict[int, dict[int, int]] = {}
        self._last = ROOT

    def append(self, token: int) -> None:
        """Add the token that stands at position `base + size`."""
        position = self.base + self.size
        self.size += 1
        state = self._add_state(self.length[self._last] + 1, position)
        self._link[state] = self._link_for(state, token)
        self._last = state
        self.match = self._link[state]
        self.match_end = self.end[self.match]
        self._refresh(self.match, position)

    def step(self, state: int, token: int) -> int:
        """Return the state after `token`, or -1 if no occurrence of `state` goes on with it."""
        if self._token[state] == token:
            return self._target[state]
        more = self._more.get(state)
        return _NONE if more is None else more.get(token, _NONE)

    def follow(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Return (state, length) of the longest suffix of (`matched` tokens + `token`) known.

        The first `matched` tokens are the suffix of that length that `state` stands for.
        """
        target = self.step(state, token)
        while target == _NONE and state != ROOT:
            state = self._link[state]
            matched = self.length[state]
            target = self.step(state, token)
        return (ROOT, 0) if target == _NONE else (target, matched + 1)

    def _add_state(self, length: int, end: int) -> int:
        self.length.append(length)
        self.end.append(end)
        self._link.append(ROOT)
        self._token.append(_NONE)
        self._target.append(_NONE)
        return len(self.length) - 1

    def _link_for(self, state: int, token: int) -> int:
        """Lead all suffixes that never went on with `token` to `state`; return its suffix link."""
        at = self._last
        while at != _NONE and self.step(at, token) == _NONE:
            self._set(at, token, state)
            at = self._link[at]
        if at == _NONE:
            return ROOT
        target = self.step(at, token)
        if self.length[target] == self.length[at] + 1:
            return target
        return self._split(at, token, target)

    def _split(self, at: int, token: int, target: int) -> int:
        """Cut the substrings of at most `length[at] + 1` tokens out of `target`; return them."""
        clone = self._add_state(self.length[at] + 1, self.end[target])
        self._link[clone] = self._link[target]
        self._token[clone], self._target[clone] = self._token[target], self._target[target]
        if target in self._more:
            self._more[clone] = self._more[target].copy()
        self._link[target] = clone
        while at != _NONE and self.step(at, token) == target:
            self._set(at, token, clone)
            at = self._link[at]
        return clone

    def _set(self, state: int, token: int, target: int) -> None:
        if self._token[state] in (_NONE, token):
            self._token[state], self._target[state] = token, target
        else:
            self._more.setdefault(state, {})[token] = target

    def _refresh(self, state: int, position: int) -> None:
        for _ in range(self._refreshed):
            if state == ROOT:
                return
            self.end[state] = position
            state = self._link[state]
