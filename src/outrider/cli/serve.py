"""`outrider serve`: an OpenAI-compatible server on one model."""

from dataclasses import dataclass

from outrider.cli.flags import RunFlags, flag, with_flags
from outrider.cli.requests import show_config
from outrider.cli.terminal import busy, say
from outrider.config.settings import ServerConfig, is_loopback
from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """Where the server listens and how much it takes on."""

    host: str | None = flag("Where to listen (127.0.0.1).", "ADDRESS")
    port: int | None = flag("0 takes a free one (8000).", "N")
    api_key: str | None = flag("Ask for this key; several with commas between.", "KEY")
    model_name: str | None = flag("What clients call the model.", "NAME")
    max_sequences: int | None = flag("Sequences that run at once (16).", "N")
    print_config: bool = flag("Print every setting and where it came from.", default=False)


@with_flags(flags=ServeFlags, run=RunFlags)
def serve(*, flags: ServeFlags, run: RunFlags) -> None:
    """Serve the model over HTTP, as OpenAI's API does; the page at / shows speculation at work."""
    own = ("host", "port", "api_key", "model_name", "max_sequences")
    loaded = run.load({f"--{name.replace('_', '-')}": getattr(flags, name) for name in own})
    if flags.print_config:
        show_config(loaded)
        return
    config = loaded.config
    _warn(config.server)
    try:
        from outrider.server.listen import bind
        from outrider.server.listen import serve as listen
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"outrider serve needs the library {error.name}: pip install 'outrider[server]'."
        ) from None
    from outrider.assemble.engine import load_scheduler

    with bind(config.server.host, config.server.port) as sock:
        with busy(f"loading {config.target.path}"):
            scheduler = load_scheduler(config)
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(f"outrider: serving {config.target.path} on http://{shown}:{port}")
        listen(scheduler, config, sock)


def _warn(server: ServerConfig) -> None:
    if not is_loopback(server.host) and not server.keys():
        say(
            f"outrider: warning: server.host = {server.host!r} can be reached from other machines "
            "and server.api_key is not set: everyone who reaches it is let in."
        )
