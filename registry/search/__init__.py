"""Find tools by words, and combine that with the similarity of embeddings where they are installed.

`index` ranks tools with BM25 over weighted fields. `terms` and `stemming` turn text into terms; `synonyms` is a table
of words, read by `thesaurus`, and `neighbours` reads one that a model of the language derived. `fusion` combines the
ranking by words with that by embeddings.
"""
