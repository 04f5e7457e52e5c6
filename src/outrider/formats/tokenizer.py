"""Text to token ids and back, from the `tokenizer.json` of a model folder.

The only file that knows the `tokenizers` library. What Hugging Face adds around that file is
followed where it changes ids, which is added tokens; BOS and EOS around a text are what the
post-processor of `tokenizer.json` says, and `add_bos_token` beside it counts no more than there.
Clean-up of spaces on decoding is left out, since text must come out of tokens piece by piece.
"""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from outrider.errors import CheckpointError, LengthError, RequestError
from outrider.formats.chat_template import ChatTemplate, Message, find_template
from outrider.formats.files import read_json_or_empty
from outrider.formats.spelling import Coverage, Spelling, TokenBytes, find_coverage

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json", "vocab.txt")


class Tokenizer:
    """Encodes, decodes and renders chats for one model; immutable once loaded."""

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str],
        end_tokens: Iterable[int],
        template: ChatTemplate | None,
        origin: str,
    ) -> None:
        """Wrap a prepared backend; callers use `load`."""
        self.backend = backend
        self._template = template
        self._origin = origin
        self.end_tokens = frozenset(end_tokens)
        self.bos = _id(backend, special_tokens.get("bos_token"))
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.coverage = _coverage(backend)
        added = backend.get_added_tokens_decoder()
        self._special = {at: token.content for at, token in added.items() if token.special}
        decoder = backend.decoder
        self._spelling = Spelling.of(json.loads(decoder.__getstate__()) if decoder else None)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a folder's tokenizer, special tokens, end tokens and chat template.

        Raises CheckpointError where a file is missing, damaged or contradicts another.
        """
        config = read_json_or_empty(folder / "tokenizer_config.json")
        backend = _read_backend(folder)
        try:
            special_tokens = _special_tokens(folder, config)
            _add_tokens(backend, config, special_tokens, folder)
            end_tokens = frozenset(_end_tokens(folder, backend, special_tokens))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"The tokens of {folder} are declared in a form that is not known "
                f"({type(error).__name__}: {error}): fetch its tokenizer_config.json again."
            ) from None
        found = find_template(folder, config)
        return cls(
            backend,
            special_tokens=special_tokens,
            end_tokens=end_tokens,
            template=ChatTemplate(found[0], special_tokens, found[1]) if found else None,
            origin=str(folder),
        )

    def encode(self, text: str, *, add_special: bool = True, most: int | None = None) -> list[int]:
        """Token ids of `text`; `add_special` adds what the model expects around it (BOS).

        Raises LengthError, before anything is encoded, where the text is so long that it must have
        `most` tokens or more. Other threads run meanwhile.
        """
        least = self.coverage.least_tokens(text) if self.coverage else 0
        if most is not None and least >= most:
            raise LengthError(
                f"the prompt has {least} tokens or more and the context {most}: shorten it, or "
                "raise target.max_length where the model allows."
            )
        # `encode` holds the interpreter's lock all the while and counts offsets that nobody reads.
        found = self.backend.encode_batch_fast([text], add_special_tokens=add_special)
        ids: list[int] = found[0].ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no complete character become U+FFFD."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token(self, token_id: int) -> str:
        """A token as the vocabulary spells it; raises RequestError for an id that has none."""
        token = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            raise RequestError(
                f"Token id {token_id} is not in the vocabulary of {self._origin}: use an id below "
                f"{self.vocab_size}."
            )
        return str(token)

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that a token adds to the text of `decode`, parts of characters as they are.

        All of a text's tokens joined are its UTF-8, with the space in front that some decoders
        strip. Empty for ids that have no token and, with `skip_special`, for special tokens.
        """
        if token_id in self._special:
            return b"" if skip_special else self._special[token_id].encode()
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._spelling is None:  # The decoder sets tokens apart: what a second one adds.
            return self.decode([token_id] * 2)[len(self.decode([token_id])) :].encode()
        return self._spelling.bytes_of(token)

    @cached_property
    def spelling(self) -> TokenBytes | None:
        """The bytes of each token, special ones silent; None where texts are more than these."""
        known = self._spelling
        if known is None or known.strip is None:
            return None
        return TokenBytes(self.token_bytes, known.strip)

    def token_name(self, token_id: int) -> str:
        """A token's text as log-probabilities name it, no two tokens alike.

        `bytes:\\xe2` for parts of characters, and for a token whose text is another's too (the byte
        `<0x41>` beside the letter A); `token_id:7` for an id that has no token.
        """
        raw = self.token_bytes(token_id, skip_special=False)
        if not raw:
            return f"token_id:{token_id}"
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return escaped(raw)
        spelled = self._spelling.of_text(text) if self._spelling else text
        owner = self.backend.token_to_id(spelled)
        return text if owner in (None, token_id) else escaped(raw)

    def vocabulary(self) -> dict[int, str]:
        """Every id with its token as the vocabulary spells it, added tokens included."""
        tokens = self.backend.get_vocab(with_added_tokens=True)
        return {token_id: token for token, token_id in tokens.items()}

    @property
    def has_chat_template(self) -> bool:
        """True if `render_chat` can work."""
        return self._template is not None

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        **variables: Any,
    ) -> str:
        """Prompt text of a conversation; a variable that is None is left to the template.

        Raises CheckpointError where the model has no chat template, RequestError for messages
        that the template refuses.
        """
        if self._template is None:
            raise CheckpointError(
                f"{self._origin} has no chat template: use a chat model, or give a plain prompt "
                "without --chat."
            )
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, **variables
        )

    def encode_chat(
        self, messages: Sequence[Message], *, most: int | None = None, **options: Any
    ) -> list[int]:
        """Token ids of a conversation; `most` as for `encode`, options as for `render_chat`.

        The template writes BOS itself where the model wants one, so none is added.
        """
        return self.encode(self.render_chat(messages, **options), add_special=False, most=most)


