"""The tokenizer in a GGUF file's metadata, rebuilt as the original tokenizer.json describes it.

GGUF names a pre-tokenizer where the original spells its rules out; each name that is known here
stands for the rules of the tokenizer that it came from, normalisation included. Others are refused:
a nearly right rule would change a few ids in a thousand and no one would notice.

A file names one end of a generation (eos) and seldom the others, so ends of turn and of message,
and tokens that may not follow a filled-in middle, are found by their texts, as llama.cpp does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from outrider.errors import CheckpointError
from outrider.formats.chat_template import ChatTemplate
from outrider.formats.gguf_file import GgufFile
from outrider.formats.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
KEYS = ("eos", "eot", "eom")
DEFAULTS: Mapping[str, Mapping[str, int]] = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
"""Ids by tokenizer model where a file names none: what llama.cpp takes SentencePiece's to be."""
TEXTS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"}
    | {"<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_utterance>"}
    | {"<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>", "<|tool_response>", "[e~["}
    | {"<\uff5cend▁of▁sentence\uff5c>"}  # DeepSeek's bars are of full width
)
PLAIN = frozenset({"</s>", "<eos>"})
"""Texts that a vocabulary may hold as mere text, as HTML's end of struck-out words: ends only
where they are control tokens. llama.cpp takes them in any case."""
MIDDLES: Mapping[str, frozenset[str]] = {
    "fim_pad": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep": frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    "fim_sep": frozenset({"<|file_sep|>"}),
}
"""Marks around filled-in middles, by the key that names one of them."""


def token_id(file: GgufFile, tokens: Sequence[str], key: str) -> int | None:
    """The id that a file, or else its kind of tokenizer, gives to a role; None where neither does.

    Raises CheckpointError for an id that is none of `tokens`.
    """
    name = f"{PREFIX}{key}_token_id"
    if name not in file.values:
        default = DEFAULTS.get(file.text(f"{PREFIX}model"), {}).get(key)
        return default if default is not None and default < len(tokens) else None
    if (found := file.number(name)) >= len(tokens):
        raise file.fault(f"{name} = {found} is not among {len(tokens)} tokens: convert it anew.")
    return found


def end_tokens(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> frozenset[int]:
    """Ids that end a generation, by the file's keys and by their texts among `tokens`.

    types: of the tokens, as `tokenizer.ggml.token_type` has them.
    """
    typed = any(kind != NORMAL for kind in types)
    ids = {token: at for at, token in enumerate(tokens)}
    ends = {ids[text] for text in TEXTS & ids.keys()}
    ends |= {ids[text] for text in PLAIN & ids.keys() if not typed or types[ids[text]] == CONTROL}
    ends |= {at for key in KEYS if (at := token_id(file, tokens, key)) is not None}
    for key, texts in MIDDLES.items():
        named = token_id(file, tokens, key)
        ends |= {ids[text] for text in texts & ids.keys()} if named is None else {named}
    return frozenset(ends - {ids[text] for text in _inner(ids, ends)})


def _inner(ids: Mapping[str, int], ends: set[int]) -> set[str]:
    """Texts that end a part of an answer, beside the ones that end it."""
    found = {text for text, at in ids.items() if at in ends}
    inner = set()
    if found & {"<|call|>", "<|calls|>"} and found & {"<|return|>", "<|flush|>"}:
        inner |= found & {"<|end|>"}  # of one message of several: gpt-oss, Solar
    if "<|tool_response>" in found:
        inner |= found & {"</s>"}  # text of Gemma 4
    return inner


def as_control(tokens: Sequence[str], types: Sequence[int], ends: frozenset[int]) -> list[int]:
    """`types` with every end that is known by its text a control token, whatever the file says.

    A converter that forgot the type would else have such a token taken apart in a prompt.
    """
    known = TEXTS.union(*MIDDLES.values())
    return [
        CONTROL if at in ends and token in known else kind
        for at, (token, kind) in enumerate(zip(tokens, types, strict=True))
    ]


Merges = list[tuple[str, str]]

NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
SPACE = "▁"

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{digits}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{REST}"
)
LLAMA3 = WORDS.replace("{digits}", "{1,3}")
QWEN2 = WORDS.replace("{digits}", "")
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{REST}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Meaning of a pre-tokenizer name; `splits` are applied one after the other."""

    splits: tuple[str, ...]
    compose: bool = False
    whole_words_first: bool = False
    add_bos: bool = False


DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
RULES: Mapping[str, Rule] = {
    "default": Rule(splits=DEFAULT),
    "gpt-2": Rule(splits=(GPT2,)),
    "smollm": Rule(splits=(r"\p{N}", GPT2)),
    "starcoder": Rule(splits=(r"\p{N}", GPT2)),
    "llama-bpe": Rule(splits=(LLAMA3,), whole_words_first=True, add_bos=True),
    "smaug-bpe": Rule(splits=(LLAMA3,)),
    "qwen2": Rule(splits=(QWEN2,), compose=True),
    "qwen35": Rule(splits=(QWEN35,), compose=True),
}


def read_gguf_tokenizer(file: GgufFile) -> Tokenizer:
    """Rebuild a file's tokenizer; CheckpointError names the model or rule that is not known."""
    kind = file.text(f"{PREFIX}model")
    if kind not in BUILDERS:
        raise file.fault(
            f"{PREFIX}model {kind!r} is not supported; supported are {', '.join(BUILDERS)}."
        )
    tokens = _tokens(file)
    types = _types(file, tokens)
    ends = end_tokens(file, tokens, types)
    try:
        backend = BUILDERS[kind](file, tokens)
        _add_tokens(backend, tokens, as_control(tokens, types, ends))
    except CheckpointError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise file.fault(
            f"the tokenizer in its metadata contradicts itself ({error}): convert the model anew."
        ) from None
    named = {name: _token(file, tokens, key) for name, key in NAMED.items()}
    special = {name: token for name, token in named.items() if token is not None}
    return Tokenizer(
        backend,
        special_tokens=special,
        end_tokens=ends,
        template=_template(file, special),
        origin=str(file.path),
    )


