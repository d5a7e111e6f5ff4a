"""LitServe with dynamic batches, as its documentation shows: decode, batch, predict, encode."""

import litserve

from model import PuzzleModel, settings_of

settings = settings_of()


class PuzzleAPI(litserve.LitAPI):
    def setup(self, device):  # noqa: ARG002
        self.model = PuzzleModel(settings.bundle, settings.form, settings.batch)

    def decode_request(self, request):
        return request["puzzle"]

    def batch(self, inputs):
        return inputs

    def predict(self, puzzles):
        if settings.batch == 1:  # without batching LitServe passes the puzzle itself
            return self.model.solve([puzzles])[0]
        return self.model.solve(puzzles)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = PuzzleAPI(
        max_batch_size=settings.batch, batch_timeout=settings.wait_ms / 1000, api_path="/solve"
    )
    server = litserve.LitServer(api, accelerator="cpu", healthcheck_path="/readyz")
    server.run(port=settings.port, generate_client_file=False, log_level="warning")
