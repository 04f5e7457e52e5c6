"""Block drafters in training: DFlash and both DSpark layouts, on the target's tapped layers.

A row of text is read once by the target; many anchors are drawn in it, and every anchor's block of
masked rows attends to the features before the anchor and to its own block. Module names give the
tensors the names that DFlash and DSpark checkpoints have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as qwen

from benchmarks import acceptance
from recipes.demo import readings, tokens

MASK_ID = tokens.VOCABULARY - len(tokens.SPECIAL) + tokens.SPECIAL.index(tokens.MASK)
ANCHORS = 192
DECAY = 4.0
# What a row counts even where those before it are wrong, and how much of a draft is greedy's.
LEAST_WEIGHT = 0.3
HARD_SHARE = 0.6
# Anchors in front of text that is in no 8-gram seen before are drawn so much more often.
FRESH_WEIGHT = 4.0
RANK = 64
# Blocks that share a copy of the context's keys.
GROUP = 8
TAPS = (1, 3, 5, 6)


@dataclass(frozen=True)
class Layout:
    """How a block is read: `anchor_first` rows predict from the anchor's own row on."""

    rows: int = 8
    anchor_first: bool = False
    rank: int = 0

    @property
    def first(self) -> int:
        """The first row that predicts."""
        return 0 if self.anchor_first else 1

    @property
    def drafts(self) -> int:
        return self.rows - self.first


LAYOUTS = {
    "dflash": Layout(),
    "dspark": Layout(anchor_first=True, rank=RANK),
    "dspark_bonus": Layout(rank=RANK),
}


def config() -> Qwen3Config:
    """Three attention layers of the target's width: 2.0 M parameters."""
    return Qwen3Config(
        vocab_size=tokens.VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokens.VOCABULARY - len(tokens.SPECIAL),
    )


class Attention(nn.Module):
    """Block rows over the context's features and the rows themselves, one projection for both."""

    def __init__(self, shape: Qwen3Config) -> None:
        super().__init__()
        self.width = shape.head_dim
        size, inner = shape.hidden_size, shape.num_attention_heads * shape.head_dim
        kept = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(size, inner, bias=False)
        self.k_proj = nn.Linear(size, kept, bias=False)
        self.v_proj = nn.Linear(size, kept, bias=False)
        self.o_proj = nn.Linear(inner, size, bias=False)
        self.q_norm = qwen.Qwen3RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = qwen.Qwen3RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: torch.Tensor, context: torch.Tensor, around: Surroundings) -> torch.Tensor:
        """x [B, Q, H] and context [B, T, H] -> [B, Q, H]."""
        count, both = x.shape[1], torch.cat([context, x], 1)
        heads = (*both.shape[:2], -1, self.width)
        query = self.q_norm(self.q_proj(x).view(*x.shape[:2], -1, self.width))
        key = self.k_norm(self.k_proj(both).view(heads))
        query = around.turn(query, slice(-count, None)).transpose(1, 2)
        key = around.turn(key, slice(None)).transpose(1, 2)
        value = self.v_proj(both).view(heads).transpose(1, 2)
        query, key = query.to(value.dtype), key.to(value.dtype)
        out = F.scaled_dot_product_attention(
            *around.grouped(query, key, value), attn_mask=around.mask, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).reshape(*x.shape[:2], -1))


@dataclass(frozen=True)
class Surroundings:
    """Rotary tables of context and rows [B, T + Q, width], and who of a group sees whom.

    The Q rows of a text are G groups of blocks, each with the context to itself, so that few of the
    pairs are masked: `mask` is [B * G, 1, Q / G, T + Q / G].
    """

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor

    def turn(self, heads: torch.Tensor, part: slice) -> torch.Tensor:
        cos, sin = self.cos[:, part, None], self.sin[:, part, None]
        return heads * cos + qwen.rotate_half(heads) * sin

    def grouped(self, query: torch.Tensor, *both: torch.Tensor) -> list[torch.Tensor]:
        """Queries [B, heads, Q, width], keys and values [B, heads, T + Q, width], by group."""
        rows, groups = self.mask.shape[2], len(self.mask) // len(query)

        def split(part: torch.Tensor) -> torch.Tensor:
            return part.unflatten(2, (groups, rows)).transpose(1, 2)

        found = [split(query).flatten(0, 1)]
        for part in both:
            context, own = part.split([part.shape[2] - groups * rows, groups * rows], 2)
            context = context[:, None].expand(-1, groups, -1, -1, -1)
            found.append(torch.cat([context, split(own)], 3).flatten(0, 1))
        return found


