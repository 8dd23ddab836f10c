"""What the server scenarios share: prompts, the next token's distribution, and how far two of them may lie apart."""

import math

import llama_tools

SMOLLM2 = llama_tools.MODELS["smollm2"]
# One thread: the machine's cores are shared, and ggml's threads spin while they wait for each other.
SERVER = ["-m", SMOLLM2, "-t", 1, "-fa", "on", "--no-warmup"]


def text(n_words, skip=0):
    """A stretch of the handbook."""
    words = llama_tools.HANDBOOK.read_text(errors="replace").split()
    return " ".join(words[skip : skip + n_words])


def distribution(answer, token=0):
    """{token: probability} at a new token, from an answer to a request with n_probs."""
    tops = answer["completion_probabilities"][token]["top_logprobs"]
    return {top["id"]: math.exp(top["logprob"]) for top in tops}


def next_token(server, prompt, n_probs=20, **extra):
    return server.complete(prompt, n_predict=1, n_probs=n_probs, **extra)


def distance(a, b):
    """Total variation between two distributions of which the top tokens are known."""
    return 0.5 * sum(abs(a.get(token, 0.0) - b.get(token, 0.0)) for token in a.keys() | b.keys())
