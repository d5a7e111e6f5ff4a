"""The families of models: `model_of` returns the network of a configuration."""

from torch import Tensor

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM, Carry
from hrm_model.layers import Level
from hrm_model.relational import Relational


class TRM(HRM):
    """The Tiny Recursive Model (2025): one level for both, learned through the last cycle."""

    family = "trm"

    def _add_levels(self) -> None:
        self.low_level = Level(self.config, self.config.low_layers, self._block)

    @property
    def levels(self) -> list[Level]:
        return [self.low_level]


class Transformer(HRM):
    """The baseline: an ordinary transformer of the same blocks, which runs each block once."""

    family = "transformer"

    def _advance(self, carry: Carry, x_BND: Tensor) -> tuple[Carry, Tensor]:
        rotation = self._rotation()
        return carry, self.high_level(self.low_level(x_BND, rotation), rotation)


FAMILIES: tuple[type[HRM], ...] = (HRM, TRM, Transformer, Relational)


def model_of(config: HRMConfig) -> HRM:
    """Returns a network of these sizes with fresh weights."""
    family = next(kind for kind in FAMILIES if kind.family == config.family)
    return family(config)
