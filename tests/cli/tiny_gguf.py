"""Writes GGUF files of small models whose weights are all zero: enough for what reads shapes only."""

import struct

ALIGNMENT = 32
U32, F32, STRING = 4, 6, 8


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    return struct.pack("<II", U32, value)


def write(path, metadata, tensors):
    """metadata: key -> str, int or float. tensors: name -> shape, first axis contiguous; all f32 zeros."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    offset = 0
    for name, shape in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += b"".join(struct.pack("<Q", extent) for extent in shape)
        head += struct.pack("<IQ", 0, offset)
        size = 4
        for extent in shape:
            size *= extent
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    head += bytes(-len(head) % ALIGNMENT)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)


def write_mla(path, n_layers=3, n_heads=4, kv_lora_rank=128, n_rope_dims=32):
    """DeepSeek-V2 with multi-head latent attention: one row of kv_lora_rank + n_rope_dims a token, no values."""
    n_embd, n_ff, n_vocab, q_rank, nope, head_v = 128, 128, 64, 32, 64, 64
    name = "deepseek2"
    metadata = {
        "general.architecture": name,
        "tokenizer.ggml.model": "no_vocab",
        f"{name}.vocab_size": n_vocab,
        f"{name}.context_length": 8192,
        f"{name}.embedding_length": n_embd,
        f"{name}.block_count": n_layers,
        f"{name}.feed_forward_length": n_ff,
        f"{name}.leading_dense_block_count": n_layers,
        f"{name}.attention.head_count": n_heads,
        f"{name}.attention.head_count_kv": 1,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{name}.attention.q_lora_rank": q_rank,
        f"{name}.attention.kv_lora_rank": kv_lora_rank,
        f"{name}.attention.key_length": kv_lora_rank + n_rope_dims,
        f"{name}.attention.value_length": kv_lora_rank,
        f"{name}.attention.key_length_mla": nope + n_rope_dims,
        f"{name}.attention.value_length_mla": head_v,
        f"{name}.rope.dimension_count": n_rope_dims,
        f"{name}.expert_feed_forward_length": n_ff,
        f"{name}.expert_shared_count": 1,
    }
    tensors = {
        "token_embd.weight": (n_embd, n_vocab),
        "output_norm.weight": (n_embd,),
        "output.weight": (n_embd, n_vocab),
    }
    for layer in range(n_layers):
        block = f"blk.{layer}."
        tensors.update(
            {
                block + "attn_norm.weight": (n_embd,),
                block + "attn_q_a_norm.weight": (q_rank,),
                block + "attn_kv_a_norm.weight": (kv_lora_rank,),
                block + "attn_q_a.weight": (n_embd, q_rank),
                block + "attn_q_b.weight": (q_rank, n_heads * (nope + n_rope_dims)),
                block + "attn_kv_a_mqa.weight": (n_embd, kv_lora_rank + n_rope_dims),
                block + "attn_k_b.weight": (nope, kv_lora_rank, n_heads),
                block + "attn_v_b.weight": (kv_lora_rank, head_v, n_heads),
                block + "attn_output.weight": (n_heads * head_v, n_embd),
                block + "ffn_norm.weight": (n_embd,),
                block + "ffn_gate.weight": (n_embd, n_ff),
                block + "ffn_down.weight": (n_ff, n_embd),
                block + "ffn_up.weight": (n_embd, n_ff),
            }
        )
    write(path, metadata, tensors)
