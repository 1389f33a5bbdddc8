"""The `openai` package against a gateway that keeps conversations: conversations, items, responses.

Usage: openai_responses.py BASE_URL MODEL BARE_URL   (the third gateway keeps nothing)
"""

import sys
import time

import openai

base_url, model, bare_url = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
bare = openai.OpenAI(base_url=bare_url, api_key="unused", max_retries=0)
QUESTION = "What is Tidegate?"
CALCULATOR = {
    "type": "function",
    "name": "calculator",
    "description": "Works out a sum.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"not refused: {kind}")


def conversations():
    made = client.conversations.create(
        metadata={"topic": "demo"}, items=[{"type": "message", "role": "user", "content": "Hello!"}]
    )
    assert made.id.startswith("conv_") and made.object == "conversation" and made.created_at > 1_700_000_000
    assert made.metadata == {"topic": "demo"}
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "other"})
    assert changed.metadata == {"topic": "other"} and changed.id == made.id
    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "4"},
        ],
    )
    assert [item.type for item in added.data] == ["message", "function_call", "function_call_output"]
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [item.type for item in items] == ["message", "message", "function_call", "function_call_output"], items
    assert items[0].content[0].text == "Hello!" and items[1].content[0].text == "Hi."
    newest = client.conversations.items.list(made.id, limit=1)
    assert newest.data[0].id == items[-1].id and newest.has_more
    one = client.conversations.items.retrieve(items[1].id, conversation_id=made.id)
    assert one == items[1]
    assert client.conversations.items.delete(items[1].id, conversation_id=made.id).id == made.id
    refused(openai.NotFoundError, lambda: client.conversations.items.retrieve(items[1].id, conversation_id=made.id))
    assert len(list(client.conversations.items.list(made.id))) == 3
    gone = client.conversations.delete(made.id)
    assert gone.deleted and gone.id == made.id and gone.object == "conversation.deleted"
    refused(openai.NotFoundError, lambda: client.conversations.retrieve(made.id))
    error = refused(openai.BadRequestError, lambda: client.conversations.create(metadata={"a": "x" * 600}))
    assert error.param == "metadata.a", error


def create():
    answer = client.responses.create(
        model=model, input=QUESTION, instructions="Answer briefly.", metadata={"a": "b"}, temperature=0.0
    )
    assert answer.object == "response" and answer.status == "completed" and answer.error is None
    assert answer.output_text and answer.output[-1].role == "assistant"
    assert answer.metadata == {"a": "b"} and answer.instructions == "Answer briefly." and answer.temperature == 0.0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0
    assert answer.usage.input_tokens_details.cached_tokens >= 0
    stored = client.responses.retrieve(answer.id)
    assert stored == answer, (stored, answer)
    items = list(client.responses.input_items.list(answer.id))
    assert [item.content[0].text for item in items] == [QUESTION]
    short = client.responses.create(model=model, input=QUESTION, max_output_tokens=1)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"
    client.responses.delete(answer.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))
    error = refused(openai.BadRequestError, lambda: client.responses.create(model=model, input=[]))
    assert error.param == "input"
    refused(openai.NotFoundError, lambda: client.responses.create(model="nobody", input="x"))


def stream():
    whole = client.responses.create(model=model, input=QUESTION, temperature=0.0)
    events = list(client.responses.create(model=model, input=QUESTION, temperature=0.0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    for kind in ["output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done"]:
        assert f"response.{kind}" in kinds, kinds
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text, (text, whole.output_text)
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response
    with client.responses.stream(model=model, input=QUESTION, temperature=0.0) as helper:
        for event in helper:
            pass
        assert helper.get_final_response().output_text == text


def logprobs():
    ask = dict(model=model, input=QUESTION, temperature=0.0, top_logprobs=2, include=["message.output_text.logprobs"])
    answer = client.responses.create(**ask)
    tokens = answer.output[-1].content[0].logprobs
    assert "".join(token.token for token in tokens) == answer.output_text, answer
    assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens), tokens
    assert client.responses.retrieve(answer.id) == answer
    events = list(client.responses.create(stream=True, **ask))
    said = [token for event in events if event.type == "response.output_text.delta" for token in event.logprobs]
    done = next(event for event in events if event.type == "response.output_text.done")
    last = events[-1].response.output[-1].content[0].logprobs
    names = lambda all: [(token.token, token.logprob) for token in all]
    assert names(said) == names(done.logprobs) == names(last) == names(tokens), (said, last)
    # Included without alternatives.
    alone = client.responses.create(model=model, input=QUESTION, include=ask["include"], max_output_tokens=4)
    assert [token.top_logprobs for token in alone.output[-1].content[0].logprobs] == [[]] * 4, alone
    assert client.responses.create(model=model, input=QUESTION).output[-1].content[0].logprobs in ([], None)


def chain():
    first = client.responses.create(model=model, input="My name is Ada.", temperature=0.0)
    second = client.responses.create(
        model=model, input=QUESTION, previous_response_id=first.id, temperature=0.0
    )
    assert second.previous_response_id == first.id
    alone = client.responses.create(model=model, input=QUESTION, temperature=0.0)
    assert second.usage.input_tokens > alone.usage.input_tokens, "the history is part of the prompt"
    refused(
        openai.NotFoundError,
        lambda: client.responses.create(model=model, input="x", previous_response_id="resp_nothing"),
    )
    # Deleting a response takes those that go on from it along.
    client.responses.delete(first.id)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(second.id))


