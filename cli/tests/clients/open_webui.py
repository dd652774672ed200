"""The calls of Open WebUI, replayed from open_webui.json with its HTTP client, aiohttp:  open_webui.py URL"""

import asyncio
import json
import pathlib
import re
import sys
import time

import aiohttp

URL = sys.argv[1]
CALLS = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
HEADERS = {**CALLS["headers"], "Authorization": "Bearer clients"}


def post(session, name, route="chat/completions"):
    # Not `json=`: Open WebUI sends the text that it wrote itself.
    return session.post(f"{URL}/v1/{route}", data=json.dumps(CALLS[name]), headers=HEADERS)


async def streamed(session, name):
    """The text of an answer, whose stream is checked line by line as Open WebUI reads it."""
    body = CALLS[name]
    async with post(session, name) as response:
        assert response.status == 200, (name, await response.text())
        assert "text/event-stream" in response.headers["Content-Type"], name
        lines = [line.decode().strip() async for line in response.content]
    lines = [line for line in lines if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]", (name, lines[-3:])
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert all(c["object"] == "chat.completion.chunk" and c["id"] == chunks[0]["id"] and c["model"] == "smollm2" for c in chunks), name
    if "stream_options" in body:
        usage, last = chunks[-1]["usage"], chunks.pop()
        assert last["choices"] == [] and usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0, (name, last)
    assert not any(c.get("usage") for c in chunks), name
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"]["role"] == "assistant", name
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] in (["stop"], ["length"], ["tool_calls"]), name
    calls = [call for c in choices for call in c["delta"].get("tool_calls") or []]
    text = "".join(c["delta"].get("content") or "" for c in choices)
    assert text or calls, name
    return text


async def whole(session, name):
    """The text of an answer that is no stream; what it says is the model's affair."""
    async with post(session, name) as response:
        assert response.status == 200 and response.content_type == "application/json", (name, await response.text())
        answer = await response.json()
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion" and choice["message"]["role"] == "assistant" and answer["usage"]["total_tokens"] > 0, (name, answer)
    assert choice["message"]["content"] and choice["finish_reason"] in ("stop", "length"), (name, answer)
    return choice["message"]["content"]


async def refused(session, name, status, parameter):
    async with post(session, name) as response:
        error = (await response.json())["error"]
        assert response.status == status and error["param"] == parameter and parameter in error["message"], (name, response.status, error)


async def running(session):
    """How many answers are read or written, and wait."""
    async with session.get(f"{URL}/metrics", headers=HEADERS) as response:
        text = await response.text()
    return sum(int(n) for n in re.findall(r"^tl_num_requests_(?:running|waiting)\S* (\d+)", text, re.MULTILINE))


async def main():
    async with aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(total=120)) as session:
        # The connection is tried, and its models are listed.
        async with session.get(f"{URL}/v1/models", headers=HEADERS) as response:
            models = await response.json()
            assert response.status == 200 and models["object"] == "list", models
            assert [(m["id"], m["object"]) for m in models["data"]] == [("smollm2", "model")] and models["data"][0]["owned_by"], models
        async with session.get(f"{URL}/v1/models") as response:
            assert response.status == 401 and (await response.json())["error"]["message"]

        # One question to several models at once, while earlier conversations get their titles, tags and next questions.
        streams = ["chat", "chat without usage", "advanced parameters", "a file beside the question", "functions", "a function's result"]
        tasks = ["title", "tags", "follow-ups", "search queries"]
        await asyncio.gather(*(streamed(session, name) for name in streams), *(whole(session, name) for name in tasks))

        async with post(session, "embeddings", "embeddings") as response:
            vectors = [d["embedding"] for d in sorted((await response.json())["data"], key=lambda d: d["index"])]
            assert response.status == 200 and len(vectors) == 2 and all(abs(sum(v * v for v in x) - 1) < 1e-4 for x in vectors)

        await refused(session, "another model", 404, "model")
        async with post(session, "a parameter of another server") as response:
            assert response.status == 200, await response.text()
            await response.read()

        # The stop button closes the connection; of two answers the other goes on.
        async with post(session, "a long answer") as left, post(session, "a long answer") as other:
            await left.content.readuntil(b"\n\n")
            await other.content.readuntil(b"\n\n")
            assert await running(session) == 2
            left.close()
            end = time.monotonic() + 60
            while await running(session) != 1:
                assert time.monotonic() < end, "a stopped answer goes on"
            await other.content.readuntil(b"\n\n")
            other.close()
        while await running(session) != 0:
            assert time.monotonic() < end, "a stopped answer goes on"


begun = time.monotonic()
asyncio.run(main())
print(f"open webui's calls: {time.monotonic() - begun:.1f} s", flush=True)
