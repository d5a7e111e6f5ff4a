"""Clients in other languages: generated from a live server's description, and those of the docs."""

import sys
from pathlib import Path

import pytest
from cli_tools import ran, tool
from files import blocks, text_of
from scripted_server import examples
from service_tools import hrm_serve, running

pytestmark = [pytest.mark.process, pytest.mark.slow]
INTERPRETERS = {
    "sh": ["sh"],
    "js": ["node", "--input-type=module"],
    "python": [sys.executable],
    "java": ["java", "Solve.java"],
    "powershell": ["pwsh", "-Command", "-"],
}
PYTHON = """
import json, sys
from client.hrm_edge_client import Client
from client.hrm_edge_client.api.client import solve, solve_stream
from client.hrm_edge_client.models import BatchLine, SegmentView, SolveAnswer, SolveRequest

url, question, solution = sys.argv[1:]
request = SolveRequest(puzzle=question)
client = Client(base_url=url)
assert solve.sync(client=client, body=request).solution == solution
text = solve_stream.sync_detailed(client=client, body=request).content.decode()
*segments, last = [json.loads(line[6:]) for line in text.splitlines() if line[:6] == "data: "]
views = [SegmentView.from_dict(segment) for segment in segments]
assert len(views) == SolveAnswer.from_dict(last).segments
lines = (json.dumps(request.to_dict()) + "\\n") * 2  # no function is generated for NDJSON
headers = {"content-type": "application/x-ndjson"}
sent = client.get_httpx_client().post("/solve/batch", content=lines, headers=headers)
answers = [BatchLine.from_dict(json.loads(line)).answer for line in sent.text.splitlines()]
assert [answer.solution for answer in answers] == [solution, solution]
"""
TYPESCRIPT = """
import type { components } from "./api";
type Schemas = components["schemas"];
declare const process: { argv: string[] };
const [, , url, question, solution] = process.argv;
const request: Schemas["SolveRequest"] = { puzzle: question };
async function lines(path: string, type: string) {
  const sent = { method: "POST", headers: { "content-type": type }, body: JSON.stringify(request) };
  return (await (await fetch(url + path, sent)).text()).trim().split("\\n");
}
async function main() {
  const answer: Schemas["SolveAnswer"] = JSON.parse((await lines("/solve", "application/json"))[0]);
  const events = await lines("/solve/stream", "application/json");
  const data = events.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
  const segments: Schemas["SegmentView"][] = data.slice(0, -1).map((one) => JSON.parse(one));
  const [batch] = await lines("/solve/batch", "application/x-ndjson");
  const line: Schemas["BatchLine"] = JSON.parse(batch);
  if (answer.solution !== solution || line.answer?.solution !== solution) throw answer;
  if (segments.length !== answer.segments) throw segments;
}
main();
"""


@pytest.mark.parametrize("language", INTERPRETERS)
def test_a_block_of_the_docs_solves_its_puzzle(language: str, tmp_path: Path):
    (block,) = blocks(text_of("docs/api.md"), language)
    tool(INTERPRETERS[language][0])
    with hrm_serve("sudoku-6x6") as server:
        block = block.replace("8000", str(server.port))
        (tmp_path / "Solve.java").write_text(block)  # the others read it from standard input
        done = ran(*INTERPRETERS[language], cwd=tmp_path, input=block)
    assert "314526562413241365653142425631136254" in done.stdout


@pytest.mark.parametrize(
    "programs", [("openapi-python-client",), ("openapi-typescript", "tsc", "node")]
)
def test_a_generated_client_solves_streams_and_batches(programs: tuple[str, ...], tmp_path: Path):
    for program in programs:
        tool(program)
    question, solution = next(iter(examples().items()))
    with running() as server:
        description = f"{server.url}/openapi.json"
        arguments = [server.url, question, solution]
        steps = [
            [programs[0], "generate", "--url", description, "--output-path", "client"],
            [sys.executable, "-c", PYTHON, *arguments],
        ]
        if "tsc" in programs:
            (tmp_path / "main.ts").write_text(TYPESCRIPT)
            steps = [
                [programs[0], description, "--default-non-nullable=false", "-o", "api.d.ts"],
                ["tsc", "--strict", "--target", "es2022", "main.ts"],
                ["node", "main.js", *arguments],
            ]
        for step in steps:
            ran(*step, cwd=tmp_path)
