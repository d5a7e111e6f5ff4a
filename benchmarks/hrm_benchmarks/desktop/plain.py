"""The published training step, written from its formulas as plain PyTorch: the baseline.

A step runs a segment for every row, a second one for q_continue, the loss and both optimizers. The
blocks and the optimizer take the time, so they are written here; weights, embedding, cycles, heads
and loss are ours. Metrics are left out, in the baseline's favor. Float32, eager, SDPA.
Shapes: B batch, T tokens, N = prefix + T positions, H heads, D hidden, E puzzle-vector width.
Source: the published HRM (sapientinc/HRM at 42410da): network, ACT wrapper, loss head,
`train_batch`; adam-atan2 0.0.3.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry, SegmentOutput
from hrm_model.layers import Block, Level, Rotation
from hrm_train import batches, optim, window
from hrm_train.recipe import Recipe

EXPLORE = 0.1  # share of the rows that draw a minimum of segments


class PlainHRM(HRM):
    """The model over plain blocks; its weights keep their names."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__(config)
        self.add_module("high_level", Level(config, config.high_layers, PlainBlock))
        self.add_module("low_level", Level(config, config.low_layers, PlainBlock))


class PlainBlock(Block):
    """The published formulas, one after another, for every position."""

    def forward(
        self, x_BND: Tensor, rotation: Rotation | None, num_read: int | None = None
    ) -> Tensor:
        assert num_read is None, "the published code computes every position"
        x_BND = rms_norm(x_BND + self._attention(x_BND, rotation), self.eps)
        return rms_norm(x_BND + self._swiglu(x_BND), self.eps)

    def _attention(self, x_BND: Tensor, rotation: Rotation | None) -> Tensor:
        attention = self.self_attn
        joint = attention.qkv_proj(x_BND).unflatten(-1, (-1, attention.head_size))
        query, key, value = joint.transpose(1, 2).chunk(3, dim=1)
        if rotation is not None:
            query = rotated(query, rotation)
            key = rotated(key, rotation)
        mixed_BHNd = nn.functional.scaled_dot_product_attention(query, key, value)
        mixed_BND = mixed_BHNd.transpose(1, 2).flatten(2)
        return attention.o_proj(mixed_BND)

    def _swiglu(self, x_BND: Tensor) -> Tensor:
        gate, up = self.mlp.gate_up_proj(x_BND).chunk(2, dim=-1)
        return self.mlp.down_proj(nn.functional.silu(gate) * up)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    mean_square = x.square().mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps)


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    return x * cos + rotate_half(x) * sin


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first = x[..., :half]
    second = x[..., half:]
    return torch.cat((-second, first), dim=-1)


class PlainAdamATan2:
    """One parameter after another, as the formula is written."""

    def __init__(self, params: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.beta1 = recipe.beta1
        self.beta2 = recipe.beta2
        self.weight_decay = recipe.weight_decay
        self.moments: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        for param in params:
            first = torch.zeros_like(param)
            second = torch.zeros_like(param)
            self.moments.append((param, first, second))

    @torch.no_grad()
    def step(self, lr: float, num_steps: int) -> None:
        correction1 = 1 - self.beta1**num_steps
        correction2 = math.sqrt(1 - self.beta2**num_steps)
        for param, first, second in self.moments:
            grad = param.grad
            if grad is None:
                continue
            param.mul_(1 - lr * self.weight_decay)
            first.lerp_(grad, 1 - self.beta1)
            second.mul_(self.beta2)
            second.addcmul_(grad, grad, value=1 - self.beta2)
            denominator = second.sqrt().div_(correction2)
            param.add_(torch.atan2(first, denominator), alpha=-lr / correction1)
            param.grad = None


class PlainTrainer:
    """The published loop: each step draws a whole batch, and halted slots take their rows."""

    def __init__(self, model: PlainHRM, feed: batches.Feed, recipe: Recipe) -> None:
        size = recipe.batch_size
        shape = (size, model.config.num_positions, model.config.hidden_size)
        self.model = model
        self.feed = feed
        self.recipe = recipe
        self.optimizer = PlainAdamATan2(model.parameters(), recipe)
        self.random = torch.Generator().manual_seed(recipe.seed)
        self.num_steps = 0
        self.carry = Carry(torch.empty(shape), torch.empty(shape))
        self.segments_B = torch.zeros(size, dtype=torch.int32)
        self.halted_B = torch.ones(size, dtype=torch.bool)
        self.data = self.offer()

    def offer(self) -> list[Tensor]:
        """Return inputs, labels and puzzle ids that our trainer offers its slots at this step."""
        size = self.recipe.batch_size
        offered = self.feed.draw(self.num_steps, range(size), size, 0)
        return list(offered[:3])

    def step(self) -> float:
        """Train one step; return its loss divided by the batch, as the published code logs it."""
        recipe = self.recipe
        self._refill()
        self.num_steps += 1
        table = self.model.puzzle_table
        ids_B = self.data[-1]
        puzzle_vector_BE = table[ids_B].requires_grad_()
        loss = self.loss(puzzle_vector_BE) / recipe.batch_size
        loss.backward()
        rate = recipe.rate_at(self.num_steps * recipe.batch_size)
        if puzzle_vector_BE.grad is not None:
            puzzle_lr = rate * recipe.scaled(recipe.puzzle_lr)
            decay = recipe.puzzle_weight_decay
            optim.step_puzzle_table(table, ids_B, puzzle_vector_BE.grad, puzzle_lr, decay)
        lr = rate * recipe.scaled(recipe.lr)
        self.optimizer.step(lr, self.num_steps)
        return float(loss.detach())

    def _refill(self) -> None:
        """Give every halted slot a fresh row and the initial carry."""
        start = self.model.start(self.recipe.batch_size)
        self.carry = self.carry.where(self.halted_B, start)
        self.segments_B = torch.where(self.halted_B, 0, self.segments_B)
        data: list[Tensor] = []
        for offered, held in zip(self.offer(), self.data, strict=True):
            ones = (1,) * (held.ndim - 1)
            is_halted = self.halted_B.view(-1, *ones)
            data.append(torch.where(is_halted, offered, held))
        self.data = data

    def loss(self, puzzle_vector_BE: Tensor) -> Tensor:
        """Run a segment and halt; return the sum over the batch of its three losses."""
        inputs_BT, labels_BT, _ = self.data
        output = self.model.think(self.carry, inputs_BT, puzzle_vector_BE)
        self.carry = output.carry.detach()
        with torch.no_grad():
            self.segments_B = self.segments_B + 1
            is_last_B = self.segments_B >= self.model.config.max_segments
            self.halted_B = self._halts(output, is_last_B)
            after = self.model.think(self.carry, inputs_BT, puzzle_vector_BE)
            best_B = torch.maximum(after.q_halt_B, after.q_continue_B)
            next_q_B = torch.where(is_last_B, after.q_halt_B, best_B)
        target_B = torch.sigmoid(next_q_B)
        loss, *_ = window.segment_loss(output, labels_BT, target_B, self.recipe)
        return loss

    def _halts(self, output: SegmentOutput, is_last_B: Tensor) -> Tensor:
        """Return which rows halt; some draw a minimum of segments, to explore."""
        most = self.model.config.max_segments
        minimum_B = torch.randint(2, most + 1, is_last_B.shape, generator=self.random)
        explores_B = torch.rand(is_last_B.shape, generator=self.random) < EXPLORE
        has_minimum_B = self.segments_B >= minimum_B * explores_B
        wants_halt_B = output.q_halt_B > output.q_continue_B
        return (is_last_B | wants_halt_B) & has_minimum_B
