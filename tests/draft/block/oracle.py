"""A block drafter once more, position by position, as the papers say it.

DFlash (2602.06036) and DSpark (2607.05147): no caches, no fused matrices, no shared code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.helpers.blocks import HEADS, KV_HEADS, MASK, WIDTH, Kind


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Greedy drafts, the corrected logits of every row [drafts, vocab] and its confidence."""

    tokens: list[int]
    logits: Tensor
    confidence: list[float]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def rotary(x: Tensor, position: int) -> Tensor:
    """A head [width] turned by its position; the two halves hold the pairs."""
    half = WIDTH // 2
    out = torch.empty_like(x)
    for pair in range(half):
        angle = torch.tensor(position * 10000.0 ** (-2 * pair / WIDTH))
        a, b = x[pair], x[pair + half]
        out[pair] = a * angle.cos() - b * angle.sin()
        out[pair + half] = b * angle.cos() + a * angle.sin()
    return out


def sees(kind: Kind, layer: int, row: int, key: int, anchor: int) -> bool:
    """Whether the row at position `row` sees position `key`."""
    sliding = kind.window is not None and layer == 0
    causal = sliding if kind.causal is None else kind.causal
    if kind.packaging == "speculators":
        causal = sliding and kind.causal is not False
        if sliding and key < anchor - kind.window:
            return False
    elif sliding and abs(row - key) >= kind.window:
        return False
    return key <= row if causal else True


class Oracle:
    def __init__(self, kind: Kind, tensors: dict[str, Tensor], embedding: Tensor, head: Tensor):
        self.kind, self.tensors = kind, tensors
        self.embedding = tensors.get("embed_tokens.weight", embedding)
        self.head = tensors.get("lm_head.weight", head)

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = self.tensors.get(f"{name}.bias")
        out = x @ self.tensors[f"{name}.weight"].T
        return out if bias is None else out + bias

    def block(self, features: Tensor, anchor: int) -> Tensor:
        """Normed outputs [rows, hidden] of a block behind features [n, taps * hidden]."""
        kind, start = self.kind, len(features)
        context = rms(self.linear("fc", features), self.tensors["hidden_norm.weight"])
        x = self.embedding[torch.tensor([anchor] + [MASK] * (kind.rows - 1))]
        if kind.log_snr:
            x = x + self.conditioning()
        for layer in range(kind.layers):
            stem = f"layers.{layer}"
            normed = rms(x, self.tensors[f"{stem}.input_layernorm.weight"])
            x = x + self.attention(layer, normed, torch.cat([context, normed]), start)
            normed = rms(x, self.tensors[f"{stem}.post_attention_layernorm.weight"])
            gate = torch.nn.functional.silu(self.linear(f"{stem}.mlp.gate_proj", normed))
            up = self.linear(f"{stem}.mlp.up_proj", normed)
            x = x + self.linear(f"{stem}.mlp.down_proj", gate * up)
        return rms(x, self.tensors["norm.weight"])

    def conditioning(self) -> Tensor:
        rows = []
        for row in range(self.kind.rows):
            time = ((9.0 if row == 0 else -9.0) + 9.0) / 18.0 * 1000
            steps = torch.tensor([10000.0 ** (-i / 64) for i in range(64)])
            wave = torch.cat([(time * steps).sin(), (time * steps).cos()])
            inner = torch.nn.functional.silu(self.linear("log_snr_embed.fc1", wave))
            rows.append(self.linear("log_snr_embed.fc2", inner))
        return torch.stack(rows)

    def attention(self, layer: int, rows: Tensor, sources: Tensor, start: int) -> Tensor:
        stem = f"layers.{layer}.self_attn"
        query = self.linear(f"{stem}.q_proj", rows).view(len(rows), HEADS, WIDTH)
        key = self.linear(f"{stem}.k_proj", sources).view(len(sources), KV_HEADS, WIDTH)
        value = self.linear(f"{stem}.v_proj", sources).view(len(sources), KV_HEADS, WIDTH)
        query = rms(query, self.tensors[f"{stem}.q_norm.weight"])
        key = rms(key, self.tensors[f"{stem}.k_norm.weight"])
        out = torch.zeros(len(rows), HEADS, WIDTH)
        for at in range(len(rows)):
            position = start + at
            seen = [k for k in range(len(sources)) if sees(self.kind, layer, position, k, start)]
            for head in range(HEADS):
                mine = head * KV_HEADS // HEADS
                turned = rotary(query[at, head], position)
                scores = torch.stack([turned @ rotary(key[k, mine], k) for k in seen]) / WIDTH**0.5
                out[at, head] = scores.softmax(0) @ value[seen, mine]
        return self.linear(f"{stem}.o_proj", out.flatten(1))

    def draft(self, features: Tensor, anchor: int) -> Outcome:
        """Greedy drafts behind `anchor`, which stands behind the features."""
        kind, first = self.kind, 0 if self.kind.anchor_first else 1
        hidden = self.block(features, anchor)
        token, state = anchor, torch.zeros(kind.rank)
        if kind.markov == "rnn" and first:  # speculators run the recurrence over row 0, too
            code = self.tensors["markov_head.markov_w1.weight"][anchor]
            state = self.markov(code, hidden[0], state)[1]
        hidden = hidden[first:]
        tokens, rows, confidence = [], [], []
        for h in hidden:
            logits = self.head @ h
            if kind.markov:
                code = self.tensors["markov_head.markov_w1.weight"][token]
                bias, state = self.markov(code, h, state)
                logits = logits + bias
            if kind.confidence:
                read = torch.cat([h, code]) if kind.markov and kind.reads_code else h
                confidence.append(float(self.linear("confidence_head.proj", read).sigmoid()))
            if kind.reduced:
                ids = self.tensors["d2t"] + torch.arange(kind.reduced)
                logits = torch.full((len(self.embedding),), -torch.inf).index_put_((ids,), logits)
            token = int(logits.argmax())
            tokens.append(token)
            rows.append(logits)
        return Outcome(tokens=tokens, logits=torch.stack(rows), confidence=confidence)

    def markov(self, code: Tensor, h: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out = self.tensors["markov_head.markov_w2.weight"]
        if self.kind.markov == "vanilla":
            return out @ code, state
        if self.kind.markov == "gated":
            gate = self.linear("markov_head.gate_proj", torch.cat([h, code])).sigmoid()
            return out @ (gate * code), state
        joint = self.linear("markov_head.joint_proj", torch.cat([state, code, h]))
        gate, candidate, output = joint.split(self.kind.rank)
        gate = gate.sigmoid()
        return out @ output.tanh(), gate * state + (1 - gate) * candidate.tanh()
