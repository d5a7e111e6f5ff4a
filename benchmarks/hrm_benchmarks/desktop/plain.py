"""The baseline: the published training step, rewritten from its formulas in plain PyTorch.

A step is a segment for every row, a whole second one for q_continue, the loss and both optimizers.
What the blocks and the optimizer do is written here, because that is where the time goes. Weights,
embedding, cycles, heads and loss are ours. Metrics are left out, in the baseline's favor. Float32,
eager, SDPA.

Source: the published HRM (sapientinc/HRM at 42410da): network, ACT wrapper, loss head,
`train_batch`; adam-atan2 0.0.3.

Shapes: B batch, T tokens, N = prefix + T positions, D hidden, H heads, K head width,
E puzzle-vector width.
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

EXPLORE = 0.1  # share of rows that must run a random number of segments before they may halt


class PlainHRM(HRM):
    """The model over plain blocks; its weights keep their names."""

    def __init__(self, config: HRMConfig) -> None:
        super().__init__(config)
        if config.arch != "trm":
            self.add_module("high_level", Level(config, config.high_layers, PlainBlock))
        self.add_module("low_level", Level(config, config.low_layers, PlainBlock))


class PlainBlock(Block):
    """The published formulas, applied to every position."""

    def forward(
        self, x_BND: Tensor, rotation: Rotation | None, num_read: int | None = None
    ) -> Tensor:
        assert num_read is None, "the published code computes every position"
        attention = self.self_attn
        qkv_BNHK = attention.qkv_proj(x_BND).unflatten(-1, (-1, attention.head_size))
        q, k, v = qkv_BNHK.transpose(1, 2).chunk(3, dim=1)
        if rotation is not None:
            cos, sin = rotation
            q = q * cos + rotate_half(q) * sin
            k = k * cos + rotate_half(k) * sin
        mixed_BHNK = nn.functional.scaled_dot_product_attention(q, k, v)
        mixed_BND = mixed_BHNK.transpose(1, 2).flatten(2)
        x_BND = rms_norm(x_BND + attention.o_proj(mixed_BND), self.eps)
        gate, up = self.mlp.gate_up_proj(x_BND).chunk(2, dim=-1)
        gated = nn.functional.silu(gate) * up
        return rms_norm(x_BND + self.mlp.down_proj(gated), self.eps)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    x = x.to(torch.float32)
    mean_square = x.square().mean(-1, keepdim=True)
    return x * torch.rsqrt(mean_square + eps)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class PlainAdamATan2:
    """The formula, applied to one parameter at a time."""

    def __init__(self, params: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self.beta1 = recipe.beta1
        self.beta2 = recipe.beta2
        self.weight_decay = recipe.weight_decay
        self.moments = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    @torch.no_grad()
    def step(self, lr: float, num_steps: int) -> None:
        correction1 = 1 - self.beta1**num_steps
        correction2 = math.sqrt(1 - self.beta2**num_steps)
        for p, m, v in self.moments:
            if p.grad is None:
                continue
            p.mul_(1 - lr * self.weight_decay)
            m.lerp_(p.grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            denominator = v.sqrt().div_(correction2)
            direction = torch.atan2(m, denominator)
            p.add_(direction, alpha=-lr / correction1)
            p.grad = None


class PlainTrainer:
    """The published loop: every step draws a whole batch, but only halted slots take their row."""

    def __init__(self, model: PlainHRM, feed: batches.Feed, recipe: Recipe) -> None:
        self.model = model
        self.feed = feed
        self.recipe = recipe
        self.optimizer = PlainAdamATan2(model.parameters(), recipe)
        self.random = torch.Generator().manual_seed(recipe.seed)
        self.num_steps = 0
        size = recipe.batch_size
        shape = (size, model.config.num_positions, model.config.hidden_size)
        self.carry = Carry(torch.empty(shape), torch.empty(shape))
        self.steps_B = torch.zeros(size, dtype=torch.int32)
        self.halted_B = torch.ones(size, dtype=torch.bool)
        self.data = self.offer()

    def offer(self) -> list[Tensor]:
        """Inputs, labels and puzzle ids that our trainer would offer to every slot at this step."""
        size = self.recipe.batch_size
        drawn = self.feed.draw(self.num_steps, range(size), size)
        return list(drawn[:3])

    def step(self) -> float:
        """Train one step; return its loss over the batch size, as the published code logs it."""
        recipe = self.recipe
        self.refill()
        self.num_steps += 1
        table = self.model.puzzle_table
        ids_B = self.data[-1]
        vector_BE = table[ids_B].requires_grad_()
        loss = self.loss(vector_BE) / recipe.batch_size
        loss.backward()
        rate = recipe.rate_at(self.num_steps * recipe.batch_size)
        if vector_BE.grad is not None:
            lr = rate * recipe.scaled(recipe.puzzle_lr)
            decay = recipe.puzzle_weight_decay
            optim.step_puzzle_table(table, ids_B, vector_BE.grad, lr, decay)
        self.optimizer.step(rate * recipe.scaled(recipe.lr), self.num_steps)
        return float(loss.detach())

    def refill(self) -> None:
        """Start the next row in every slot that has halted."""
        halted_B = self.halted_B
        start = self.model.start(self.recipe.batch_size)
        self.carry = self.carry.where(halted_B, start)
        self.steps_B = torch.where(halted_B, 0, self.steps_B)
        data: list[Tensor] = []
        for new, old in zip(self.offer(), self.data, strict=True):
            trailing = (1,) * (old.ndim - 1)
            is_new = halted_B.view(-1, *trailing)
            data.append(torch.where(is_new, new, old))
        self.data = data

    def loss(self, vector_BE: Tensor) -> Tensor:
        """Run a segment and halt; return the sum of its three losses over the batch."""
        inputs_BT, labels_BT, _ = self.data
        output = self.model.think(self.carry, inputs_BT, vector_BE)
        self.carry = output.carry.detach()
        with torch.no_grad():
            is_last_B = self.halt(output)
            after = self.model.think(self.carry, inputs_BT, vector_BE)
            best_B = torch.maximum(after.q_halt_B, after.q_continue_B)
            best_B = torch.where(is_last_B, after.q_halt_B, best_B)
        target_B = torch.sigmoid(best_B)
        return window.segment_loss(output, labels_BT, target_B, self.recipe).loss

    def halt(self, output: SegmentOutput) -> Tensor:
        """Decide which rows halt; returns the rows that reach their last segment."""
        num_most = self.model.config.max_segments
        self.steps_B = self.steps_B + 1
        is_last_B = self.steps_B >= num_most
        shape = is_last_B.shape
        minimum_B = torch.randint(2, num_most + 1, shape, generator=self.random)
        explores_B = torch.rand(shape, generator=self.random) < EXPLORE
        minimum_B = minimum_B * explores_B
        wants_to_halt_B = output.q_halt_B > output.q_continue_B
        self.halted_B = (is_last_B | wants_to_halt_B) & (self.steps_B >= minimum_B)
        return is_last_B
