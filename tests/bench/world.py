"""A world whose clock moves only as its parts say: a target, a drafter and their prices."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from outrider.bench.legs import Tools
from outrider.bench.workload import Prompt, Workload
from outrider.draft.base import Drafter
from outrider.engine.draft_budget import FixedBudget
from outrider.engine.facade import EngineFacade, Speculation, WindowLimits
from outrider.records import Draft, Needs, Reply

VOCAB = 50
NO_NEEDS = Needs()
PROMPT = tuple((7 * n * n + 3 * n) % VOCAB for n in range(12))


def text(place: int) -> int:
    """The token that the target gives at an absolute position, whatever came before."""
    return (place * place * 13 + place * 5 + place // 7) % VOCAB


@dataclass
class World:
    """Prices in ms; `cold` is what drafting takes more behind a pass of the target, and a pass
    behind drafting; `fold` what a pass takes more for a row that became final before it; `entry`
    what a pass takes more that begins a chunk of 32; `aside` what is done for a row outside of its
    pass; `drift` multiplies every price after each leg-sized stretch of passes."""

    row: float = 0.1
    step: float = 10.0
    draft: float = 0.2
    cold: float = 0.0
    fold: float = 0.0
    entry: float = 0.0
    opening: float = 0.0
    back: float = 0.3
    aside: float = 0.0
    drift_per_pass: float = 0.0
    now: float = 0.0
    passes: int = 0
    drafted: bool | None = None
    slept: list = field(default_factory=list)

    def spend(self, ms: float) -> float:
        ms *= 1 + self.drift_per_pass * self.passes
        self.now += ms / 1e3
        return ms

    def clock(self) -> float:
        return self.now

    def run_draft(self) -> None:
        cold, self.drafted = self.cold * (self.drafted is False), True
        self.spend(self.draft + cold)

    @property
    def tools(self) -> Tools:
        return Tools(clock=self.clock, sleep=self.slept.append, progress=lambda *_: None)

    def run_pass(self, start: int, rows: int, final: int = 0) -> float:
        self.passes += 1
        cold, self.drafted = self.cold * (self.drafted is True), False
        entry = self.entry * (-start % 32 < rows)
        beside = cold + entry + self.fold * final
        return self.spend(self.step + self.row * (rows - 1) + beside)


class ScriptedStage:
    """A target that always says `text`; `fault(rows, place)` may spoil a token."""

    vocab_size, max_length, exact = VOCAB, 4096, True

    def __init__(self, world: World, fault: Callable[[int, int], int] | None = None) -> None:
        self.world, self.fault = world, fault or (lambda rows, place: 0)
        self.lengths: dict[int, int] = {}
        self.floors: dict[int, int] = {}
        self.queue: deque = deque()

    @property
    def num_sessions(self) -> int:
        return len(self.lengths)

    def open(self, session, sampling, prompt_len, taps=()):
        self.lengths[session] = self.floors[session] = 0

    def close(self, session):
        del self.lengths[session]

    def submit(self, window):
        self.world.spend(self.world.aside * len(window.tokens))
        self.queue.append(window)

    def void(self, session, epoch):
        pass

    def check(self):
        pass

    def shutdown(self):
        pass

    def run_ready(self):
        return False

    def run_batch(self):
        replies = [self._answer(window) for window in self.queue]
        self.queue.clear()
        return replies

    def _answer(self, window) -> Reply:
        length = self.lengths[window.session]
        assert window.start <= length
        back = self.world.spend(self.world.back) if window.start < length else 0.0
        rows = len(window.tokens)
        final = window.floor - self.floors[window.session]
        ms = self.world.run_pass(window.start, rows, final)
        self.floors[window.session] = window.floor
        self.lengths[window.session] = window.end
        wanted = range(window.end - window.wanted + 1, window.end + 1)
        return Reply(
            session=window.session,
            id=window.id,
            tokens=tuple((text(place) + self.fault(rows, place)) % VOCAB for place in wanted),
            verify_ms=ms,
            rollback_ms=back,
            rollback="log" if back else None,
        )


@dataclass
class ScriptedDrafter(Drafter):
    """Knows the text; the draft at place `wrong` is wrong; every `silent`-th round it is silent,
    and in its round `broken` it fails."""

    world: World
    name: str = "suffix"
    wrong: int | None = None
    silent: int = 0
    broken: int | None = None
    known: Callable[[int], int] = text
    rounds: int = 0
    needs: Needs = NO_NEEDS

    def propose(self, context, budget):
        self.world.run_draft()
        self.world.spend(0 if self.rounds else self.world.opening)
        self.rounds += 1
        if self.rounds == self.broken:
            raise RuntimeError("planted")
        if self.silent and self.rounds % self.silent == 0:
            return None
        tokens = [self.known(len(context) + place) for place in range(budget)]
        if self.wrong is not None and self.wrong < budget:
            tokens[self.wrong] = (tokens[self.wrong] + 1) % VOCAB
        return Draft(tokens=tuple(tokens), source=self.name)


class Letters:
    """A tokenizer of numbers written as text."""

    spelling = None

    end_tokens: frozenset[int] = frozenset()

    def encode(self, text, *, add_special=True, most=None):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return "".join(f"{token} " for token in ids)


def make_engine(stage, drafter, *, tokens=4, width=None, depth=1, method="suffix") -> EngineFacade:
    """The real engine over scripted parts."""
    return EngineFacade(
        stage,
        Letters(),
        Speculation(
            method=method,
            drafter=lambda sampling, budget: drafter(),
            budget=lambda: FixedBudget(tokens),
            windows=WindowLimits(width=width or tokens + 1, depth=depth),
        ),
    )


def make_workload(count=3) -> Workload:
    prompts = [
        Prompt(id=f"p{n}", text=" ".join(map(str, PROMPT[: len(PROMPT) - n])), category=f"c{n % 2}")
        for n in range(count)
    ]
    return Workload(name="scripted", prompts=tuple(prompts))


def module_clock(world: World) -> SimpleNamespace:
    """Stands in for the `time` module."""
    return SimpleNamespace(perf_counter=world.clock, sleep=world.slept.append)
