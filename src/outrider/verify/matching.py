"""Sample-and-match, for deterministic drafts: draw the target's token and compare.

For a draft that was not sampled this *is* the rejection sampler: it is accepted with the target's
probability of it, and what is drawn otherwise has the right distribution. Since the number used
at a position depends on seed and position only, the tokens equal those of plain decoding.
"""

from outrider.sampling.counts import TokenCounts
from outrider.sampling.logits import distribution
from outrider.sampling.params import SamplingParams
from outrider.sampling.rng import Key, Purpose
from outrider.verify.rows import Rows, judge_in_turn


def pick(rows: Rows, sampling: SamplingParams, key: Key, counts: TokenCounts | None) -> list[int]:
    """See `verify.rows.Pick`."""

    def judge(row: int) -> int:
        found = distribution(rows.logits[row], sampling, counts)
        return found.draw(key.uniform(rows.position + row, Purpose.TARGET))

    return judge_in_turn(rows, counts, judge)
