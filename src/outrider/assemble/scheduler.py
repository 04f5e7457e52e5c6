"""From a configuration to a scheduler: an engine that many callers share."""

from outrider.assemble.engine import Engine
from outrider.assemble.memory_check import free_bytes, held_bytes
from outrider.config.settings import RunConfig
from outrider.engine.prefix import PrefixCache
from outrider.engine.scheduler import Admission, Scheduler

UNKNOWN_MEMORY = 4 * 2**30
"""Bytes for states where the system does not say what is free."""


def load_scheduler(config: RunConfig) -> Scheduler:
    """Load an engine and start its thread; half of what memory is free may hold states."""
    server = config.server
    engine = _load(config)
    specs = engine.specs
    free = (free_bytes() or UNKNOWN_MEMORY) // 2
    admission = Admission(
        max_sequences=server.max_sequences,
        max_queue=server.max_queue,
        max_bytes=free if server.state_mib is None else server.state_mib << 20,
        prompt_rows=server.prompt_rows,
        state_bytes=lambda length: sum(held_bytes(spec, length) for spec in specs),
    )
    return Scheduler(engine, engine.tokenizer, admission, remake=lambda: _load(config))


def _load(config: RunConfig) -> Engine:
    """The engine with its cache of prompts."""
    server = config.server
    engine = Engine.load_run(config, server.max_sequences)
    if server.prefix_mib and engine.stage.has_snapshots:
        engine.prefixes = PrefixCache(engine.stage, server.prefix_mib << 20)
    return engine
