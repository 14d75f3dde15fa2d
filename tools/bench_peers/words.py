"""A tokenizer for comparisons on machines without one: the most frequent words of the text itself, and bytes for the rest.
Token frequencies fall off as a real tokenizer's do, which bytes alone would not show."""
import re
from collections import Counter

import numpy

BYTES = 256  # tokens below are bytes
PIECE = re.compile(rb" ?[A-Za-z]+|[0-9]|\s+|[^A-Za-z0-9\s]{1,3}")


def encode(text, vocabulary):
    """The tokens of the text, all below `vocabulary`."""
    pieces = PIECE.findall(text)
    frequent = Counter(piece for piece in pieces if len(piece) > 1).most_common(vocabulary - BYTES)
    ids = {piece: [BYTES + rank] for rank, (piece, _) in enumerate(frequent)}
    tokens = []
    for piece in pieces:
        tokens += ids.get(piece) or piece
    return numpy.array(tokens, dtype=numpy.uint16)
