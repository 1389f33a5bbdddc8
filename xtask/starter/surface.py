"""The surface of a question: people leave out capitals and question marks, add a polite lead, and mistype."""

POLITE = [
    "hey, ", "please, ", "hi, ", "so, ", "ok, ", "quick question: ", "I wonder, ", "tell me, ", "hello, ", "well, ",
    "and ",
]
LEADS = [
    "I am new here. ", "I have a question. ", "Thanks! ", "Great. ", "One more thing: ", "Okay, next: ",
    "I am curious: ", "Nice. ", "Sorry to bother you, but ", "My boss asks: ", "I read the README. ",
]
TAILS = [" please", ", please", " thanks", " exactly", " again"]


def surface(rng, text, loose=True):
    """The text as somebody types it; without `loose` no word is touched, because the answer repeats one."""
    text = text[:1].upper() + text[1:] if rng.random() < 0.7 else text
    if not loose:
        return text.rstrip("?.!") if rng.random() < 0.1 else text
    for change, share in ((_lead, 0.12), (_drop_word, 0.05), (_tail, 0.06), (_no_mark, 0.2), (str.lower, 0.15),
                          (str.upper, 0.03), (_typo, 0.08)):
        if rng.random() < share:
            text = change(text) if change in (str.lower, str.upper) else change(rng, text)
    return text


def _lead(rng, text):
    if rng.random() < 0.4:
        return rng.choice(LEADS) + text[:1].upper() + text[1:]
    return rng.choice(POLITE).capitalize() + (text if text.startswith("I ") else text[:1].lower() + text[1:])


def _drop_word(rng, text):
    parts = text.split(" ")
    if len(parts) < 5:  # of a short question every word is needed
        return text
    del parts[rng.randrange(len(parts) - 1)]
    return " ".join(parts)


def _tail(rng, text):
    return text[:-1] + rng.choice(TAILS) + rng.choice(["?", "?", ""]) if text.endswith("?") else text


def _no_mark(rng, text):
    return text.rstrip("?.!") or text


def _typo(rng, text):
    """A letter that is missing, doubled, or swapped with the next one."""
    if len(text) < 9:
        return text
    i = rng.randrange(1, len(text) - 2)
    return rng.choice([
        text[:i] + text[i + 1:], text[:i] + text[i] + text[i:], text[:i] + text[i + 1] + text[i] + text[i + 2:]])
