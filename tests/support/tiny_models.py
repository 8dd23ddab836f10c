"""Shapes of small models whose caches no small real model has: each function returns (metadata, tensors) for tiny_gguf.write.

Their vocabulary is the 256 bytes, so any text is tokens, one a byte.
"""

N_VOCAB = 259
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def _metadata(name, n_embd, n_layers, n_ff, n_heads, n_kv_heads, **more):
    return {
        "general.architecture": name,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
        "tokenizer.ggml.scores": [0.0] * N_VOCAB,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
        f"{name}.context_length": 8192,
        f"{name}.embedding_length": n_embd,
        f"{name}.block_count": n_layers,
        f"{name}.feed_forward_length": n_ff,
        f"{name}.attention.head_count": n_heads,
        f"{name}.attention.head_count_kv": n_kv_heads,
        **{f"{name}.{key}": value for key, value in more.items()},
    }


def _ends(n_embd, biased=False):
    tensors = {"token_embd.weight": (n_embd, N_VOCAB), "output_norm.weight": (n_embd,), "output.weight": (n_embd, N_VOCAB)}
    return tensors | ({"output_norm.bias": (n_embd,)} if biased else {})


def _separate(n_embd, n_heads, n_kv_heads, head_dim, biased=False):
    tensors = {}
    for side, rows in (("q", n_heads), ("k", n_kv_heads), ("v", n_kv_heads)):
        tensors[f"attn_{side}.weight"] = (n_embd, rows * head_dim)
        if biased:
            tensors[f"attn_{side}.bias"] = (rows * head_dim,)
    return tensors | {"attn_output.weight": (n_heads * head_dim, n_embd)}


def _gated(n_embd, n_ff):
    return {"ffn_gate.weight": (n_embd, n_ff), "ffn_up.weight": (n_embd, n_ff), "ffn_down.weight": (n_ff, n_embd)}


def _plain(n_embd, n_ff):
    return {
        "ffn_up.weight": (n_embd, n_ff), "ffn_up.bias": (n_ff,),
        "ffn_down.weight": (n_ff, n_embd), "ffn_down.bias": (n_embd,),
    }  # fmt: skip


def _layers(tensors, n_layers, layer):
    for index in range(n_layers):
        tensors.update({f"blk.{index}.{name}": shape for name, shape in layer.items()})
    return tensors


