"""Ray Serve with `@serve.batch`, as its guide on dynamic batching shows."""

import time

import ray
from ray import serve
from starlette.requests import Request

from model import PuzzleModel, settings_of

settings = settings_of()


@serve.deployment(max_ongoing_requests=256, logging_config={"enable_access_log": False})
class PuzzleDeployment:
    def __init__(self):
        self.model = PuzzleModel(settings.bundle, settings.form, settings.batch)

    @serve.batch(max_batch_size=settings.batch, batch_wait_timeout_s=settings.wait_ms / 1000)
    async def solve(self, puzzles):
        return self.model.solve(puzzles)

    async def __call__(self, request: Request):
        if request.url.path == "/readyz":
            return "ready"
        question = await request.json()
        return await self.solve(question["puzzle"])


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": settings.port})
    serve.run(PuzzleDeployment.bind())
    while True:
        time.sleep(1)
