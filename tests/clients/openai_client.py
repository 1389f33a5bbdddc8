"""The `openai` package against a running gateway: chat, stream, tools, schemas, logprobs, errors, responses, models.

Usage: openai_client.py BASE_URL BARE_URL MODEL   (the second gateway has no stages)
"""

import enum
import sys

import openai
import pydantic

base_url, bare_url, model = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
bare = openai.OpenAI(base_url=bare_url, api_key="unused", max_retries=0)
QUESTION = [{"role": "user", "content": "What is Tidegate?"}]
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Works out a sum.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


def chat():
    answer = client.chat.completions.create(model=model, messages=QUESTION)
    assert answer.choices[0].message.role == "assistant"
    assert "Tidegate" in answer.choices[0].message.content, answer
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def stream():
    whole = client.chat.completions.create(model=model, messages=QUESTION).choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole, (text, whole)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 0 and chunks[-1].choices == []
    with client.chat.completions.stream(model=model, messages=QUESTION) as helper:
        assert helper.get_final_completion().choices[0].message.content == whole


def tools():
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is 17*23?"}])
    assert "391" in answer.choices[0].message.content, answer
    messages = [{"role": "user", "content": "What is 12*12?"}]
    answer = bare.chat.completions.create(model=model, messages=messages, tools=[CALCULATOR])
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "calculator" and "12*12" in call.function.arguments
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "144"}]
    answer = bare.chat.completions.create(model=model, messages=messages, tools=[CALCULATOR])
    assert "144" in answer.choices[0].message.content, answer
    with bare.chat.completions.stream(model=model, messages=messages[:1], tools=[CALCULATOR]) as helper:
        final = helper.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "calculator"


class Kind(enum.Enum):
    river = "river"
    sea = "sea"


class Port(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    kind: Kind
    berths: int = pydantic.Field(ge=1, le=99)


def schemas():
    question = [{"role": "user", "content": "Describe a port."}]
    answer = bare.chat.completions.parse(model=model, messages=question, response_format=Port)
    assert isinstance(answer.choices[0].message.parsed, Port), answer
    with bare.chat.completions.stream(model=model, messages=question, response_format=Port) as helper:
        assert helper.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    more = question + [answer.choices[0].message, {"role": "user", "content": "And another one."}]
    again = bare.chat.completions.parse(model=model, messages=more, response_format=Port)
    assert isinstance(again.choices[0].message.parsed, Port), again
    answer = bare.responses.parse(model=model, input="Describe a port.", text_format=Port)
    assert isinstance(answer.output_parsed, Port), answer
    more = [*question, *answer.output, {"role": "user", "content": "And another one."}]
    bare.responses.create(model=model, input=more, max_output_tokens=16)
    tool = openai.pydantic_function_tool(Port, name="register")
    for choice in ("required", {"type": "function", "function": {"name": "register"}}):
        answer = bare.chat.completions.parse(model=model, messages=question, tools=[tool], tool_choice=choice)
        call = answer.choices[0].message.tool_calls[0].function
        assert call.name == "register" and isinstance(call.parsed_arguments, Port), answer
    message = answer.choices[0].message
    done = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Registered."}
    bare.chat.completions.create(model=model, messages=question + [message, done], tools=[tool], max_tokens=8)
    bad = {"type": "array", "uniqueItems": True}
    try:
        bare.chat.completions.create(
            model=model,
            messages=question,
            response_format={"type": "json_schema", "json_schema": {"name": "bad", "schema": bad, "strict": True}},
        )
        raise AssertionError("a schema that cannot be held was taken")
    except openai.BadRequestError as error:
        assert error.param == "response_format.json_schema.schema" and "uniqueItems" in error.message, error


def logprobs():
    answer = bare.chat.completions.create(model=model, messages=QUESTION, logprobs=True, top_logprobs=2, max_tokens=8)
    content = answer.choices[0].logprobs.content
    assert len(content) == 8 and all(len(token.top_logprobs) == 2 for token in content)
    assert "".join(token.token for token in content) == answer.choices[0].message.content


def completions():
    answer = bare.completions.create(model=model, prompt="Once", max_tokens=5, logprobs=1, n=2, seed=1)
    assert len(answer.choices) == 2 and answer.usage.completion_tokens == 10
    assert len(answer.choices[0].logprobs.tokens) == 5


def errors():
    try:
        client.chat.completions.create(model="no-such-model", messages=QUESTION)
        raise AssertionError("an unknown model was served")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found" and error.param == "model", error
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=9)
        raise AssertionError("temperature 9 was served")
    except openai.BadRequestError as error:
        assert error.param == "temperature", error
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 5000}])
        raise AssertionError("a prompt over the context was served")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error


def response():
    """What the server adds to a response has no name that the package reads as something else."""
    answer = client.responses.create(model=model, input=QUESTION[0]["content"])
    assert answer.guards[0]["stage"] == "pii-guard" and answer.moderation is None, answer
    answer.model_dump_json(warnings="error")


def models():
    names = [entry.id for entry in client.models.list()]
    assert model in names, names
    assert client.models.retrieve(model).id == model


for check in (chat, stream, tools, schemas, logprobs, completions, errors, response, models):
    check()
    print("ok", check.__name__)