def phi2(n_layers=3, n_heads=2, head_dim=80, n_rope_dims=32):
    """Head size 80, of which RoPE turns 32 channels; biases."""
    n_embd, n_ff = n_heads * head_dim, 160
    more = {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": n_rope_dims}
    layer = {"attn_norm.weight": (n_embd,), "attn_norm.bias": (n_embd,), "attn_output.bias": (n_embd,)}
    layer |= _separate(n_embd, n_heads, n_heads, head_dim, biased=True) | _plain(n_embd, n_ff)
    ends = _ends(n_embd, biased=True) | {"output.bias": (N_VOCAB,)}
    return _metadata("phi2", n_embd, n_layers, n_ff, n_heads, n_heads, **more), _layers(ends, n_layers, layer)


def phi3(n_layers=3, n_heads=2, head_dim=96):
    """Head size 96; q, k and v from one matrix."""
    n_embd, n_ff = n_heads * head_dim, 128
    more = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": head_dim}
    layer = {
        "attn_norm.weight": (n_embd,), "attn_qkv.weight": (n_embd, 3 * n_embd), "attn_output.weight": (n_embd, n_embd),
        "ffn_norm.weight": (n_embd,), "ffn_up.weight": (n_embd, 2 * n_ff), "ffn_down.weight": (n_ff, n_embd),
    }  # fmt: skip
    return _metadata("phi3", n_embd, n_layers, n_ff, n_heads, n_heads, **more), _layers(_ends(n_embd), n_layers, layer)


def bloom(n_layers=3, n_heads=4, head_dim=40):
    """ALiBi and no RoPE; head size 40."""
    n_embd, n_ff = n_heads * head_dim, 160
    layer = {
        "attn_norm.weight": (n_embd,), "attn_norm.bias": (n_embd,), "ffn_norm.weight": (n_embd,), "ffn_norm.bias": (n_embd,),
        "attn_qkv.weight": (n_embd, 3 * n_embd), "attn_qkv.bias": (3 * n_embd,),
        "attn_output.weight": (n_embd, n_embd), "attn_output.bias": (n_embd,),
    }  # fmt: skip
    ends = _ends(n_embd, biased=True) | {"token_embd_norm.weight": (n_embd,), "token_embd_norm.bias": (n_embd,)}
    metadata = _metadata("bloom", n_embd, n_layers, n_ff, n_heads, n_heads, **{"attention.layer_norm_epsilon": 1e-5})
    return metadata, _layers(ends, n_layers, layer | _plain(n_embd, n_ff))


def gpt_oss(n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, window=128):
    """Attention sinks; every other layer sees a window only; experts."""
    n_embd, n_ff, n_experts = 128, 64, 2
    more = {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": head_dim, "attention.value_length": head_dim,
        "attention.sliding_window": window, "rope.dimension_count": head_dim,
        "expert_feed_forward_length": n_ff, "expert_count": n_experts, "expert_used_count": 1,
    }  # fmt: skip
    layer = {"attn_norm.weight": (n_embd,), "post_attention_norm.weight": (n_embd,), "attn_sinks.weight": (n_heads,)}
    layer |= _separate(n_embd, n_heads, n_kv_heads, head_dim, biased=True) | {"attn_output.bias": (n_embd,)}
    layer |= {"ffn_gate_inp.weight": (n_embd, n_experts), "ffn_gate_inp.bias": (n_experts,)}
    for name, (inner, outer) in (("gate", (n_embd, n_ff)), ("up", (n_embd, n_ff)), ("down", (n_ff, n_embd))):
        layer |= {f"ffn_{name}_exps.weight": (inner, outer, n_experts), f"ffn_{name}_exps.bias": (outer, n_experts)}
    metadata = _metadata("gpt-oss", n_embd, n_layers, n_ff, n_heads, n_kv_heads, **more)
    return metadata, _layers(_ends(n_embd), n_layers, layer)


def gemma2(n_layers=4, n_heads=2, n_kv_heads=1, head_dim=256, window=128, softcap=5.0):
    """Soft-capped logits, head size 256, one KV head; every other layer sees a window only."""
    n_embd, n_ff = 128, 128
    more = {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": head_dim, "attention.value_length": head_dim,
        "attention.sliding_window": window, "rope.dimension_count": head_dim, "attn_logit_softcapping": softcap,
    }  # fmt: skip
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    layer = {f"{name}.weight": (n_embd,) for name in norms}
    layer |= _separate(n_embd, n_heads, n_kv_heads, head_dim) | _gated(n_embd, n_ff)
    ends = _ends(n_embd)
    del ends["output.weight"]
    return _metadata("gemma2", n_embd, n_layers, n_ff, n_heads, n_kv_heads, **more), _layers(ends, n_layers, layer)


def gemma3n(n_layers=22, n_heads=2, n_kv_heads=1, head_dim=64, window=128):
    """The first 20 layers have caches; the others read those of layers 18 (window) and 19."""
    n_embd, n_ff, n_altup, n_embd_altup, laurel_rank = 64, 64, 4, 256, 64
    more = {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.key_length": head_dim, "attention.value_length": head_dim,
        "attention.sliding_window": window, "rope.dimension_count": head_dim,
    }  # fmt: skip
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "laurel_post_norm", "altup_router_norm")
    layer = {f"{name}.weight": (n_embd,) for name in norms}
    layer |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    layer |= _separate(n_embd, n_heads, n_kv_heads, head_dim) | _gated(n_embd, n_ff)
    layer |= {
        "inp_gate.weight": (n_embd, n_embd_altup), "proj.weight": (n_embd_altup, n_embd),
        "altup_correct_coef.weight": (n_altup, n_altup), "altup_correct_scale.weight": (n_embd,),
        "altup_predict_coef.weight": (n_altup, n_altup * n_altup), "altup_router.weight": (n_embd, n_altup),
        "laurel_l.weight": (n_embd, laurel_rank), "laurel_r.weight": (laurel_rank, n_embd),
    }  # fmt: skip
    ends = _ends(n_embd) | {
        "altup_proj.weight": (n_embd, n_embd, n_altup - 1), "altup_unembd_proj.weight": (n_embd, n_embd, n_altup - 1),
        "per_layer_token_embd.weight": (n_embd_altup * n_layers, N_VOCAB),
        "per_layer_model_proj.weight": (n_embd, n_embd_altup * n_layers), "per_layer_proj_norm.weight": (n_embd_altup,),
    }  # fmt: skip
    return _metadata("gemma3n", n_embd, n_layers, n_ff, n_heads, n_kv_heads, **more), _layers(ends, n_layers, layer)


def mla(n_layers=3, n_heads=4, kv_lora_rank=128, n_rope_dims=32):
    """DeepSeek-V2 with multi-head latent attention: one row of kv_lora_rank + n_rope_dims a token, no values."""
    n_embd, n_ff, q_rank, nope, head_v = 128, 128, 32, 64, 64
    more = {
        "leading_dense_block_count": n_layers,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": kv_lora_rank,
        "attention.key_length": kv_lora_rank + n_rope_dims,
        "attention.value_length": kv_lora_rank,
        "attention.key_length_mla": nope + n_rope_dims,
        "attention.value_length_mla": head_v,
        "rope.dimension_count": n_rope_dims,
        "expert_feed_forward_length": n_ff,
        "expert_shared_count": 1,
    }
    layer = {
        "attn_norm.weight": (n_embd,),
        "attn_q_a_norm.weight": (q_rank,),
        "attn_kv_a_norm.weight": (kv_lora_rank,),
        "attn_q_a.weight": (n_embd, q_rank),
        "attn_q_b.weight": (q_rank, n_heads * (nope + n_rope_dims)),
        "attn_kv_a_mqa.weight": (n_embd, kv_lora_rank + n_rope_dims),
        "attn_k_b.weight": (nope, kv_lora_rank, n_heads),
        "attn_v_b.weight": (kv_lora_rank, head_v, n_heads),
        "attn_output.weight": (n_heads * head_v, n_embd),
        "ffn_norm.weight": (n_embd,),
    } | _gated(n_embd, n_ff)
    return _metadata("deepseek2", n_embd, n_layers, n_ff, n_heads, 1, **more), _layers(_ends(n_embd), n_layers, layer)