def escaped(raw: bytes) -> str:
    """Bytes as a name, in the form that OpenAI's log-probabilities have."""
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _read_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(_missing(folder))
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path} is not a tokenizer file ({error}): fetch it again."
        ) from None
    backend.no_truncation()
    backend.no_padding()
    return backend


def _coverage(backend: Backend) -> Coverage | None:
    added = backend.get_added_tokens_decoder().values()
    normalizer = backend.normalizer
    spelled = [normalizer.normalize_str(one.content) for one in added] if normalizer else []
    return find_coverage(
        backend.model,
        [*backend.get_vocab(with_added_tokens=True), *spelled],
        _described(normalizer),
        _described(backend.pre_tokenizer),
        strips=any(one.lstrip or one.rstrip for one in added),
    )


def _described(part: Any) -> dict[str, Any] | None:
    """A part of the backend as `tokenizer.json` writes it."""
    return None if part is None else json.loads(part.__getstate__())


def _missing(folder: Path) -> str:
    slow = [name for name in _SLOW_FILES if (folder / name).exists()]
    if slow:
        return (
            f"{folder} has {slow[0]} but no tokenizer.json: convert it once with transformers, "
            f"AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    return f"{folder} has no tokenizer.json: copy it from the model that this folder came from."


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Name to text (`bos_token` to `<s>`), tokenizer_config.json before special_tokens_map.json."""
    fallback = read_json_or_empty(folder / "special_tokens_map.json")
    named = {name: config.get(name, fallback.get(name)) for name in _SPECIAL}
    return {name: _content(token) for name, token in named.items() if token is not None}


def _content(token: object) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _id(backend: Backend, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _add_tokens(
    backend: Backend, config: Mapping[str, Any], special_tokens: Mapping[str, str], folder: Path
) -> None:
    """Add what tokenizer_config.json declares beyond tokenizer.json, each at its declared id."""
    declared = config.get("added_tokens_decoder", {})
    for token_id, spec in sorted(declared.items(), key=lambda item: int(item[0])):
        if backend.token_to_id(spec["content"]) is None:
            backend.add_tokens([_added(spec)])
        if (found := backend.token_to_id(spec["content"])) != int(token_id):
            raise CheckpointError(
                f"{folder / 'tokenizer_config.json'} puts {spec['content']!r} at id {token_id}, "
                f"tokenizer.json at {found}: fetch both files from one revision."
            )
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token in special_tokens.values():
        if token not in known and backend.token_to_id(token) is not None:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])


def _added(spec: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(spec["content"], **{flag: spec[flag] for flag in flags if flag in spec})


def _end_tokens(folder: Path, backend: Backend, special_tokens: Mapping[str, str]) -> Iterable[int]:
    """Union of the end tokens of generation_config.json, config.json and the tokenizer."""
    config = read_json_or_empty(folder / "config.json")
    holders = (
        read_json_or_empty(folder / "generation_config.json"),
        config,
        config.get("text_config") or {},
    )
    for holder in holders:
        value = holder.get("eos_token_id")
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None:
                yield operator.index(token_id)
    token = special_tokens.get("eos_token")
    if token is not None:
        yield _known(backend, "eos_token", token, folder)


def _known(backend: Backend, name: str, token: str, folder: Path) -> int:
    token_id = backend.token_to_id(token)
    if token_id is None:
        raise CheckpointError(
            f"{name} = {token!r} of {folder} is not in tokenizer.json: fetch both from one "
            "revision."
        )
    return int(token_id)
