r"""Write a tiny llama model with random weights as GGUF for the tests against llama.cpp's server.

Needs the PyPI package ``gguf``. The server itself is not installed by anything here: the caller
names one with ``LLAMA_SERVER=/path/to/llama-server`` and starts it on the file written, for
example::

    python tests/real/toy_gguf.py --out .real/tiny.gguf
    "$LLAMA_SERVER" -m .real/tiny.gguf --alias tiny --host 127.0.0.1 --port PORT \
        -c 8192 -np 8 -t 1 --metrics

A build with shared libraries also needs ``LD_LIBRARY_PATH`` set to their folder. ``-t 1`` matters
on a small or shared machine: threads that wait for each other spin, and a busy core makes the
whole server many times slower. The same seed gives the same bytes.

It must never fetch anything and never write any file but its output (first under the name
``OUTPUT.new``, so that an interrupted run leaves no half model in place). The text the model
makes is noise: nothing may be concluded from it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

CONTEXT = 4096
WIDTH = 512
LAYERS = 3
HEADS = 8
FEED_FORWARD = 2048
SCALE = 0.02
SPACE = "\u2581"  # how a llama vocabulary writes the space
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the format
WORDS = ["tok", "the", "a", "server", "client", "stream", "token", "fault", "kill", "restart"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """Return tokens, scores and types: three specials, the bytes, and every prefix of WORDS.

    The tokenizer joins neighbours into the known piece of the best score, so each prefix must be
    a token for a word to be reached, and pieces found earlier score better. A word's own letters
    are known too, as the joining starts from single characters.
    """
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    pieces: dict[str, None] = dict.fromkeys([SPACE, *sorted(set("".join(WORDS)))])
    for word in WORDS:
        pieces.update(dict.fromkeys(SPACE + word[:i] for i in range(1, len(word) + 1)))
    scores = [0.0] * len(tokens) + [-float(i) for i in range(len(pieces))]
    tokens += [piece.encode() for piece in pieces]
    types += [NORMAL] * len(pieces)
    return tokens, scores, types


def add_weights(writer: Any, vocab_size: int, seed: int) -> int:
    """Add every tensor of the model to ``writer`` and return the number of parameters."""
    import numpy as np

    rng = np.random.default_rng(seed)
    count = 0

    def add(name: str, *shape: int) -> None:
        nonlocal count
        one_dimension = len(shape) == 1  # a norm: ones and 32 bits, as the server asks for
        data = (
            np.ones(shape, np.float32)
            if one_dimension
            else (rng.standard_normal(shape, np.float32) * SCALE).astype(np.float16)
        )
        count += data.size
        writer.add_tensor(name, data)

    add("token_embd.weight", vocab_size, WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", vocab_size, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        add(block + "attn_norm.weight", WIDTH)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}{part}.weight", WIDTH, WIDTH)
        add(block + "ffn_norm.weight", WIDTH)
        add(block + "ffn_gate.weight", FEED_FORWARD, WIDTH)
        add(block + "ffn_up.weight", FEED_FORWARD, WIDTH)
        add(block + "ffn_down.weight", WIDTH, FEED_FORWARD)
    return count


def write(out: Path, seed: int) -> int:
    """Write the whole file and return the number of parameters."""
    try:
        import gguf
    except ImportError:
        sys.exit("toy_gguf: the package gguf is needed: pip install gguf")

    tokens, scores, types = vocabulary()
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    count = add_weights(writer, len(tokens), seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return count


def main() -> None:
    """Write the model under another name, then move it into place."""
    parser = argparse.ArgumentParser(description="write the toy GGUF model of the llama.cpp tests")
    default = Path(os.environ.get("REAL_DIR") or ".real") / "tiny.gguf"
    parser.add_argument("--out", type=Path, default=default, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    out: Path = args.out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(out.name + ".new")
    count = write(new, args.seed)
    new.replace(out)
    print(f"toy_gguf: {count} parameters in {out}")


if __name__ == "__main__":
    main()
