"""Parity of tokenizer and chat with transformers, and the sentence for each broken folder."""

import json
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from outrider.errors import CheckpointError, RequestError
from outrider.formats.tokenizer import Tokenizer
from outrider.sampling.params import SamplingParams, sampling_defaults

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["def fib(n):\n    return n if n < 2 else fib(n - 1)\n", "user assistant system Grüße"]
TEXTS = [
    "def fib(n): return n",
    "  two  spaces\n\ttab",
    "Grüße 🙂 漢字",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    "</s> inside",
]
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\n\n</think>\n\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)
BOS_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('system message must come first') }}{% endif %}"
    "{% generation %}[{{ m['role'] | upper }}] {{ m['content'] | trim }}{% endgeneration %}"
    "{% if loop.last %}{% break %}{% endif %}{{ eos_token }}\n{% endfor %}"
    "{{ {'a': '<é>', 'b': [1, 2]} | tojson }}{{ strftime_now('%Y') }}"
)
CHATS = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " fib? "}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b 🙂"},
        {"role": "user", "content": "c"},
    ],
]


@pytest.fixture(scope="module")
def vocabulary() -> str:
    """A byte-level BPE tokenizer of a few hundred tokens, as JSON."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend.to_str()


@pytest.fixture
def folder(tmp_path, vocabulary):
    """Make a model folder: `bos` puts BOS into the post-processor, the rest is configuration."""

    def make(*, bos: bool = False, files: dict[str, dict] | None = None, **config) -> Path:
        backend = Backend.from_str(vocabulary)
        if bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
            )
        backend.save(str(tmp_path / "tokenizer.json"))
        base = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "<|im_end|>",
        }
        for name, value in ({"tokenizer_config.json": base | config} | (files or {})).items():
            (tmp_path / name).write_text(json.dumps(value))
        return tmp_path

    return make


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bos": True},
        {"add_bos_token": True},
        {"bos": True, "add_bos_token": False},
        {"add_bos_token": True, "add_eos_token": True},
        {"bos": True, "bos_token": {"content": "<s>", "__type": "AddedToken"}},
        {
            "added_tokens_decoder": {
                "309": {"content": "<think>", "special": False},
                "310": {"content": "<|tool|>", "special": True},
            }
        },
    ],
)
def test_ids_and_text_equal_transformers(folder, settings):
    path = folder(**settings)
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    for text in [*TEXTS, "<think> a <|tool|>b"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
    assert ours.bos == theirs.bos_token_id
    assert ours.vocab_size == len(theirs)


def qwen_style() -> Backend:
    """NFC, the Qwen pattern, byte-level BPE: as in Qwen2 to Qwen3.5 folders."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False)
    return backend


def llama_style() -> Backend:
    """SentencePiece BPE with bytes as a last resort and BOS: as in Llama 2 and Mistral folders."""
    backend = Backend(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


@pytest.mark.parametrize(
    ("style", "kind", "alphabet"),
    [
        (qwen_style, "Qwen2Tokenizer", pre_tokenizers.ByteLevel.alphabet()),
        (llama_style, "PreTrainedTokenizerFast", []),
    ],
)
def test_real_families_equal_transformers(tmp_path, style, kind, alphabet):
    backend = style()
    bytes_ = [] if alphabet else [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *bytes_],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    if not alphabet:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    plain = json.loads(backend.to_str())
    plain["added_tokens"] = [token for token in plain["added_tokens"] if token["id"] < 3]
    (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    named = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named | {"pad_token": "</s>"}))
    ours, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "e\u0301 \ufb01", "12345 don't\r\n\r\nx"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)


def test_text_survives_a_round_trip(folder):
    tokenizer = Tokenizer.load(folder(bos=True))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special=False), skip_special=False) == (
            text
        )
    assert tokenizer.token(tokenizer.bos) == "<s>"


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("template", [CHATML, BOS_TEMPLATE])
@pytest.mark.parametrize("chat", CHATS)
def test_chats_equal_transformers(folder, bos, template, chat):
    path = folder(bos=bos, chat_template=template)
    ours, theirs = Tokenizer.load(path), AutoTokenizer.from_pretrained(path)
    for variables in ({}, {"enable_thinking": False}, {"add_generation_prompt": False}):
        options = {"add_generation_prompt": True} | variables
        expected = theirs.apply_chat_template(chat, tokenize=False, **options)
        assert ours.render_chat(chat, **options) == expected
        ids = theirs.apply_chat_template(chat, tokenize=True, return_dict=False, **options)
        assert ours.encode_chat(chat, **options) == ids
    assert ours.encode_chat(chat).count(ours.bos) == (template is BOS_TEMPLATE)


def test_template_from_a_file_or_a_list(folder):
    path = folder(
        chat_template=[{"name": "default", "template": "A"}, {"name": "x", "template": ""}]
    )
    assert Tokenizer.load(path).render_chat(CHATS[0]) == "A"
    (path / "chat_template.jinja").write_text("B{{ messages | length }}")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(CHATS[2]) == "B3"


def test_text_parts_are_joined(folder):
    tokenizer = Tokenizer.load(folder(chat_template="{{ messages[0].content }}"))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert tokenizer.render_chat([{"role": "user", "content": parts}]) == "ab"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "messages = [] holds no message: give at least one."),
        ([{"content": "x"}], "messages[0] has no 'role': give 'role' and 'content'."),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0] has a content part of type 'image_url': only text is supported",
        ),
        ([{"role": "user", "content": 3}], "A message's content = 3 is not allowed: give a text."),
        ([{"role": "user"}, {"role": "system"}], "refused the messages (system message must come"),
    ],
)
def test_bad_messages(folder, messages, expected):
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}"
        "{{ raise_exception('system message must come first') }}{% endif %}{% endfor %}"
    )
    tokenizer = Tokenizer.load(folder(chat_template=template))
    with pytest.raises(RequestError) as caught:
        tokenizer.render_chat(messages)
    assert expected in str(caught.value)


