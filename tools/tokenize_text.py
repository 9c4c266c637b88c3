"""Turn text files into one raw file of token ids, the form that `tieshard train --data` reads.

    python tools/tokenize_text.py --tokenizer MODEL/tokenizer.json --out tokens.bin book.txt more.txt.gz
    python tools/tokenize_text.py --tokenizer MODEL/tokenizer.json --out tokens.bin --python-docs

The ids follow one another little-endian, uint16 where the vocabulary fits and else uint32, without any header. Each
TEXT is one document (.gz is unpacked); --end-of-document appends a special token to each. --python-docs adds the
language reference that every Python carries (pydoc_data.topics): about 110 thousand tokens without a download.
"""

import argparse
import gzip
import pathlib
import sys

import numpy
from tokenizers import Tokenizer


def read_text(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return file.read()


def python_documentation():
    """The sections of Python's language reference, in the order of their names."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def encode(tokenizer, documents, end_of_document):
    """Token ids of all documents, one after the other; end_of_document is a token, or None."""
    end = [] if end_of_document is None else [tokenizer.token_to_id(end_of_document)]
    if None in end:
        sys.exit(f"the tokenizer has no token {end_of_document!r}; name one that is in tokenizer.json")
    ids = []
    for document in documents:
        ids += tokenizer.encode(document, add_special_tokens=False).ids + end
    return ids


def dtype_for(tokenizer, wanted):
    """uint16 where every id fits. The size is the largest id + 1: ids of added tokens may leave gaps."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    fits = size <= 1 << 16
    if wanted == "uint16" and not fits:
        sys.exit(f"ids up to {size - 1:,} do not fit in uint16; use --dtype uint32")
    return wanted if wanted != "auto" else "uint16" if fits else "uint32"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", type=pathlib.Path, metavar="TEXT")
    parser.add_argument("--tokenizer", required=True, metavar="FILE", help="tokenizer.json of the model")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE")
    parser.add_argument("--dtype", choices=["auto", "uint16", "uint32"], default="auto")
    parser.add_argument("--end-of-document", metavar="TOKEN", help="such as <|endoftext|>")
    parser.add_argument("--python-docs", action="store_true", help="add Python's language reference as a document")
    arguments = parser.parse_args()
    documents = [read_text(path) for path in arguments.texts]
    if arguments.python_docs:
        documents.append(python_documentation())
    if not documents:
        parser.error("nothing to tokenize: give TEXT files or --python-docs")

    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    dtype = dtype_for(tokenizer, arguments.dtype)
    ids = numpy.array(encode(tokenizer, documents, arguments.end_of_document), dtype="<u" + str(int(dtype[4:]) // 8))
    ids.tofile(arguments.out)
    characters = sum(len(document) for document in documents)
    print(f"{arguments.out}: {len(ids):,} tokens ({dtype}, {ids.nbytes / 2**20:.2f} MiB), {len(set(ids.tolist())):,} "
          f"different, from {characters:,} characters in {len(documents)} document(s)")


if __name__ == "__main__":
    main()
