"""The published HRM and its training step, written again from their formulas as plain PyTorch: the baseline.

A step is a segment for every row, a second one for q_continue, the loss and both optimisers. The network shares no code
with `hrm_model`, only the names of the weights, so that one state fits both. Float32, eager, SDPA.

Shapes: B batch, T tokens, N = prefix + T positions, D hidden, E puzzle-vector width, V vocabulary.
Source: the published HRM (sapientinc/HRM at 42410da): network, ACT wrapper, loss head, `train_batch`; adam-atan2 0.0.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_puzzles.data.datasets import IGNORE
from hrm_train.batches import Feed
from hrm_train.recipe import Recipe

EXPLORE = 0.1

Rotation = tuple[Tensor, Tensor]


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class PlainAttention(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, length, 3 * self.num_heads, self.head_size)
        q, k, v = (part.transpose(1, 2) for part in qkv.split(self.num_heads, dim=2))
        if rotation is not None:
            cos, sin = rotation
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class PlainSwiGLU(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class PlainBlock(nn.Module):
    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.self_attn = PlainAttention(config)
        self.mlp = PlainSwiGLU(config)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        x = rms_norm(x + self.self_attn(x, rotation), self.eps)
        return rms_norm(x + self.mlp(x), self.eps)


class PlainLevel(nn.Module):
    def __init__(self, config: HRMConfig, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(PlainBlock(config) for _ in range(num_layers))

    def forward(self, x: Tensor, injection: Tensor, rotation: Rotation | None) -> Tensor:
        x = x + injection
        for layer in self.layers:
            x = layer(x, rotation)
        return x


class PlainHRM(nn.Module):
    """One segment; weights under the names of `hrm_model.HRM`."""

    high_init: Tensor
    low_init: Tensor
    puzzle_table: Tensor

    def __init__(self, config: HRMConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.embed_tokens = nn.Parameter(torch.empty(config.vocab_size, width))
        if config.positions == "learned":
            self.embed_positions = nn.Parameter(torch.empty(config.num_positions, width))
        self.high_level, self.low_level = PlainLevel(config, config.high_layers), PlainLevel(config, config.low_layers)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.q_head = nn.Linear(width, 2)
        for name, shape in (("high_init", (width,)), ("low_init", (width,))):
            self.register_buffer(name, torch.empty(shape))
        self.register_buffer("puzzle_table", torch.zeros(config.num_puzzle_ids, config.puzzle_vector_size))
        steps = torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size
        angles = torch.outer(torch.arange(config.num_positions, dtype=torch.float32), config.rope_theta**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        self.rotation = (angles.cos(), angles.sin()) if config.positions == "rope" else None

    def embed(self, tokens_BT: Tensor, puzzle_vector_BE: Tensor) -> Tensor:
        config = self.config
        x_BND = F.embedding(tokens_BT, self.embed_tokens)
        if config.prefix_len:
            padding = config.prefix_len * config.hidden_size - config.puzzle_vector_size
            prefix = F.pad(puzzle_vector_BE, (0, padding)).view(-1, config.prefix_len, config.hidden_size)
            x_BND = torch.cat((prefix, x_BND), dim=1)
        if config.positions == "learned":
            x_BND = 0.707106781 * (x_BND + self.embed_positions)
        return math.sqrt(config.hidden_size) * x_BND

    def forward(
        self, z_high: Tensor, z_low: Tensor, tokens_BT: Tensor, puzzle_vector_BE: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """New z_high and z_low (detached), logits_BTV, q_B2."""
        config = self.config
        x = self.embed(tokens_BT, puzzle_vector_BE)
        with torch.no_grad():
            for high_cycle in range(config.high_cycles):
                for low_cycle in range(config.low_cycles):
                    if not (high_cycle == config.high_cycles - 1 and low_cycle == config.low_cycles - 1):
                        z_low = self.low_level(z_low, z_high + x, self.rotation)
                if high_cycle < config.high_cycles - 1:
                    z_high = self.high_level(z_high, z_low, self.rotation)
        z_low = self.low_level(z_low, z_high + x, self.rotation)
        z_high = self.high_level(z_high, z_low, self.rotation)
        logits_BTV = self.lm_head(z_high)[:, config.prefix_len :]
        return z_high.detach(), z_low.detach(), logits_BTV, self.q_head(z_high[:, 0])


def log_stablemax(x: Tensor) -> Tensor:
    s = torch.where(x < 0, 1 / (1 - x + 1e-30), x + 1)
    return torch.log(s / s.sum(dim=-1, keepdim=True))


def stablemax_cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    logprobs = log_stablemax(logits_BTV.to(torch.float64))
    counted = labels_BT != IGNORE
    index = torch.where(counted, labels_BT, 0).to(torch.long).unsqueeze(-1)
    return -torch.where(counted, torch.gather(logprobs, -1, index).squeeze(-1), 0)


def softmax_cross_entropy(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    flat = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten().long(), ignore_index=IGNORE, reduction="none")
    return flat.view(labels_BT.shape)


class PlainAdamATan2(torch.optim.Optimizer):
    """One parameter after the other, as the formula is written."""

    def __init__(self, params: list[nn.Parameter], recipe: Recipe) -> None:
        super().__init__(params, {"lr": recipe.scaled(recipe.lr)})
        self.beta1, self.beta2, self.weight_decay = recipe.beta1, recipe.beta2, recipe.weight_decay

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                m, v, step = state["m"], state["v"], state["step"]
                p.mul_(1 - group["lr"] * self.weight_decay)
                m.lerp_(p.grad, 1 - self.beta1)
                v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
                denominator = v.sqrt().div_(math.sqrt(1 - self.beta2**step))
                p.add_(torch.atan2(m, denominator), alpha=-group["lr"] / (1 - self.beta1**step))


@dataclass(kw_only=True)
class PlainCarry:
    z_high: Tensor
    z_low: Tensor
    steps_B: Tensor
    halted_B: Tensor
    data: dict[str, Tensor]


class PlainTrainer:
    """The published loop over a whole batch of fresh rows each step, of which only halted slots take theirs."""

    def __init__(self, model: PlainHRM, feed: Feed, recipe: Recipe) -> None:
        self.model, self.feed, self.recipe = model, feed, recipe
        self.optimiser = PlainAdamATan2(list(model.parameters()), recipe)
        self.num_steps = 0
        self.carry: PlainCarry | None = None
        self.random = torch.Generator().manual_seed(recipe.seed)

    def step(self) -> dict[str, float]:
        """One training step; metrics as the published code logs them, summed losses divided by the batch."""
        self.num_steps += 1
        batch = self.batch()
        if self.carry is None:
            self.carry = self.initial_carry(batch)
        loss, metrics, ids_B, puzzle_vector_BE = self.loss(batch)
        (loss / self.recipe.batch_size).backward()
        rate = self.rate()
        self.step_puzzle_table(ids_B, puzzle_vector_BE, rate * self.recipe.scaled(self.recipe.puzzle_lr))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * self.recipe.scaled(self.recipe.lr)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return self.reduce(metrics, rate)

    def batch(self) -> dict[str, Tensor]:
        """What the trainer would offer every slot at this step."""
        size = self.recipe.batch_size
        inputs, labels, identifiers, _ = self.feed.draw(self.num_steps - 1, range(size), size, 0)
        named = {"inputs": inputs, "labels": labels, "puzzle_identifiers": identifiers}
        return {name: torch.from_numpy(array) for name, array in named.items()}

    def initial_carry(self, batch: dict[str, Tensor]) -> PlainCarry:
        config, size = self.model.config, self.recipe.batch_size
        shape = (size, config.num_positions, config.hidden_size)
        return PlainCarry(
            z_high=torch.empty(shape),
            z_low=torch.empty(shape),
            steps_B=torch.zeros(size, dtype=torch.int32),
            halted_B=torch.ones(size, dtype=torch.bool),
            data={name: torch.empty_like(values) for name, values in batch.items()},
        )

    def loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
        model, carry = self.model, self.carry
        assert carry is not None, "the first step makes the carry"
        fresh = carry.halted_B.view(-1, 1, 1)
        z_high = torch.where(fresh, model.high_init, carry.z_high)
        z_low = torch.where(fresh, model.low_init, carry.z_low)
        steps_B = torch.where(carry.halted_B, 0, carry.steps_B)
        data = {
            name: torch.where(carry.halted_B.view((-1,) + (1,) * (values.ndim - 1)), batch[name], values)
            for name, values in carry.data.items()
        }
        puzzle_vector_BE = model.puzzle_table[data["puzzle_identifiers"]].clone().requires_grad_()
        z_high, z_low, logits_BTV, q_B2 = model(z_high, z_low, data["inputs"], puzzle_vector_BE)
        q_halt_B, q_continue_B = q_B2[:, 0], q_B2[:, 1]
        with torch.no_grad():
            steps_B = steps_B + 1
            last_B = steps_B >= model.config.max_segments
            minimum_B = torch.randint(2, model.config.max_segments + 1, steps_B.shape, generator=self.random)
            minimum_B = minimum_B * (torch.rand(steps_B.shape, generator=self.random) < EXPLORE)
            halted_B = (last_B | (q_halt_B > q_continue_B)) & (steps_B >= minimum_B)
            next_q_B2 = model(z_high, z_low, data["inputs"], puzzle_vector_BE)[-1]
            best_B = torch.where(last_B, next_q_B2[:, 0], next_q_B2.max(dim=-1).values)
            target_B = torch.sigmoid(best_B)
        self.carry = PlainCarry(z_high=z_high, z_low=z_low, steps_B=steps_B, halted_B=halted_B, data=data)
        loss, metrics = self.losses(logits_BTV, q_halt_B, q_continue_B, target_B, data["labels"])
        return loss, metrics, data["puzzle_identifiers"], puzzle_vector_BE

    def losses(
        self, logits_BTV: Tensor, q_halt_B: Tensor, q_continue_B: Tensor, target_B: Tensor, labels_BT: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        assert self.carry is not None, "the segment has run"
        kind = stablemax_cross_entropy if self.recipe.loss == "stablemax" else softmax_cross_entropy
        with torch.no_grad():
            counted_BT = labels_BT != IGNORE
            count_B = counted_BT.sum(-1)
            divisor_B1 = count_B.clamp_min(1).unsqueeze(-1)
            right_BT = counted_BT & (torch.argmax(logits_BTV, dim=-1) == labels_BT)
            exact_B = right_BT.sum(-1) == count_B
            valid_B = self.carry.halted_B & (count_B > 0)
            metrics = {
                "count": valid_B.sum(),
                "accuracy": torch.where(valid_B, (right_BT.to(torch.float32) / divisor_B1).sum(-1), 0).sum(),
                "exact_accuracy": (valid_B & exact_B).sum(),
                "q_halt_accuracy": (valid_B & ((q_halt_B >= 0) == exact_B)).sum(),
                "steps": torch.where(valid_B, self.carry.steps_B, 0).sum(),
            }
        answer = (kind(logits_BTV, labels_BT) / divisor_B1).sum()
        halt = F.binary_cross_entropy_with_logits(q_halt_B, exact_B.to(q_halt_B.dtype), reduction="sum")
        go_on = F.binary_cross_entropy_with_logits(q_continue_B, target_B, reduction="sum")
        total = answer + 0.5 * (halt + go_on)
        losses = {"loss": total, "lm_loss": answer, "q_halt_loss": halt, "q_continue_loss": go_on}
        return total, {**metrics, **{name: value.detach() for name, value in losses.items()}}

    def rate(self) -> float:
        recipe = self.recipe
        warmup, total = recipe.warmup_samples / recipe.batch_size, recipe.total_samples / recipe.batch_size
        if self.num_steps < warmup:
            return self.num_steps / warmup
        progress = (self.num_steps - warmup) / max(1, total - warmup)
        return recipe.lr_min_ratio + (1 - recipe.lr_min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))

    @torch.no_grad()
    def step_puzzle_table(self, ids_B: Tensor, puzzle_vector_BE: Tensor, lr: float) -> None:
        if puzzle_vector_BE.grad is None:
            return
        table, (ids, inverse) = self.model.puzzle_table, torch.unique(ids_B, return_inverse=True)
        gradient = torch.zeros(len(ids), table.shape[1]).index_add_(0, inverse, puzzle_vector_BE.grad)
        table[ids] = table[ids] * (1 - lr * self.recipe.puzzle_weight_decay) - lr * gradient.sign()

    def reduce(self, metrics: dict[str, Tensor], rate: float) -> dict[str, float]:
        names = sorted(metrics)
        values = dict(zip(names, torch.stack([metrics[name].double() for name in names]).cpu().tolist(), strict=True))
        count = max(1.0, values["count"])
        averaged = {n: v / (self.recipe.batch_size if n.endswith("loss") else count) for n, v in values.items()}
        return {**averaged, "lr": rate * self.recipe.scaled(self.recipe.lr)}