def _tokens(file: GgufFile) -> list[str]:
    tokens = file.texts(f"{PREFIX}tokens")
    if len(set(tokens)) != len(tokens):
        raise file.fault(f"{PREFIX}tokens holds a token twice: convert it anew.")
    return tokens


def _types(file: GgufFile, tokens: Sequence[str]) -> list[int]:
    key = f"{PREFIX}token_type"
    if key not in file.values:
        return [NORMAL] * len(tokens)
    types = [int(kind) for kind in file.numbers(key)]
    _check_length(file, key, types, tokens)
    return types


def _check_length(
    file: GgufFile, key: str, values: Sequence[object], tokens: Sequence[str]
) -> None:
    if len(values) != len(tokens):
        raise file.fault(
            f"{key} has {len(values)} items for {len(tokens)} tokens: convert it anew."
        )


def _token(file: GgufFile, tokens: Sequence[str], key: str) -> str | None:
    found = token_id(file, tokens, key)
    return None if found is None else tokens[found]


def _add_tokens(backend: Backend, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control tokens are found in text and left out of it; user-defined ones only found."""
    kinds = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    for token, kind in zip(tokens, types, strict=True):
        if kind in kinds and token:
            backend.add_tokens([AddedToken(token, special=kinds[kind], normalized=False)])


def _template(file: GgufFile, special: Mapping[str, str]) -> ChatTemplate | None:
    if "tokenizer.chat_template" not in file.values:
        return None
    return ChatTemplate(file.text("tokenizer.chat_template"), special, str(file.path))


def _byte_level(file: GgufFile, tokens: Sequence[str]) -> Backend:
    """Byte-level BPE as GPT-2 introduced it, under the rule that the file names."""
    rule = _rule(file)
    merges = [_pair(file, merge) for merge in file.texts(f"{PREFIX}merges")]
    backend = _pairs_of(tokens, merges, ignore_merges=rule.whole_words_first)
    splits: list[Any] = [
        pre_tokenizers.Split(Regex(split), behavior="isolated") for split in rule.splits
    ]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    if rule.compose:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    _frame(backend, file, tokens, add_bos=rule.add_bos)
    return backend


def _rule(file: GgufFile) -> Rule:
    name = file.text(f"{PREFIX}pre")
    if name not in RULES:
        raise file.fault(
            f"{PREFIX}pre {name!r} is not supported; supported are {', '.join(RULES)}."
        )
    return RULES[name]


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise file.fault(f"{PREFIX}merges holds {merge!r}, which is no pair: convert it anew.")
    return left, right


def _frame(backend: Backend, file: GgufFile, tokens: Sequence[str], *, add_bos: bool) -> None:
    """Have BOS and EOS put around a text where the file, or else its kind, says so."""
    ids: dict[str, int] = {}
    for key, wanted in (("bos", add_bos), ("eos", False)):
        found = token_id(file, tokens, key)
        if file.values.get(f"{PREFIX}add_{key}_token", wanted) and found is not None:
            ids[key] = found
    if ids:
        before, after = ([tokens[ids[key]]] if key in ids else [] for key in ("bos", "eos"))
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(tokens[at], at) for at in ids.values()],
        )


def _pairs_of(tokens: Sequence[str], merges: Merges, **options: Any) -> Backend:
    """Byte-pair encoding with the file's ids."""
    ids = {token: at for at, token in enumerate(tokens)}
    return Backend(models.BPE(vocab=ids, merges=merges, **options))


def _sentence_pieces(file: GgufFile, tokens: Sequence[str]) -> Backend:
    """SentencePiece BPE: spaces are a letter, unknown characters their bytes, scores an order."""
    unknown = _token(file, tokens, "unknown")
    merges = _ordered_merges(file, tokens)
    kind = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    backend = _pairs_of(tokens, merges, **kind)
    prefix = bool(file.values.get(f"{PREFIX}add_space_prefix", True))
    start = [normalizers.Prepend(SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*start, normalizers.Replace(" ", SPACE)])
    end = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *end]
    )
    _frame(backend, file, tokens, add_bos=True)
    return backend


def _ordered_merges(file: GgufFile, tokens: Sequence[str]) -> Merges:
    """Every way to make a token of two others, best score first."""
    key = f"{PREFIX}scores"
    scores = file.numbers(key)
    _check_length(file, key, scores, tokens)
    ids = {token: at for at, token in enumerate(tokens)}
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        cuts = ((token[:cut], token[cut:]) for cut in range(1, min(len(token), MOST_PIECE)))
        pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, pair) for pair in pairs]
    merges.sort(key=lambda merge: -merge[0])
    return [pair for _, pair in merges]


MOST_PIECE = 256
BUILDERS: Mapping[str, Callable[[GgufFile, Sequence[str]], Backend]] = {
    "gpt2": _byte_level,
    "llama": _sentence_pieces,
}
