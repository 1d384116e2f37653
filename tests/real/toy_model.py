"""Write a toy chat model with random weights for the tests against a real vLLM server.

Run it with the python of ``${REAL_DIR:-.real}/venv``; it writes weights, tokenizer and chat
template to ``${REAL_DIR:-.real}/model``. The size is chosen for its speed: about 75 tokens/s a
stream at five streams on two slow CPU cores, so that a request is in flight for seconds and a
fault finds streams to break; on faster cores give more ``--layers`` (12 where a core is twice as
fast). The same seed gives the same bytes.

It must never fetch anything, and never write or delete outside its output directory (and the
``.new`` and ``.old`` directories beside it, through which a finished model replaces an old one).
The text the model makes is noise: nothing may be concluded from it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

MAX_LENGTH = 1024
VOCAB_SIZE = 512
LAYERS = 4
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD_ID, END_ID = 0, 2
SPACE = "Ġ"  # how a byte-level vocabulary writes the space
# Each of these words, after a space, is one token; "tok" is first: it fills the test prompts.
WORD_TEXT = (
    "tok the a of and to in is it that was for on are as with at by from this have or one had "
    "not but what all were when we there can an your which said if do will each about how up "
    "out them then she many some so these would other into has more two like him see time could "
    "no make than first been its who now people my made over did down only way find use may "
    "water long little very after words called just where most know server client stream token "
    "request answer load fault kill restart recover measure"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def vocabulary(alphabet: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return token ids and merges: the bytes, then every prefix of every word in WORD_TEXT.

    All merges grow a piece that starts with a space, so none can get in another's way and a word
    of the list always ends as one token. The vocabulary is filled exactly, because an id without
    a token would be a sampled token without text.
    """
    vocab = {token: i for i, token in enumerate([*SPECIALS, *sorted(alphabet)])}
    merges: list[tuple[str, str]] = []
    for word in WORD_TEXT.split():
        piece = SPACE
        for letter in word:
            if piece + letter not in vocab:
                if len(vocab) == VOCAB_SIZE:
                    return vocab, merges
                merges.append((piece, letter))
                vocab[piece + letter] = len(vocab)
            piece += letter
    raise SystemExit(f"toy_model: the words give {len(vocab)} tokens, {VOCAB_SIZE} are needed")


def save_tokenizer(out: Path) -> None:
    """Write the tokenizer and its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab, merges = vocabulary(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIALS))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        bos_token=None,
        eos_token=SPECIALS[END_ID],
        pad_token=SPECIALS[PAD_ID],
        model_max_length=MAX_LENGTH,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    if len(tokenizer) != VOCAB_SIZE:
        raise SystemExit(f"toy_model: the tokenizer has {len(tokenizer)} tokens, not {VOCAB_SIZE}")
    tokenizer.save_pretrained(out)


def save_weights(out: Path, seed: int, layers: int) -> int:
    """Write the configuration and random weights; return the number of parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=PAD_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(out)
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    """Write the model beside its place, then move it in."""
    parser = argparse.ArgumentParser(description="write the toy model of the real-server tests")
    default = Path(os.environ.get("REAL_DIR") or ".real") / "model"
    parser.add_argument("--out", type=Path, default=default, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=LAYERS, help="fewer is faster: %(default)s")
    args = parser.parse_args()

    out: Path = args.out.absolute()
    if out.exists() and any(out.iterdir()) and not (out / "config.json").is_file():
        sys.exit(f"toy_model: {out} holds something that is no model: not touching it")
    new, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(parents=True)
    save_tokenizer(new)
    parameters = save_weights(new, args.seed, args.layers)
    if out.exists():
        out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
    print(f"toy_model: {parameters} parameters in {out}")


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    main()
