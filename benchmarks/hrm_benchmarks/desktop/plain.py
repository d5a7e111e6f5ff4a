"""The published training step, written again from its formulas as plain PyTorch: the baseline.

A step is a segment for every row, a whole second one for q_continue, the loss and both optimisers. What the
blocks and the optimiser do, where the time goes, is written here; weights, embedding, cycles, heads and loss are ours.
Metrics are left out, in the baseline's favour. Float32, eager, SDPA.
Shapes: B batch, T tokens, N = prefix + T positions, D hidden, E puzzle-vector width.
Source: the published HRM (sapientinc/HRM at 42410da): network, ACT wrapper, loss head, `train_batch`; adam-atan2 0.0.3.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry
from hrm_model.layers import Block, Level, Rotation
from hrm_train import batches, optim, window
from hrm_train.recipe import Recipe

EXPLORE = 0.1


class PlainHRM(HRM):
    """The model over plain blocks; its weights keep their names."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__(config)
        self.add_module("high_level", Level(config, config.high_layers, PlainBlock))
        self.add_module("low_level", Level(config, config.low_layers, PlainBlock))


class PlainBlock(Block):
    """The published formulas one after another, every position."""

    def forward(
        self, x_BND: Tensor, rotation: Rotation | None, num_read: int | None = None
    ) -> Tensor:
        assert num_read is None, "the published code computes every position"
        qkv = (
            self.self_attn.qkv_proj(x_BND)
            .unflatten(-1, (-1, self.self_attn.head_size))
            .transpose(1, 2)
        )
        q, k, v = qkv.chunk(3, dim=1)
        if rotation is not None:
            cos, sin = rotation
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x_BND = rms_norm(x_BND + self.self_attn.o_proj(mixed), self.eps)
        gate, up = self.mlp.gate_up_proj(x_BND).chunk(2, dim=-1)
        return rms_norm(x_BND + self.mlp.down_proj(nn.functional.silu(gate) * up), self.eps)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class PlainAdamATan2:
    """One parameter after the other, as the formula is written."""

    def __init__(self, params: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.beta1, self.beta2, self.weight_decay = recipe.beta1, recipe.beta2, recipe.weight_decay
        self.moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    @torch.no_grad()
    def step(self, lr: float, num_steps: int) -> None:
        for p, m, v in self.moments:
            if p.grad is None:
                continue
            p.mul_(1 - lr * self.weight_decay)
            m.lerp_(p.grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            denominator = v.sqrt().div_(math.sqrt(1 - self.beta2**num_steps))
            p.add_(torch.atan2(m, denominator), alpha=-lr / (1 - self.beta1**num_steps))
            p.grad = None


class PlainTrainer:
    """The published loop over a whole batch of fresh rows each step, of which only halted slots take theirs."""

    def __init__(self, model: PlainHRM, feed: batches.Feed, recipe: Recipe) -> None:
        self.model, self.feed, self.recipe = model, feed, recipe
        self.optimiser = PlainAdamATan2(model.parameters(), recipe)
        self.random = torch.Generator().manual_seed(recipe.seed)
        self.num_steps, size = 0, recipe.batch_size
        shape = (size, model.config.num_positions, model.config.hidden_size)
        self.carry = Carry(torch.empty(shape), torch.empty(shape))
        self.steps_B = torch.zeros(size, dtype=torch.int32)
        self.halted_B = torch.ones(size, dtype=torch.bool)
        self.data = self.offer()

    def offer(self) -> list[Tensor]:
        """Inputs, labels and puzzle ids that the trainer would offer every slot at this step."""
        size = self.recipe.batch_size
        return list(self.feed.draw(self.num_steps, range(size), size, 0)[:3])

    def step(self) -> float:
        """One training step; returns its loss divided by the batch, as the published code logs it."""
        recipe, halted_B, table = self.recipe, self.halted_B, self.model.puzzle_table
        self.carry = self.carry.where(halted_B, self.model.start(recipe.batch_size))
        self.steps_B = torch.where(halted_B, 0, self.steps_B)
        self.data = [
            torch.where(halted_B.view(-1, *(1,) * (old.ndim - 1)), new, old)
            for new, old in zip(self.offer(), self.data, strict=True)
        ]
        self.num_steps += 1
        ids_B = self.data[-1]
        puzzle_vector_BE = table[ids_B].requires_grad_()
        loss = self.loss(puzzle_vector_BE) / recipe.batch_size
        loss.backward()
        rate = recipe.rate_at(self.num_steps * recipe.batch_size)
        if puzzle_vector_BE.grad is not None:
            lr = rate * recipe.scaled(recipe.puzzle_lr)
            optim.step_puzzle_table(
                table, ids_B, puzzle_vector_BE.grad, lr, recipe.puzzle_weight_decay
            )
        self.optimiser.step(rate * recipe.scaled(recipe.lr), self.num_steps)
        return float(loss.detach())

    def loss(self, puzzle_vector_BE: Tensor) -> Tensor:
        """Run a segment and halt; the sum over the batch of its three losses."""
        model, (inputs_BT, labels_BT, _) = self.model, self.data
        output = model.think(self.carry, inputs_BT, puzzle_vector_BE)
        self.carry = output.carry.detach()
        with torch.no_grad():
            most = model.config.max_segments
            self.steps_B = self.steps_B + 1
            last_B = self.steps_B >= most
            minimum_B = torch.randint(2, most + 1, last_B.shape, generator=self.random)
            minimum_B = minimum_B * (torch.rand(last_B.shape, generator=self.random) < EXPLORE)
            self.halted_B = (last_B | (output.q_halt_B > output.q_continue_B)) & (
                self.steps_B >= minimum_B
            )
            after = model.think(self.carry, inputs_BT, puzzle_vector_BE)
            best_B = torch.where(
                last_B, after.q_halt_B, torch.maximum(after.q_halt_B, after.q_continue_B)
            )
        return window.segment_loss(output, labels_BT, torch.sigmoid(best_B), self.recipe).loss
