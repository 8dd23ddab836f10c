"""Writes GGUF files of small models: weights all zero, enough for what reads shapes only, or drawn at random."""

import array
import itertools
import math
import random
import struct

ALIGNMENT = 32
U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
FORMAT = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value):
    kind = next(kind for kind, of in ((STRING, str), (BOOL, bool), (F32, float), (U32, int)) if isinstance(value, of))
    return kind, _string(value) if kind == STRING else struct.pack(FORMAT[kind], value)


def _value(value):
    if isinstance(value, list):
        typed = [_typed(item) for item in value]
        # Lists of integers are token types, which llama.cpp reads as signed.
        kind = I32 if typed[0][0] == U32 else typed[0][0]
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(data for _, data in typed)
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


class Normal:
    """Weights of a random model: {name, shape} -> f32 values. Matrices keep a row's norm, so that activations stay near 1."""

    # A pool of prime length, read round and round, so that no two rows are alike.
    POOL = 65521

    def __init__(self, seed, spread):
        """spread: the end of a tensor's name -> standard deviation, of a matrix times 1/sqrt(fan-in), or (mean, deviation). What is
        not named has 1, or as a vector 0.1 round a mean of 1 (weights of norms) or 0 (biases)."""
        source = random.Random(seed)
        self.pool = array.array("f", (source.gauss(0, 1) for _ in range(self.POOL)))
        self.next = 0
        self.spread = spread

    def __call__(self, name, shape):
        vector = len(shape) == 1
        mean = 1.0 if vector and "norm" in name and name.endswith("weight") else 0.0
        deviation = next((of for end, of in self.spread.items() if name.endswith(end)), 0.1 if vector else 1.0)
        if isinstance(deviation, tuple):
            mean, deviation = deviation
        if not vector:
            deviation *= shape[0] ** -0.5
        start, count = self.next % self.POOL, math.prod(shape)
        self.next += count
        normal = itertools.islice(itertools.cycle(self.pool), start, start + count)
        return array.array("f", (mean + deviation * value for value in normal))


def write(path, metadata, tensors, weights=None):
    """metadata: key -> str, int, float, bool or a list of one kind. tensors: name -> shape, first axis contiguous; all f32.
    weights: a function of name and shape; None leaves zeros."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    offset = 0
    offsets = []
    for name, shape in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", extent) for extent in shape)
        head += struct.pack("<IQ", 0, offset)
        offsets.append(offset)
        offset += -(-4 * math.prod(shape) // ALIGNMENT) * ALIGNMENT
    head += bytes(-len(head) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(head)
        if weights is not None:
            for (name, shape), at in zip(tensors.items(), offsets):
                file.seek(len(head) + at)
                file.write(weights(name, shape).tobytes())
        file.truncate(len(head) + offset)