def in_conversation():
    conversation = client.conversations.create()
    first = client.responses.create(model=model, input=QUESTION, conversation=conversation.id)
    assert first.conversation.id == conversation.id
    for event in client.responses.create(
        model=model, input="And what is it for?", conversation={"id": conversation.id}, stream=True
    ):
        pass
    items = list(client.conversations.items.list(conversation.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user", "assistant"], items
    assert items[1].content[0].text == first.output_text
    # Without keeping: it reads the conversation, and leaves nothing.
    client.responses.create(model=model, input="Thanks!", conversation=conversation.id, store=False)
    assert len(list(client.conversations.items.list(conversation.id))) == 4


def listed_items():
    """What a session of the Agents SDK does in each turn: it lists the items and sends them as input."""
    def session(question, **ask):
        conversation = client.conversations.create()
        client.responses.create(model=model, input=question, conversation=conversation.id, temperature=0.0, **ask)
        listed = client.conversations.items.list(conversation.id, order="asc")
        items = [item.model_dump(exclude_unset=True) for item in listed]
        assert items[-1]["response_id"] and items[-1]["usage"] and "sibling" in items[0], items
        return items

    items = session(QUESTION)
    more = {"role": "user", "content": "And what is it for?"}
    assert client.responses.create(model=model, input=[*items, more], store=False).output_text
    copy = client.conversations.create(items=items)
    assert len(list(client.conversations.items.list(copy.id))) == len(items)
    items = session("What is 12*12?", tools=[CALCULATOR])
    output = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "144"}
    answer = client.responses.create(model=model, input=[*items, output], tools=[CALCULATOR], temperature=0.0)
    assert "144" in answer.output_text, answer


def tools():
    question = "What is 12*12?"
    answer = client.responses.create(model=model, input=question, tools=[CALCULATOR], temperature=0.0)
    call = answer.output[-1]
    assert call.type == "function_call" and call.name == "calculator" and "12*12" in call.arguments, answer
    after = client.responses.create(
        model=model,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "144"}],
        previous_response_id=answer.id,
        tools=[CALCULATOR],
        temperature=0.0,
    )
    assert "144" in after.output_text, after
    by_hand = client.responses.create(
        model=model,
        input=[
            {"role": "user", "content": question},
            *answer.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "144"},
        ],
        tools=[CALCULATOR],
        temperature=0.0,
        store=False,
    )
    assert by_hand.output_text == after.output_text
    events = list(client.responses.create(model=model, input=question, tools=[CALCULATOR], temperature=0.0, stream=True))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done[0].arguments == call.arguments


def background():
    begun = client.responses.create(model=model, input="Tell me a story.", background=True, temperature=0.0)
    assert begun.status in ("queued", "in_progress") and begun.background, begun
    for _ in range(600):
        answer = client.responses.retrieve(begun.id)
        if answer.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)
    assert answer.status in ("completed", "incomplete") and answer.output_text, answer
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=4))
    assert rest == events[5:], (rest[0], events[5])
    long = client.responses.create(
        model=model, input="Tell me a story.", background=True, extra_body={"logit_bias": {"2": -100}}
    )
    cancelled = client.responses.cancel(long.id)
    assert cancelled.status in ("cancelled", "incomplete", "completed"), cancelled
    refused(openai.NotFoundError, lambda: client.responses.cancel("resp_nothing"))


def not_kept():
    answer = client.responses.create(model=model, input=QUESTION, store=False)
    assert answer.output_text
    refused(openai.NotFoundError, lambda: client.responses.retrieve(answer.id))
    # A gateway without a store answers, and says so where something should be kept.
    assert bare.responses.create(model=model, input=QUESTION).output_text
    error = refused(openai.NotFoundError, lambda: bare.responses.create(model=model, input=QUESTION, store=True))
    assert error.code == "store_not_configured" and "[store]" in error.message, error
    assert refused(openai.NotFoundError, lambda: bare.conversations.create()).code == "store_not_configured"


for step in [conversations, create, stream, logprobs, chain, in_conversation, listed_items, tools, background, not_kept]:
    step()
    print("ok", step.__name__)
