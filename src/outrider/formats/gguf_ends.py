"""The tokens that end a generation of a GGUF file, found as llama.cpp finds them.

A file names one end (eos) and seldom the others, so llama.cpp knows the ends of turn and of
message, and what may not follow a filled-in middle, by their texts.
"""

from collections.abc import Mapping, Sequence

from outrider.formats.gguf_file import GgufFile

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
