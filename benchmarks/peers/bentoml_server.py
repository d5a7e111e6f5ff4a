"""BentoML with adaptive batching, as its documentation shows: a batchable API of lists.

`bentoml serve` imports this module, so its settings come from the environment.
"""

import os
import sys

import bentoml

from model import PuzzleModel, settings_of

SETTINGS = "HRM_PEER_SETTINGS"

if __name__ == "__main__":
    settings = settings_of()
    os.environ[SETTINGS] = " ".join(sys.argv[1:])
    serve = [sys.executable, "-m", "bentoml", "serve", "bentoml_server:PuzzleService"]
    os.execv(sys.executable, [*serve, "--port", str(settings.port)])

settings = settings_of(os.environ[SETTINGS].split())
# BentoML takes no batch size of one; without batching an API gets the list of the request.
batching = {"max_batch_size": settings.batch, "max_latency_ms": 60000} if settings.batch > 1 else {}


@bentoml.service(workers=1, traffic={"timeout": 300}, logging={"access": {"enabled": False}})
class PuzzleService:
    def __init__(self):
        self.model = PuzzleModel(settings.bundle, settings.form, settings.batch)

    @bentoml.api(batchable=bool(batching), **batching)
    def solve(self, puzzles: list[str]) -> list[dict]:
        return self.model.solve(puzzles)