def test_template_cannot_leave_its_sandbox(folder):
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    with pytest.raises(RequestError, match="refused the messages"):
        Tokenizer.load(folder(chat_template=escape)).render_chat(CHATS[0])


@pytest.mark.parametrize(
    "template", ["{{ 1 // messages[0].content | length }}", "{{ messages[0].nothing.at_all }}"]
)
def test_a_template_that_fails_refuses_the_messages(folder, template):
    """Whatever it raises; and clients do not learn where the model lies."""
    path = folder(chat_template=template)
    with pytest.raises(RequestError, match="refused the messages") as caught:
        Tokenizer.load(path).render_chat([{"role": "user", "content": ""}])
    assert str(path) not in str(caught.value)


def test_no_chat_template_is_refused(folder):
    tokenizer = Tokenizer.load(folder())
    assert not tokenizer.has_chat_template
    with pytest.raises(CheckpointError, match="has no chat template: use a chat model"):
        tokenizer.render_chat(CHATS[0])


def test_end_tokens_are_a_union(folder):
    files = {
        "generation_config.json": {"eos_token_id": [1, 7]},
        "config.json": {"eos_token_id": None, "text_config": {"eos_token_id": 9}},
    }
    assert Tokenizer.load(folder(files=files)).end_tokens == {1, 7, 9, 3}
    assert Tokenizer.load(folder()).end_tokens >= {3}


def test_special_tokens_map_stands_in(folder):
    path = folder(files={"special_tokens_map.json": {"bos_token": "</s>"}})
    assert Tokenizer.load(path).bos == 0
    (path / "tokenizer_config.json").write_text("{}")
    assert Tokenizer.load(path).bos == 1


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    return str(caught.value)


def test_missing_tokenizer_names_the_fix(tmp_path):
    assert refusal(tmp_path) == (
        f"{tmp_path} has no tokenizer.json: copy it from the model that this folder came from."
    )
    (tmp_path / "tokenizer.model").write_bytes(b"")
    assert refusal(tmp_path) == (
        f"{tmp_path} has tokenizer.model but no tokenizer.json: convert it once with transformers, "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def test_damaged_files_are_named(folder):
    path = folder()
    (path / "tokenizer_config.json").write_text("{")
    assert refusal(path).startswith(f"{path / 'tokenizer_config.json'} is not valid JSON (")
    (path / "tokenizer_config.json").write_text("[]")
    assert refusal(path).endswith("holds a list: a JSON object is needed.")
    (path / "tokenizer_config.json").write_text("{}")
    (path / "tokenizer.json").write_text("{}")
    assert refusal(path).startswith(f"{path / 'tokenizer.json'} is not a tokenizer file (")


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": {"lstrip": False}},
        {"added_tokens_decoder": ["<think>"]},
        {"added_tokens_decoder": {"x": {"content": "<think>"}}},
        {"added_tokens_decoder": {"309": {"special": True}}},
    ],
)
def test_unknown_forms_are_a_refusal(folder, config):
    assert "are declared in a form that is not known (" in refusal(folder(**config))


def test_end_token_that_is_no_number(folder):
    path = folder(files={"generation_config.json": {"eos_token_id": "</s>"}})
    assert "are declared in a form that is not known (TypeError" in refusal(path)


def test_template_file_that_is_not_text(folder):
    path = folder()
    (path / "chat_template.jinja").write_bytes(b"\xff")
    assert refusal(path) == f"{path / 'chat_template.jinja'} is not UTF-8 text: fetch it again."


def test_tokens_that_contradict_are_named(folder):
    assert "eos_token = '<end>' of" in refusal(folder(eos_token="<end>"))
    moved = folder(added_tokens_decoder={"400": {"content": "<think>", "special": False}})
    assert "puts '<think>' at id 400, tokenizer.json at 309" in refusal(moved)


def test_template_that_does_not_compile(folder):
    assert "does not compile" in refusal(folder(chat_template="{% if %}"))
    named = [{"name": "a", "template": ""}, {"name": "b", "template": ""}]
    assert "is neither a text nor a list with a template named 'default'" in refusal(
        folder(chat_template=named)
    )


@pytest.mark.parametrize("token_id", [-1, 5000])
def test_token_outside_the_vocabulary(folder, token_id):
    tokenizer = Tokenizer.load(folder())
    with pytest.raises(RequestError, match=rf"Token id {token_id} is not in the vocabulary of"):
        tokenizer.token(token_id)


def test_truncation_baked_into_the_file_is_off(folder, vocabulary):
    path = folder()
    backend = Backend.from_str(vocabulary)
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.add_tokens([AddedToken("<x>")])
    backend.save(str(path / "tokenizer.json"))
    assert len(Tokenizer.load(path).encode("a b c d e f g h", add_special=False)) == 15


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, SamplingParams()),
        ({"temperature": 0.6, "top_p": 0.9}, SamplingParams()),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
        ({"do_sample": True}, SamplingParams(temperature=1.0)),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None},
            SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
        ),
    ],
)
def test_sampling_defaults(tmp_path, config, expected):
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert sampling_defaults(tmp_path) == expected


def test_sampling_defaults_out_of_range_name_the_file(tmp_path):
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"do_sample": True, "top_p": 3}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: .*top_p"):
        sampling_defaults(tmp_path)
