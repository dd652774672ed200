"""The Python packages openai, langchain-openai, litellm and anthropic as clients of `tl serve`:  clients.py URL"""

import asyncio
import json
import sys
import time

URL = sys.argv[1]
MODEL = "smollm2"
KEY = "clients"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]


def with_openai():
    import openai
    from pydantic import BaseModel, Field

    client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY)
    assert [m.id for m in client.models.list()] == [MODEL]
    plain = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=12, temperature=0)
    assert plain.usage.completion_tokens == 12 and plain.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == plain.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 12
    scored = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=2, temperature=0, logprobs=True, top_logprobs=3)
    assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in scored.choices[0].logprobs.content)
    text = client.completions.create(model=MODEL, prompt=["Once", "Twice"], n=2, max_tokens=3)
    assert len(text.choices) == 4

    vectors = client.embeddings.create(model=MODEL, input=["a cat", "a dog"]).data
    floats = client.embeddings.create(model=MODEL, input="a cat", encoding_format="float").data
    assert max(abs(a - b) for a, b in zip(vectors[0].embedding, floats[0].embedding)) < 1e-6
    assert abs(sum(v * v for v in vectors[1].embedding) - 1) < 1e-4

    tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": WEATHER, "strict": True}}]
    called = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=tools, tool_choice="required", temperature=0, max_tokens=60)
    call = called.choices[0].message.tool_calls[0]
    assert called.choices[0].finish_reason == "tool_calls" and json.loads(call.function.arguments)["city"]
    result = {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}
    client.chat.completions.create(model=MODEL, messages=[*QUESTION, called.choices[0].message, result], tools=tools, max_tokens=4)
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=tools, tool_choice="required", temperature=0, max_tokens=60) as s:
        final = s.get_final_completion().choices[0].message
    assert final.tool_calls[0].function.arguments == call.function.arguments

    class Pet(BaseModel):
        name: str = Field(max_length=10)
        age: int = Field(ge=1, le=30)

    parsed = client.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Pet, temperature=0, max_tokens=80)
    assert 1 <= parsed.choices[0].message.parsed.age <= 30

    whole = client.responses.create(model=MODEL, input="Hello", max_output_tokens=8, temperature=0)
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=8, temperature=0) as s:
        parts = "".join(e.delta for e in s if e.type == "response.output_text.delta")
    assert parts == whole.output_text != ""

    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=QUESTION, max_tokens=1, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine"
    for wrong, kind in [({"model": "other"}, openai.NotFoundError), ({"temperature": 9}, openai.BadRequestError)]:
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **wrong})
            raise AssertionError(wrong)
        except kind as e:
            assert e.param in ("model", "temperature"), e
    try:
        openai.OpenAI(base_url=URL + "/v1", api_key="wrong").models.list()
        raise AssertionError("a wrong key")
    except openai.AuthenticationError:
        pass

    async def together():
        many = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY)
        asks = (many.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=6, temperature=0) for _ in range(8))
        return await asyncio.gather(*asks)

    assert all(a.usage.completion_tokens == 6 for a in asyncio.run(together()))


def with_langchain():
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel, Field

    chat = ChatOpenAI(model=MODEL, base_url=URL + "/v1", api_key=KEY, temperature=0, max_tokens=60, stream_usage=True)
    whole = chat.invoke("Hello", max_tokens=8)
    chunks = list(chat.stream("Hello", max_tokens=8))
    assert "".join(c.content for c in chunks) == whole.content != ""
    assert sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata) == 8

    class get_weather(BaseModel):
        """The weather of a city"""

        city: str = Field(max_length=12)

    called = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("What is the weather in Oslo?")
    assert called.tool_calls[0]["name"] == "get_weather" and called.tool_calls[0]["args"]["city"]
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(get_weather, method=method).invoke("Weather in Oslo?"), get_weather)
    # Its own tokenizer would be that of another model.
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=URL + "/v1", api_key=KEY, check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["a", "b"])) == 2


def with_litellm():
    import litellm

    own = {"model": "openai/" + MODEL, "api_base": URL + "/v1", "api_key": KEY}
    whole = litellm.completion(messages=QUESTION, max_tokens=8, temperature=0, **own)
    stream = litellm.completion(messages=QUESTION, max_tokens=8, temperature=0, stream=True, **own)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == whole.choices[0].message.content != ""
    assert len(litellm.embedding(input=["a cat"], **own).data) == 1


def with_anthropic():
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key=KEY)
    # The package has no field for it any more.
    own = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}, "messages": QUESTION}
    whole = client.messages.create(**{**own, "max_tokens": 8}, system="Be brief.")
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 8
    with client.messages.stream(**{**own, "max_tokens": 8}, system="Be brief.") as s:
        assert "".join(s.text_stream) == whole.content[0].text
    tools = [{"name": "get_weather", "description": "The weather", "input_schema": WEATHER}]
    called = client.messages.create(**own, tools=tools, tool_choice={"type": "tool", "name": "get_weather"})
    assert called.stop_reason == "tool_use" and called.content[0].input["city"]
    with client.messages.stream(**own, tools=tools, tool_choice={"type": "any"}) as s:
        assert s.get_final_message().content[0].name == "get_weather"
    result = {"type": "tool_result", "tool_use_id": called.content[0].id, "content": "7 degrees"}
    talk = [*QUESTION, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**{**own, "messages": talk, "max_tokens": 4}, tools=tools).usage.output_tokens > 0
    try:
        client.messages.create(**{**own, "model": "other"})
        raise AssertionError("another model")
    except anthropic.NotFoundError:
        pass


for check in (with_openai, with_langchain, with_litellm, with_anthropic):
    begun = time.monotonic()
    check()
    print(f"{check.__name__.removeprefix('with_')}: {time.monotonic() - begun:.1f} s", flush=True)
