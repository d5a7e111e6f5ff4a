"""The models served now, in their order. It changes while requests are under way; those keep the model they have."""

from __future__ import annotations

from collections.abc import Sequence

from hrm_edge_runtime.http.served_model import ServedModel


class Lineup:
    """Models by name; `models` is a picture that does not change."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.models = tuple(models)

    def __contains__(self, name: str) -> bool:
        return any(model.name == name for model in self.models)

    def get(self, name: str) -> ServedModel | None:
        return next((model for model in self.models if model.name == name), None)

    def put(self, model: ServedModel) -> ServedModel | None:
        """Serve a model: at the end, or in the place of the one of its name, which is handed back."""
        before = self.get(model.name)
        if before is None:
            self.models = (*self.models, model)
        else:
            self.models = tuple(model if one is before else one for one in self.models)
        return before

    def remove(self, name: str) -> None:
        self.models = tuple(one for one in self.models if one.name != name)
