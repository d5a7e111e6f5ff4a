"""FastAPI and ONNX Runtime without batching: what most people write first."""

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from model import PuzzleModel, settings_of

settings = settings_of()
model = PuzzleModel(settings.bundle, settings.form, settings.batch)
app = FastAPI()


class Question(BaseModel):
    puzzle: str


@app.get("/readyz")
def ready() -> None:
    return None


@app.post("/solve")
def solve(question: Question) -> dict[str, object]:
    (answer,) = model.solve([question.puzzle])
    return answer


if __name__ == "__main__":
    uvicorn.run(app, port=settings.port, log_level="warning")