class Layer(nn.Module):
    """Pre-norm residual layer; the context is not normed here."""

    def __init__(self, shape: Qwen3Config) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.self_attn = Attention(shape)
        self.mlp = qwen.Qwen3MLP(shape)
        self.input_layernorm = qwen.Qwen3RMSNorm(size, eps)
        self.post_attention_layernorm = qwen.Qwen3RMSNorm(size, eps)

    def forward(self, x: torch.Tensor, context: torch.Tensor, around: Surroundings) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, around)
        return x + self.mlp(self.post_attention_layernorm(x))


class MarkovHead(nn.Module):
    """A low-rank correction of the logits by the tokens before: DSpark's recurrent kind."""

    def __init__(self, rank: int, width: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(tokens.VOCABULARY, rank)
        self.markov_w2 = nn.Linear(rank, tokens.VOCABULARY, bias=False)
        self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def forward(self, hidden: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        """Corrections [..., R, V] of rows with hidden states [..., R, H] and codes [..., R, r]."""
        rank = code.shape[-1]
        by_state, by_row = self.joint_proj.weight.split([rank, rank + hidden.shape[-1]], -1)
        joined = torch.cat([code, hidden.to(code.dtype)], -1)
        known = F.linear(joined, by_row, self.joint_proj.bias)
        state, outputs = torch.zeros_like(code[..., 0, :]), []
        for row in known.unbind(-2):
            gate, candidate, output = (row + F.linear(state, by_state)).chunk(3, -1)
            outputs.append(output.tanh())
            state = torch.lerp(candidate.tanh(), state, gate.sigmoid())
        return self.markov_w2(torch.stack(outputs, -2))


class ConfidenceHead(nn.Module):
    """How likely a draft is kept, from its row's hidden state and the Markov row before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class Drafter(nn.Module):
    """The trunk of a block drafter, with the two heads where the layout has a Markov rank."""

    def __init__(self, shape: Qwen3Config, layout: Layout) -> None:
        super().__init__()
        size, eps = shape.hidden_size, shape.rms_norm_eps
        self.fc = nn.Linear(len(TAPS) * size, size, bias=False)
        self.hidden_norm = qwen.Qwen3RMSNorm(size, eps)
        self.layers = nn.ModuleList([Layer(shape) for _ in range(shape.num_hidden_layers)])
        self.norm = qwen.Qwen3RMSNorm(size, eps)
        if layout.rank:
            self.markov_head = MarkovHead(layout.rank, size)
            self.confidence_head = ConfidenceHead(size + layout.rank)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=shape.initializer_range)

    def forward(
        self, x: torch.Tensor, features: torch.Tensor, around: Surroundings
    ) -> torch.Tensor:
        """Embedded rows [B, Q, H], features [B, T, taps * H] -> normed hidden states [B, Q, H]."""
        context = self.hidden_norm(self.fc(features))
        for layer in self.layers:
            x = layer(x, context, around)
        return self.norm(x)


def is_fresh(ids: torch.Tensor) -> torch.Tensor:
    """Which tokens of one row [T] are fresh as acceptance is measured over them [T]."""
    return torch.tensor(acceptance.fresh((), ids.tolist()))


def draw_anchors(ids: torch.Tensor, drafts: int) -> torch.Tensor:
    """Anchor positions [B, A], late enough that most lie in what the target wrote itself."""
    rows, length = ids.shape
    low = length // 2 if length > 512 else length // 4
    weight = torch.stack([is_fresh(row)[low + 1 :] for row in ids]) * (FRESH_WEIGHT - 1) + 1
    places = weight[:, : length - drafts - low]
    count = round(ANCHORS / rows)
    return torch.multinomial(places, count, replacement=count > places.shape[1]) + low


def visibility(anchors: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Context before the anchor and the own block, both directions [B, 1, A * R, T + A * R]."""
    rows, count = anchors.shape
    before = torch.arange(length) < anchors[..., None]
    block = torch.eye(count, dtype=torch.bool).repeat_interleave(size, 0)
    block = block.repeat_interleave(size, 1).expand(rows, -1, -1)
    return torch.cat([before.repeat_interleave(size, 1), block], -1)[:, None]


class Student(nn.Module):
    """A block drafter in training; a layout with heads starts from a trained trunk without.

    On the target's own text alone: it is read from disk, at half the cost of other rows.
    """

    own_share = 1.0
    # Of code, edits and structured text: code is what is hard to guess.
    shares = (0.6, 0.22, 0.18)

    def __init__(self, target: nn.Module, layout: Layout, work: Path) -> None:
        super().__init__()
        self.work, self.known = work, None
        self.target = target.requires_grad_(False).eval()
        self.layout, shape = layout, config()
        self.block = Drafter(shape, layout)
        self.rotary = qwen.Qwen3RotaryEmbedding(shape)
        trunk = work / "dflash" / "model.pt"
        if layout.rank and trunk.exists():
            self.load_state_dict(torch.load(trunk), strict=False)

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Features [B, T, taps * H] and the target's final hidden states [B, T, H]."""
        if self.known is None:
            self.known = readings.Readings(self.work, TAPS)
        return self.known.read(self.target, ids)

    def rows(
        self, ids: torch.Tensor, features: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """Hidden states [B, A, R, H] of the blocks at `anchors` [B, A]."""
        batch, count, size = *anchors.shape, self.layout.rows
        block = torch.full((batch, count, size), MASK_ID)
        block[..., 0] = ids.gather(1, anchors)
        places = torch.arange(ids.shape[1]).expand(batch, -1)
        places = torch.cat([places, (anchors[..., None] + torch.arange(size)).flatten(1)], 1)
        cos, sin = self.rotary(features, places)
        together = max(share for share in range(1, GROUP + 1) if count % share == 0)
        mask = visibility(anchors.view(-1, together), ids.shape[1], size)
        around = Surroundings(cos, sin, mask)
        embedded = self.target.model.embed_tokens(block.flatten(1))
        return self.block(embedded, features, around).view(batch, count, size, -1)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean loss and accepted drafts of a whole block, per row [B]."""
        features, final = self.read(ids)
        anchors = draw_anchors(ids, self.layout.drafts)
        hidden = self.rows(ids, features, anchors)
        places = anchors[..., None] + torch.arange(self.layout.drafts)
        row = torch.arange(len(ids))[:, None, None]
        taught = self.target.lm_head(final[row, places]).float()
        guessed, confidence = self.guess(hidden, ids[row, places])
        best = taught.argmax(-1)
        log_q, log_p = guessed.float().log_softmax(-1), taught.log_softmax(-1)
        loss, chance = missed(log_q, log_p, best, HARD_SHARE)
        if confidence is not None:
            # The share of drafts that sampling would keep.
            kept = torch.minimum(log_q.detach(), log_p).exp().sum(-1).clamp(max=1.0)
            loss = loss + 0.5 * F.binary_cross_entropy_with_logits(
                confidence.float(), kept, reduction="none"
            )
        loss = (loss * self.weights(chance)).sum(-1).mean(1)
        run = (guessed.argmax(-1) == best).long().cumprod(-1).sum(-1)
        return loss, run.float().mean(1)

    def weights(self, chance: torch.Tensor) -> torch.Tensor:
        """Weight of each row of a block [B, A, D], of chances that rows are right: a draft after a
        wrong one is never used."""
        steady = torch.exp(-torch.arange(self.layout.drafts) / DECAY)
        reached = chance.cumprod(-1).roll(1, -1)
        reached[..., 0] = 1.0
        return (LEAST_WEIGHT * steady + (1 - LEAST_WEIGHT) * reached) / steady.sum()

    def guess(
        self, hidden: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Logits [..., D, V] and confidence logits [..., D] or None, of blocks of hidden states
        [..., R, H] whose drafts follow the tokens [..., D]."""
        first = self.layout.first
        drafts = hidden[..., first:, :]
        logits = self.target.lm_head(drafts)
        if not self.layout.rank:
            return logits, None
        head = self.block.markov_head
        code = head.markov_w1(before)
        joined = torch.cat([drafts, code.to(hidden.dtype)], -1)
        confidence = self.block.confidence_head.proj(joined).squeeze(-1)
        # The recurrence runs over an unread row too, after the same token as the first draft.
        every = torch.cat([code[..., :first, :], code], -2)
        return logits + head(hidden, every)[..., first:, :], confidence


def missed(
    log_q: torch.Tensor, log_p: torch.Tensor, best: torch.Tensor, hard_share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss [...] of log-probabilities [..., V] on the target's and its greedy tokens `best` [...];
    with it, detached, the chance that those are guessed [...]."""
    hard = log_q.gather(-1, best[..., None]).squeeze(-1)
    soft = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    return (1 - hard_share) * soft - hard_share * hard, hard.detach().exp()
