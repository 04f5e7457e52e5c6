"""The configuration of a run, composed of one frozen record per section. Torch-free.

Each record checks its own fields when it is made, so a value that is out of range never exists;
what contradicts another field is refused by `config.checks`.
"""

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal, get_args

from outrider.config.values import check_fields
from outrider.errors import ConfigError

Method = Literal[
    "off",
    "suffix",
    "ngram-cache",
    "draft",
    "suffix+draft",
    "ngram-cache+draft",
    "mtp",
    "eagle3",
    "dflash",
    "dspark",
    "auto",
]
METHODS: tuple[str, ...] = get_args(Method)
NGRAM_METHODS = ("suffix", "ngram-cache")
DRAFT_METHODS = ("draft", "suffix+draft", "ngram-cache+draft")
BLOCK_METHODS = ("dflash", "dspark")
TAP_METHODS = ("mtp", "eagle3", *BLOCK_METHODS)
"""Methods that read the target's hidden states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The authoritative model, by folder, GGUF file, hub `ID@REVISION` or name, and how it is run.

    `exact` None means: on for the CPU, off elsewhere. `max_length` None means the model's own
    context; `threads` None leaves the number of processor threads to torch. `dtype`
    is what weights are rounded to; on a CPU they compute in fp32. `quantize` has no value but
    "none" today.
    `backend` "auto" runs a GGUF file by llama.cpp where that is installed and every setting goes
    with it, and all else by torch; `gpu_layers`, `batch` and `micro_batch` are llama.cpp's n_gpu_
    layers (-1: all), n_batch and n_ubatch.
    """

    path: str = "demo"
    backend: Literal["auto", "torch", "llama.cpp"] = "auto"
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    quantize: Literal["none", "int8"] = "none"
    max_length: int | None = field(default=None, metadata={"low": 2})
    exact: bool | None = None
    threads: int | None = field(default=None, metadata={"low": 1, "high": 1024})
    gpu_layers: int = field(default=0, metadata={"low": -1})
    batch: int = field(default=2048, metadata={"low": 1})
    micro_batch: int = field(default=512, metadata={"low": 1})

    def __post_init__(self) -> None:
        check_fields(self, "target")
        if not self.path.strip():
            raise ConfigError(
                "target.path = '' is empty: name a model folder, a hub ID@REVISION or 'demo'."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyWindowConfig:
    """Windows in flight: rows of one window, windows at once, or a budget of rows instead.

    The pending token takes one row of an epoch's first window, so one row in flight holds no draft.
    `max_tokens` None means: as many as `max_draft_tokens` needs, or 16 where that is "auto" (8
    with several windows in flight).
    """

    max_tokens: int | None = field(default=None, metadata={"low": 1, "high": 1024})
    depth: int = field(default=1, metadata={"low": 1, "high": 64})
    runahead_tokens: int | None = field(default=None, metadata={"low": 1})

    def __post_init__(self) -> None:
        check_fields(self, "speculative.verify_window")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Who drafts and how much.

    `draft_temperature` 0 drafts greedily; above it, drafts are sampled and verified by rejection
    sampling. `min_probability` ends a draft before a token that the drafter thinks less likely.
    """

    method: Method = "suffix"
    draft_model: str | None = None
    draft_temperature: float = field(default=0.0, metadata={"low": 0.0, "high": 100.0})
    ngram_fallback: Literal["none", "draft"] = "none"
    max_draft_tokens: int | Literal["auto"] = field(
        default="auto", metadata={"low": 0, "high": 1023}
    )
    min_probability: float = field(default=0.0, metadata={"low": 0.0, "high": 1.0})
    verify_window: VerifyWindowConfig = field(default_factory=VerifyWindowConfig)

    def __post_init__(self) -> None:
        check_fields(self, "speculative")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateConfig:
    """How a state takes rejected rows back; `capacity` None lets the engine fit the windows.

    `rollback` "auto" is "log", and "snapshots" where llama.cpp runs the target.
    """

    rollback: Literal["auto", "log", "snapshots", "checkpoint"] = "auto"
    capacity: int | None = field(default=None, metadata={"low": 1})

    def __post_init__(self) -> None:
        check_fields(self, "state")

    @property
    def policy(self) -> Literal["log", "snapshots", "checkpoint"]:
        """The policy of torch's states."""
        return "log" if self.rollback == "auto" else self.rollback


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`outrider serve`: where it listens, who may ask, and how much at once.

    `api_key` is one key, or several with commas between them; None lets everyone in.
    `allowed_hosts` are names of this server beside those of loopback, `allowed_origins` the web
    pages elsewhere that may ask (`https://app.example.com`); commas between them, "*" for any.
    `state_mib` bounds the states of running sequences (None: half of the free memory), `prefix_mib`
    what is kept of earlier prompts (0: nothing). `prompt_rows` of a pass go to prompts while others
    decode. `max_connections` are open at once. Times are in seconds: the headers of a request may
    take `header_seconds` to arrive, its body `body_seconds`, all of it `request_seconds`, and it
    has `shutdown_seconds` to finish once the server is told to end. A client that takes nothing of
    its answer for `send_seconds` is hung up on.
    """

    host: str = "127.0.0.1"
    port: int = field(default=8000, metadata={"low": 0, "high": 65535})
    api_key: str | None = None
    allowed_hosts: str | None = None
    allowed_origins: str | None = None
    model_name: str | None = None
    max_sequences: int = field(default=16, metadata={"low": 1, "high": 1024})
    max_queue: int = field(default=64, metadata={"low": 0, "high": 100_000})
    max_body_mib: int = field(default=8, metadata={"low": 1, "high": 1024})
    state_mib: int | None = field(default=None, metadata={"low": 1})
    prefix_mib: int = field(default=256, metadata={"low": 0})
    prompt_rows: int = field(default=64, metadata={"low": 64, "high": 4096})
    request_seconds: float = field(default=600.0, metadata={"low": 0.001})
    max_connections: int = field(default=512, metadata={"low": 1, "high": 100_000})
    send_seconds: float = field(default=30.0, metadata={"low": 0.001})
    header_seconds: float = field(default=10.0, metadata={"low": 0.001})
    body_seconds: float = field(default=30.0, metadata={"low": 0.001})
    shutdown_seconds: float = field(default=20.0, metadata={"low": 0.0})
    log_prompts: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "server")
        if not all(self.keys()):
            raise ConfigError(
                "server.api_key holds an empty key, which would let everyone in: leave it out to "
                "mean that, or give keys with single commas between them."
            )
        if not all(key.isascii() and key.isprintable() for key in self.keys()):
            raise ConfigError(
                "server.api_key holds a character that no client can send in a header: use ASCII "
                "letters, digits and signs."
            )
        self._check_names("allowed_hosts", r"\*|[\w.-]+|\[[0-9A-Fa-f:.]+\]", "names without a port")
        self._check_names(
            "allowed_origins",
            r"\*|[\w+.-]+://[^\s/@?#]+",
            "origins such as https://app.example.com",
        )

    def keys(self) -> tuple[str, ...]:
        """The API keys, none where everyone is let in."""
        return _parts(self.api_key)

    def hosts(self) -> tuple[str, ...]:
        """Allowed host names, in lower case and without brackets."""
        return tuple(name.lower().strip("[]") for name in _parts(self.allowed_hosts))

    def origins(self) -> tuple[str, ...]:
        """Allowed origins, as browsers spell them."""
        return tuple(map(str.lower, _parts(self.allowed_origins)))

    def _check_names(self, name: str, shape: str, meant: str) -> None:
        wrong = [
            part for part in _parts(getattr(self, name)) if not re.fullmatch(shape, part, re.A)
        ]
        if wrong:
            raise ConfigError(
                f"server.{name} holds {wrong[0]!r}: give {meant}, with single commas between "
                "them, or * for any."
            )


def is_loopback(host: str) -> bool:
    """True if an address or name can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _parts(text: str | None) -> tuple[str, ...]:
    """Items between commas; none where there is no text."""
    return () if text is None else tuple(map(str.strip, text.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """One way of the link between two stages, as it is made on one machine: the delay, how far it
    may lie above or below that, and megabits a second (None: no limit)."""

    delay_ms: float = field(default=0.0, metadata={"low": 0.0, "high": 60_000.0})
    jitter_ms: float = field(default=0.0, metadata={"low": 0.0, "high": 60_000.0})
    mbps: float | None = field(default=None, metadata={"low": 0.001})

    def __post_init__(self) -> None:
        check_fields(self, "stages.link")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesConfig:
    """The target's layers cut into `count` stages; `layers` names how many each has, as in "5,3".

    Without `layers` they are cut evenly. `processes` runs each stage in a process of its own, and
    `address` on a Ray cluster ("auto": the one of this machine), where `resources` says what each
    asks for, as in "cpus=4 front=1, cpus=4 gpus=1". `deadline_s` is the longest silence of such
    stages while an answer is owed; one that died or hangs is noticed within `health_s`, and a
    request survives `resumes` of them. `tls` is a folder with ca.pem, cert.pem and key.pem, at the
    same place on each machine.
    """

    count: int = field(default=1, metadata={"low": 1, "high": 64})
    layers: str | None = None
    processes: bool = False
    address: str | None = None
    resources: str | None = None
    tls: str | None = None
    deadline_s: float = field(default=300.0, metadata={"low": 0.1})
    health_s: float = field(default=4.0, metadata={"low": 0.1})
    resumes: int = field(default=2, metadata={"low": 0})
    link: LinkConfig = field(default_factory=LinkConfig)

    def __post_init__(self) -> None:
        check_fields(self, "stages")
        words = self.layers.split(",") if self.layers else []
        if not all(word.strip().isdigit() and int(word) for word in words):
            raise ConfigError(
                f"stages.layers = {self.layers!r} is not a list of layer counts: write 5,3 for "
                "five layers and then three."
            )
        _ = self.wants

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Layers of each stage, where they are named."""
        return tuple(int(word) for word in self.layers.split(",")) if self.layers else None

    @property
    def is_local(self) -> bool:
        """One stage in this process with no link before it."""
        return self.count == 1 and not self.is_apart and self.link == LinkConfig()

    @property
    def is_apart(self) -> bool:
        """True if stages run in processes of their own, here or elsewhere."""
        return self.processes or self.address is not None

    @property
    def wants(self) -> tuple[dict[str, float], ...]:
        """Resources that each stage asks of its machine; the same for all where one is named."""
        found = [_amounts(part) for part in (self.resources or "").split(",")]
        return tuple(found * self.count if len(found) == 1 else found)


def _amounts(text: str) -> dict[str, float]:
    """Amounts by name: "cpus=4 front=1" gives {"cpus": 4.0, "front": 1.0}."""
    found = {}
    for word in text.split():
        name, _, amount = word.partition("=")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if not name or not 0.0 < found[name] < float("inf"):
            raise ConfigError(
                f"stages.resources holds {word!r}, which is no amount: write cpus=4 front=1, with "
                "a comma between stages."
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that a run needs to start."""

    target: TargetConfig = field(default_factory=TargetConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    state: StateConfig = field(default_factory=StateConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    stages: StagesConfig = field(default_factory=StagesConfig)
