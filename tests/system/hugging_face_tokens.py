"""Tokenizers of Python's tokenizers and their tokens, as files: for tokenizer_test.py, by the Python of .deps/tokenizer.

    hugging_face_tokens.py make PATTERNS.json DOCUMENTS.json FOLDER   FOLDER/NAME.json for each pattern, trained on the documents
    hugging_face_tokens.py encode TOKENIZER DOCUMENTS.json            prints [[token, ...], ...] as JSON
    hugging_face_tokens.py train PATTERN VOCABULARY DOCUMENTS.json FILE [SPECIAL...]
    hugging_face_tokens.py time TOKENIZER FILE...                     prints tokens and seconds, a file being a document

A document is the Latin-1 form of its bytes, which may be no UTF-8.
"""
import json
import sys
import time
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 2000


def text_of(document):
    return document.encode("latin-1").decode("utf-8", errors="replace")


def documents_of(path):
    return [text_of(document) for document in json.loads(Path(path).read_text())]


def untrained(pattern):
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    if pattern:
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def trained(pattern, vocabulary, documents, special=("<|endoftext|>",)):
    tokenizer = untrained(pattern)
    tokenizer.train_from_iterator(documents, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def make(patterns, documents, folder):
    """The gpt2 one as it is; others with what files of Llama 3 and Qwen 2.5 have besides."""
    documents = documents_of(documents)
    for name, pattern in json.loads(Path(patterns).read_text()).items():
        tokenizer = trained(pattern, VOCABULARY, documents)
        if name != "gpt2":
            tokenizer.add_special_tokens(["<|im_start|>", "<|im_start|>>"])
            tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("caf\u00e9!", normalized=True)])
        if name == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        file = json.loads(tokenizer.to_str())
        file["model"]["ignore_merges"] = name == "llama3"
        if name == "llama3":  # words that are tokens though no merge makes them
            file["added_tokens"] = [each for each in file["added_tokens"] if each["id"] < VOCABULARY]
            for word in ("\u0120hyper", "zq"):
                file["model"]["vocab"].setdefault(word, len(file["model"]["vocab"]))
        (Path(folder) / f"{name}.json").write_text(json.dumps(file), encoding="utf-8")


def main(what, *rest):
    if what == "make":
        make(*rest)
    elif what == "encode":
        tokenizer = Tokenizer.from_file(rest[0])
        encoded = tokenizer.encode_batch_fast(documents_of(rest[1]), add_special_tokens=False)
        print(json.dumps([each.ids for each in encoded]))
    elif what == "train":
        trained(rest[0], int(rest[1]), documents_of(rest[2]), rest[4:] or ["<|endoftext|>"]).save(rest[3])
    elif what == "time":
        tokenizer = Tokenizer.from_file(rest[0])
        texts = [Path(path).read_bytes().decode("utf-8", errors="replace") for path in rest[1:]]
        begun = time.monotonic()
        tokens = sum(len(each.ids) for each in tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        print(tokens, f"{time.monotonic() - begun:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
